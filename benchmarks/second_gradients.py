"""`python -m benchmarks.second_gradients`: a force field in training, with gradients of gradients.

The potential of `examples/train_forces.py`: energies, forces (their gradient by the positions) and the
gradient of the loss of both. `outside` calls `torch.autograd.grad` on what the module returned, `inside`
in a forward around it, which `torch.compile` can trace (`trace_autograd_ops`). Processor time of a step, the
best of rounds in which all take turns, and its peak of memory above what was there before; ratios are to
eager outside.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads its threads
os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from examples.train_forces import ATOMS, Clusters, Potential, make_clusters, pairs
from ortmodule_py import ORTModule
from ortmodule_py.testing import install_counting_allocator, measure_peak

MIB = 2**20
Pairs = tuple[Tensor, Tensor, Tensor]
Step = Callable[[Tensor, Pairs], tuple[Tensor, Tensor]]


class Forces(nn.Module):
    """Energies, and the forces as their gradient inside of forward."""

    def __init__(self, potential: nn.Module) -> None:
        super().__init__()
        self.potential = potential

    def forward(self, positions: Tensor, edges: Pairs, clusters: int) -> tuple[Tensor, Tensor]:
        energies = self.potential(positions, *edges, clusters)
        (gradient,) = torch.autograd.grad(energies.sum(), positions, create_graph=True)
        return energies, -gradient


def outside(model: nn.Module) -> Step:
    """The forces as the gradient of what `model` returns."""

    def step(positions: Tensor, edges: Pairs) -> tuple[Tensor, Tensor]:
        energies = model(positions, *edges, positions.shape[0] // ATOMS)
        (gradient,) = torch.autograd.grad(energies.sum(), positions, create_graph=True)
        return energies, -gradient

    return step


def inside(model: nn.Module) -> Step:
    """`model` returns the forces, too."""
    return lambda positions, edges: model(positions, edges, positions.shape[0] // ATOMS)


def compiled(model: nn.Module) -> Step:
    """`inside` by `torch.compile`, with Dynamo's flag for it."""
    step = inside(torch.compile(model))

    def flagged(positions: Tensor, edges: Pairs) -> tuple[Tensor, Tensor]:
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            return step(positions, edges)

    return flagged


def at_level(level: int, model: nn.Module) -> nn.Module:
    """An ORTModule; its options are read when it is made."""
    os.environ["ORTMODULE_MEMORY_OPT_LEVEL"] = str(level)
    return ORTModule(model)


def variants(potential: nn.Module) -> dict[str, Step]:
    """Each with parameters of its own."""
    made = {
        "eager, outside": outside(copy.deepcopy(potential)),
        "eager, inside": inside(Forces(copy.deepcopy(potential))),
        "torch.compile, inside": compiled(Forces(copy.deepcopy(potential))),
    }
    for level in (0, 1, 2):
        made[f"ORTModule level {level}, outside"] = outside(
            at_level(level, copy.deepcopy(potential))
        )
    made["ORTModule level 1, inside"] = inside(at_level(1, Forces(copy.deepcopy(potential))))
    return made


def measured(step: Step, data: Clusters, edges: Pairs) -> tuple[float, int, float]:
    """Milliseconds of all threads, bytes at the peak, and the loss of a step."""
    positions = data.positions.detach().requires_grad_()
    start = time.process_time()
    with measure_peak() as peak:
        energies, forces = step(positions, edges)
        loss = (forces - data.forces).square().mean() + (energies - data.energies).square().mean()
        loss.backward()
        value = float(loss.detach())
        del energies, forces, loss
    return (time.process_time() - start) * 1e3, peak.peak_above_start, value


def main() -> None:
    """Print one row per variant."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.second_gradients", description=__doc__
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--clusters", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    install_counting_allocator()
    data, edges = make_clusters(options.clusters, seed=0), pairs(options.clusters)
    torch.manual_seed(0)
    potential = Potential(options.width, layers=options.layers)
    table = Table("variant", "first step s", "step ms", "ratio", "peak MiB", "ratio", "loss")
    steps = variants(potential)
    first = {name: measured(step, data, edges)[0] / 1e3 for name, step in steps.items()}
    for step in steps.values():  # the second step makes the plans that count the passes
        measured(step, data, edges)
    rounds = [
        {n: measured(s, data, edges) for n, s in steps.items()} for _ in range(options.rounds)
    ]
    base_ms, base_bytes = 0.0, 0
    for name in steps:
        best_ms = min(r[name][0] for r in rounds)
        most_bytes = max(r[name][1] for r in rounds)
        base_ms, base_bytes = base_ms or best_ms, base_bytes or most_bytes
        table.add_row(
            name,
            f"{first[name]:.1f}",
            f"{best_ms:.1f}",
            f"{best_ms / base_ms:.2f}",
            f"{most_bytes / MIB:.1f}",
            f"{most_bytes / base_bytes:.2f}",
            f"{rounds[-1][name][2]:.6f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
