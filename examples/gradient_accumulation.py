"""Gradient accumulation: the gradients of a large batch with the memory of a small one.

The loop is the usual one (sum the gradients of several micro-batches, then step), with two slips
corrected that published snippets of it have:

* ``optimizer.zero_grad()`` stands after ``optimizer.step()``, not at the top of every micro-step.
  There it throws away what was accumulated: the step sees the last micro-batch alone, scaled down.
* What is left of an epoch, when its number of micro-batches is no multiple of the group, is stepped
  on too, and each loss is weighted by its share of the samples, since the last one may be smaller.

The script trains with the corrected loop, then compares the gradients of one group with those of
the whole batch at once and with those of the loop as it is often written.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

MIB = 2**20
Batch = tuple[Tensor, Tensor]


class Classifier(nn.Module):
    """Transformer layers over sequences, then the scores of ten classes; no loss inside."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        # No dropout: the two ways would draw different masks, and their gradients be incomparable.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the mean over the sequence."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def make_samples(count: int, length: int = 64, width: int = 128) -> Batch:
    """Sequences whose class is where their sum is largest."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, length, width, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    x[torch.arange(count), :, labels] += 0.5
    return x, labels


def accumulate(model: nn.Module, group: Sequence[Batch]) -> float:
    """Adds the gradients of the group's mean loss to the parameters' and returns that loss."""
    samples = sum(len(labels) for _, labels in group)
    total = 0.0
    for x, labels in group:
        loss = nn.functional.cross_entropy(model(x), labels) * (len(labels) / samples)
        loss.backward()
        total += loss.item()
    return total


def train(model: nn.Module, batches: Sequence[Batch], group_size: int, epochs: int) -> list[float]:
    """The corrected loop; the mean loss of each epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    losses = []
    for _ in range(epochs):
        of_steps = []
        for start in range(0, len(batches), group_size):
            of_steps.append(accumulate(model, batches[start : start + group_size]))
            optimizer.step()
            optimizer.zero_grad()
        losses.append(sum(of_steps) / len(of_steps))
    return losses


def gradients(model: nn.Module, group: Sequence[Batch], *, zero_each_time: bool) -> Tensor:
    """All gradients of a group in one vector; ``zero_each_time`` is the slip."""
    model.zero_grad()
    for x, labels in group:
        if zero_each_time:
            model.zero_grad()
        (nn.functional.cross_entropy(model(x), labels) / len(group)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def _peak_mib(model: nn.Module) -> float:
    return float(last_run_report(model)["planned_peak_bytes"]) / MIB


def main() -> int:
    """0 if the accumulated gradients are those of the whole batch, and training lowers the loss."""
    parser = argparse.ArgumentParser(description="Gradient accumulation")
    parser.add_argument("--batch", type=int, default=32, help="samples per optimizer step")
    parser.add_argument("--accumulation-steps", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ORTModule(Classifier(), DebugOptions(log_level=LogLevel.ERROR))
    micro = math.ceil(options.batch / options.accumulation_steps)
    x, labels = make_samples(4 * options.batch + micro + micro // 2)  # the last group is smaller
    batches = list(zip(x.split(micro), labels.split(micro), strict=True))
    losses = train(model, batches, options.accumulation_steps, options.epochs)
    print("loss of each epoch: " + ", ".join(f"{loss:.4f}" for loss in losses))

    group = batches[: options.accumulation_steps]
    accumulated = gradients(model, group, zero_each_time=False)
    small = _peak_mib(model)
    slip = gradients(model, group, zero_each_time=True)
    joined = (torch.cat([x for x, _ in group]), torch.cat([y for _, y in group]))
    whole = gradients(model, [joined], zero_each_time=False)
    large = _peak_mib(model)
    right, wrong = _difference(accumulated, whole), _difference(slip, whole)
    print(f"{len(group)} x {micro} samples: peak of a step {small:.1f} MiB")
    print(f"1 x {len(joined[1])} samples: peak of a step {large:.1f} MiB")
    print(f"gradients against the whole batch: accumulated {right:.1e} away")
    print(f"with zero_grad() at the top of every micro-step: {wrong:.1e} away")
    report = last_run_report(model)
    print(f"captures {report['captures']}, plans {report['plans']}")
    return 0 if right < 1e-4 and wrong > 0.1 and losses[-1] < losses[0] else 1


if __name__ == "__main__":
    raise SystemExit(main())
