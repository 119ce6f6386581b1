"""Do trainings with our dropout end where trainings in eager PyTorch end?

A small classifier with three dropouts learns from a fixed set of points; each seed sets the order of
the batches and the masks, from the same initial parameters. The loss on held-out points after the
last step is compared: the means must be within three standard errors of each other (Welch's t), and
neither variance more than 2.4 times the other (F with 39 degrees of freedom each, 1 %). Ten seeds
are too few for the latter: a deviation estimated from ten values is off by a quarter.

    python -m benchmarks.seeds
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys

import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule


class Classifier(nn.Module):
    """Three hidden layers, each with its dropout."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (8, width, width):
            layers += [nn.Linear(inputs, width), nn.GELU(), nn.Dropout(0.3)]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 4))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy."""
        return nn.functional.cross_entropy(self.layers(x), labels)


def points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points in 8 dimensions and a class that follows from two products, with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    noise = 0.3 * torch.randn(2, count, generator=generator)
    first, second = x[:, 0] * x[:, 1] + noise[0] > 0, x[:, 2] * x[:, 3] + noise[1] > 0
    return x, first.long() * 2 + second.long()


def final_loss(model: nn.Module, start: dict[str, Tensor], seed: int, steps: int) -> float:
    """Held-out loss after training from `start`."""
    model.load_state_dict(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    x, labels = points(4096, 0)
    torch.manual_seed(seed)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(x), (64,))
        model(x[chosen], labels[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        return float(model(*points(4096, 1)))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    eager = Classifier()
    start = copy.deepcopy(eager.state_dict())
    ours = ORTModule(copy.deepcopy(eager), DebugOptions(LogLevel.ERROR))
    losses: dict[str, list[float]] = {"eager": [], "ORTModule": []}
    for seed in range(given.seeds):
        for name, model in (("eager", eager), ("ORTModule", ours)):
            losses[name].append(final_loss(model, start, seed, given.steps))
    for name, found in losses.items():
        print(
            f"{name:10s} mean {statistics.mean(found):.4f} deviation {statistics.stdev(found):.4f}"
            f"  {' '.join(f'{loss:.4f}' for loss in found)}"
        )
    theirs, mine = losses["eager"], losses["ORTModule"]
    mean, deviation = statistics.mean(theirs), statistics.stdev(theirs)
    outside = sum(abs(loss - mean) > 3 * deviation for loss in mine)
    variances = statistics.variance(mine), statistics.variance(theirs)
    ratio = max(variances) / min(variances)
    t = (statistics.mean(mine) - mean) / math.sqrt(sum(variances) / given.seeds)
    print(f"t = {t:+.2f}, ratio of variances {ratio:.2f}, beyond 3 deviations: {outside}")
    return int(abs(t) > 3 or ratio > 2.4)


if __name__ == "__main__":
    sys.exit(main())
