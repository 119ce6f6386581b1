"""Solve Burgers' equation with a network that is trained on the equation itself.

    python examples/train_pinn.py [--steps 200] [--level 0]

u_t + u u_x = (0.01 / pi) u_xx for x in [-1, 1], with u(0, x) = -sin(pi x) and u(t, +-1) = 0 (Raissi et al.
2019, doi:10.1016/j.jcp.2018.10.045). The loss holds second derivatives of the network by its inputs, so its
gradient holds third ones. Runs in eager PyTorch and in an ORTModule, and prints both.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ortmodule_py.testing import install_counting_allocator, measure_peak

VISCOSITY = 0.01 / math.pi
MIB = 2**20


class Network(nn.Module):
    """u at points (t, x), from a fully connected network with tanh."""

    def __init__(self, width: int = 32, layers: int = 4) -> None:
        super().__init__()
        widths = [2, *[width] * layers]
        hidden = [part for i, o in pairwise(widths) for part in (nn.Linear(i, o), nn.Tanh())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, 1))

    def forward(self, points: Tensor) -> Tensor:
        """u [points] for points [points, 2]."""
        return self.layers(points).squeeze(-1)


def residual(model: nn.Module, points: Tensor) -> Tensor:
    """By how much u misses the equation at each point."""
    points = points.detach().requires_grad_()
    u = model(points)
    (slopes,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    (bend,) = torch.autograd.grad(slopes[:, 1].sum(), points, create_graph=True)
    return slopes[:, 0] + u * slopes[:, 1] - VISCOSITY * bend[:, 1]


def boundary(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points at the start and at both ends, and u there."""
    x = 2 * torch.rand(count, generator=generator) - 1
    t = torch.rand(count, generator=generator)
    side = torch.sign(torch.rand(count, generator=generator) - 0.5)
    start = torch.stack([torch.zeros(count), x], -1)
    ends = torch.stack([t, side], -1)
    return torch.cat([start, ends]), torch.cat([-torch.sin(math.pi * x), torch.zeros(count)])


def exact(points: Tensor, nodes: int = 200) -> Tensor:
    """u by the Cole-Hopf transformation, whose integrals are sums over `nodes` points."""
    t, x = points[:, :1].double(), points[:, 1:].double()
    width = torch.sqrt(4 * VISCOSITY * t.clamp_min(1e-9))
    z = torch.linspace(-6, 6, nodes, dtype=torch.float64)
    y = x - width * z
    weight = torch.exp(-torch.cos(math.pi * y) / (2 * math.pi * VISCOSITY) - z.square())
    return -(torch.sin(math.pi * y) * weight).sum(-1) / weight.sum(-1)


@dataclass
class Outcome:
    """What a training run took and reached."""

    seconds: float
    peak_bytes: int
    loss: float
    error: float


def train(model: nn.Module, steps: int, points: int) -> Outcome:
    """Train with Adam; the error is relative to the exact solution, in the quadratic mean."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seconds, peak, last = 0.0, 0, 0.0
    for step in range(steps):
        inside = torch.rand(points, 2, generator=generator) * torch.tensor([1.0, 2.0])
        inside = inside - torch.tensor([0.0, 1.0])
        edge, values = boundary(points // 8, generator)
        start = time.process_time()
        with measure_peak() as measured:
            loss = residual(model, inside).square().mean() + (model(edge) - values).square().mean()
            loss.backward()
        if step >= steps // 2:  # behind captures and first plans
            seconds += time.process_time() - start
            peak = max(peak, measured.peak_above_start)
        optimizer.step()
        optimizer.zero_grad()
        last = float(loss.detach())
        del loss
    grid = torch.cartesian_prod(torch.linspace(0.05, 0.95, 19), torch.linspace(-0.95, 0.95, 39))
    truth = exact(grid)
    with torch.no_grad():
        found = model(grid).double()
    error = float((found - truth).norm() / truth.norm())
    return Outcome(seconds / (steps - steps // 2), peak, last, error)


def main() -> None:
    """Train in eager PyTorch and in an ORTModule, and print both."""
    parser = argparse.ArgumentParser(description="Burgers' equation by a physics-informed network")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--points", type=int, default=2048)
    parser.add_argument("--level", type=int, default=0, help="of the memory optimizer")
    options = parser.parse_args()
    os.environ["ORTMODULE_MEMORY_OPT_LEVEL"] = str(options.level)
    from ortmodule_py import DebugOptions, LogLevel, ORTModule

    install_counting_allocator()
    results = {}
    for name in ("eager", "ortmodule_py"):
        torch.manual_seed(0)
        model: nn.Module = Network()
        if name != "eager":
            model = ORTModule(model, DebugOptions(log_level=LogLevel.ERROR))
        results[name] = train(model, options.steps, options.points)
    for name, outcome in results.items():
        print(
            f"{name:13s} {1000 * outcome.seconds:7.1f} ms processor time a step   "
            f"peak {outcome.peak_bytes / MIB:6.1f} MiB   loss {outcome.loss:.4f}   "
            f"relative error {outcome.error:.3f}"
        )
    ours, eager = results["ortmodule_py"], results["eager"]
    print(
        f"time {ours.seconds / eager.seconds:.2f}, "
        f"peak {ours.peak_bytes / eager.peak_bytes:.2f} of eager's"
    )


if __name__ == "__main__":
    main()
