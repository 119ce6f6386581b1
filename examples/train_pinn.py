"""Solve Burgers' equation by a physics-informed network.

    python examples/train_pinn.py [--steps 200] [--level 0]

The loss is the residual u_t + u u_x - v u_xx at random points (Raissi et al. 2019, arXiv:1711.10561),
so its gradient is one of gradients of gradients. The same training runs in eager PyTorch and in an
ORTModule: seconds of processor time per step, peak of memory and the error of u are printed side by side.
With `--steps 40` on one core of a shared x86-64 machine with torch 2.13: 64 ms and 28.7 MiB in eager, 0.77
of that time and 1.03 of that peak at level 0, 0.69 and 0.64 at level 1, equal losses.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ortmodule_py.testing import install_counting_allocator, measure_peak

VISCOSITY = 0.1 / math.pi
MIB = 2**20


def network(width: int, layers: int) -> nn.Sequential:
    """From points (t, x) to u."""
    sizes = [2, *[width] * layers]
    hidden = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(width, 1))


def residual(model: nn.Module, points: Tensor) -> Tensor:
    """What the equation leaves at these points [n, 2]."""
    points = points.detach().requires_grad_()
    u = model(points)
    (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 1].sum(), points, create_graph=True)
    return slope[:, 0] + u[:, 0] * slope[:, 1] - VISCOSITY * bend[:, 1]


def exact(points: Tensor) -> Tensor:
    """The solution that begins as -sin(pi x), by Cole and Hopf, integrated by Gauss and Hermite."""
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.hermite.hermgauss(100))
    t, x = points.double().unbind(1)
    y = x[:, None] - torch.sqrt(4 * VISCOSITY * t)[:, None] * nodes
    kernel = weights * torch.exp(-(torch.cos(math.pi * y) + 1) / (2 * math.pi * VISCOSITY))
    return -(torch.sin(math.pi * y) * kernel).sum(1) / kernel.sum(1)


@dataclass
class Outcome:
    """What a training run took and reached."""

    seconds: float
    peak_bytes: int
    losses: list[float]
    error: float


def train(model: nn.Module, steps: int, points: int) -> Outcome:
    """Train on random points; the error is the mean one of u on others."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1)
    seconds, peak, losses = 0.0, 0, []
    for step in range(steps):
        inside = torch.rand(points, 2, generator=generator) * torch.tensor([1.0, 2.0])
        inside = inside - torch.tensor([0.0, 1.0])
        start, edge = inside[: points // 8].clone(), inside[points // 8 : points // 4].clone()
        start[:, 0], edge[:, 1] = 0.0, edge[:, 1].sign()
        begun = time.process_time()
        with measure_peak() as measured:
            miss = model(start)[:, 0] + torch.sin(math.pi * start[:, 1])
            loss = miss.square().mean() + model(edge).square().mean()
            loss = loss + residual(model, inside).square().mean()
            loss.backward()
        if step >= steps // 2:  # behind captures and first plans
            seconds += time.process_time() - begun
            peak = max(peak, measured.peak_above_start)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        del miss, loss
    held = torch.rand(1000, 2, generator=generator) * torch.tensor([0.9, 2.0])
    held = held + torch.tensor([0.1, -1.0])
    with torch.no_grad():
        error = float((model(held)[:, 0] - exact(held)).abs().mean())
    return Outcome(seconds / (steps - steps // 2), peak, losses, error)


def main() -> None:
    """Train in eager PyTorch and in an ORTModule, and print both."""
    parser = argparse.ArgumentParser(description="Burgers' equation by a network")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--level", type=int, default=0, help="of the memory optimizer")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--points", type=int, default=2000)
    options = parser.parse_args()
    os.environ["ORTMODULE_MEMORY_OPT_LEVEL"] = str(options.level)
    from ortmodule_py import DebugOptions, LogLevel, ORTModule

    install_counting_allocator()
    results = {}
    for name in ("eager", "ortmodule_py"):
        torch.manual_seed(0)
        model: nn.Module = network(options.width, options.layers)
        if name != "eager":
            model = ORTModule(model, DebugOptions(log_level=LogLevel.ERROR))
        results[name] = train(model, options.steps, options.points)
    for name, outcome in results.items():
        print(
            f"{name:13s} {1000 * outcome.seconds:7.1f} ms processor time a step   "
            f"peak {outcome.peak_bytes / MIB:6.1f} MiB   loss {outcome.losses[0]:.4f} -> "
            f"{outcome.losses[-1]:.4f}   mean error of u {outcome.error:.4f}"
        )
    ours, eager = results["ortmodule_py"], results["eager"]
    print(
        f"time {ours.seconds / eager.seconds:.2f}, "
        f"peak {ours.peak_bytes / eager.peak_bytes:.2f} of eager's"
    )


if __name__ == "__main__":
    main()
