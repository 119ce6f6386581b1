"""The process that trains one model of ``examples`` once and keeps the losses of all its steps.

``benchmarks.curves`` starts it with its configuration as JSON. Weights and batches depend on the
seed only: not on the variant, the number of threads or the precision.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Config = dict[str, Any]


@dataclasses.dataclass
class Task:
    """A model, its batches, its loss and its learning rate."""

    module: nn.Module
    batches: Iterator[tuple[Tensor, Tensor]]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    learning_rate: Callable[[int], float]


def _gpt(config: Config) -> Task:
    from examples import train_gpt

    context, batch_size = 128, 8
    text, _ = train_gpt.load_text()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.Generator().manual_seed(config["seed"])
        while True:
            starts = torch.randint(len(text) - context - 1, (batch_size,), generator=order)
            yield train_gpt.windows(text, starts, context)

    def loss(model: nn.Module, idx: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = model(idx, targets)[1]
        return value

    torch.manual_seed(config["seed"])
    module = train_gpt.Gpt(layers=4, width=128, context=context, dropout=config["dropout"])
    return Task(
        module, batches(), loss, lambda step: train_gpt.learning_rate(step, config["steps"])
    )


def _convnet(config: Config) -> Task:
    from examples import train_digits

    images, labels, _, _ = train_digits.load_data()

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.Generator().manual_seed(config["seed"])
        while True:
            # The last batch of an epoch is smaller, as in the example.
            for chunk in torch.randperm(len(labels), generator=order).split(64):
                yield images[chunk], labels[chunk]

    def loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    torch.manual_seed(config["seed"])
    module = train_digits.ConvNet()
    module.dropout.p = config["dropout"]
    return Task(
        module,
        batches(),
        loss,
        lambda step: 1e-3 * (1 + math.cos(math.pi * step / config["steps"])),
    )


TASKS: dict[str, Callable[[Config], Task]] = {"gpt": _gpt, "convnet": _convnet}


def train(config: Config) -> dict[str, Any]:
    """Losses, final state, and the generator's final state, of one training run."""
    task = TASKS[config["model"]](config)
    dtype = torch.float64 if config["double"] else torch.float32
    model: nn.Module = task.module.to(dtype).train()
    if config["ours"]:
        from ortmodule_py import ORTModule

        model = ORTModule(model)
    optimizer = torch.optim.AdamW(task.module.parameters(), lr=1e-3, betas=(0.9, 0.95))
    torch.manual_seed(config["seed"])
    losses = []
    for step in range(config["steps"]):
        inputs, targets = next(task.batches)
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate(step)
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model, inputs.to(dtype) if inputs.is_floating_point() else inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(task.module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    state = {name: t.double() for name, t in task.module.state_dict().items() if t.dtype == dtype}
    result = {"losses": losses, "state": state, "generator": torch.get_rng_state()}
    return result | {"report": _report(model) if config["ours"] else {}}


def _report(model: nn.Module) -> dict[str, Any]:
    from ortmodule_py import last_run_report

    report = last_run_report(model)
    keys = ("compiled", "captures", "plans", "graph_breaks", "eager_pieces", "nodes_aten_fallback")
    return {key: report[key] for key in keys}


def main() -> None:
    """Train as the configuration says and write the result to its path."""
    config = json.loads(sys.argv[1])
    if config["core"] is not None:
        os.sched_setaffinity(0, {config["core"]})
    torch.set_num_threads(config["threads"])
    torch.save(train(config), Path(config["path"]))


if __name__ == "__main__":
    main()
