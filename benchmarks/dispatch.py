"""`python -m benchmarks.dispatch`: what a step of a small model costs, part by part.

Forward and backward of the benchmark MLP (60 tiny layers) and of a small encoder, on one pinned
thread. The whole steps are timed in turn: eager, ORTModule, and with `--compile` torch.compile; the
parts of ORTModule's each by themselves, the least of many repetitions:

- Dynamo: a call of the same module through `torch.compile` with a backend that does nothing, so
  guards, fetching the parameters, and torch's Python around them
- wrapper: what a call of the ORTModule takes beyond Dynamo and the compiled piece
- arguments: out of Python's tuple into C++
- lookup: checks of the arguments, and the plan for their layouts
- frame: addresses of one run
- executor: forward and backward with kernels that do nothing, memory included
- kernels: what the real ones take beyond that
- gradient tensors: the Tensors around the gradients' memory
- autograd forward: recording the nodes, and the outputs
- autograd backward: torch's engine, the nodes, and AccumulateGrad for each parameter

What was measured alone, in warm caches, sums up to less than the step: the last row is what is left.
Compare only what one run prints, with nothing else on the core.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks import models
from benchmarks.models import Batch
from ortmodule_py import _C, ORTModule

Costs = dict[str, float]


class SmallEncoder(nn.Module):
    """A transformer encoder as small as those of Hugging Face's tests; no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 37, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
        self.head = nn.Linear(32, 128)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of each token's label."""
        scores = self.head(self.encoder(self.embedding(tokens)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _small_encoder() -> tuple[nn.Module, Batch]:
    tokens = torch.randint(128, (4, 16))
    return SmallEncoder(), {"tokens": tokens, "labels": tokens.flip(1)}


def _mlp() -> tuple[nn.Module, Batch]:
    model = models.make("mlp")
    return model.module, model.batch(model.batch_size)


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "mlp": _mlp,
    "encoder": _small_encoder,
}


def _least_us(run: Callable[[], object], repeats: int) -> float:
    least = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - start)
    return least * 1e6


def whole_steps(variants: dict[str, Any], batch: Batch, repeats: int) -> dict[str, Costs]:
    """Microseconds of forward, backward and both by variant, the least of all turns."""
    least: dict[str, Costs] = {}
    for turn in range(repeats):
        for name, model in variants.items():
            for _ in range(3):  # the first one after another variant finds cold caches
                model.zero_grad(set_to_none=True)
                begin = time.process_time()
                loss = model(**batch)
                middle = time.process_time()
                loss.backward()
                end = time.process_time()
                if turn < 2:
                    continue  # captures, and plans anew
                took = {"forward": middle - begin, "backward": end - middle, "step": end - begin}
                known = least.setdefault(name, dict.fromkeys(took, float("inf")))
                for part, seconds in took.items():
                    known[part] = min(known[part], seconds * 1e6)
    return least


def _idle_dynamo(module: nn.Module, batch: Batch, repeats: int) -> tuple[float, Sequence[Any]]:
    """Microseconds of a call that computes nothing, and the flat arguments that Dynamo passes."""
    given: list[Sequence[Any]] = []
    ready = torch.zeros(())

    def backend(_: Any, __: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            given[:] = [args]
            return (ready,)

        return run

    compiled = torch.compile(module, backend=backend)
    compiled(**batch)
    return _least_us(lambda: compiled(**batch), repeats), given[0]


def parts(model: ORTModule, batch: Batch, whole: Costs, repeats: int) -> Costs:
    """Microseconds by part of ORTModule's step.

    Raises:
        RuntimeError: the model is not one piece.
    """
    pieces = model._compiler.pieces
    if len(pieces) != 1:
        raise RuntimeError(f"[dispatch] the model must be one piece, but found {len(pieces)}")
    piece = pieces[0].compiled
    # The wrapper has marked the batch, so that the arguments are those of the piece.
    dynamo_us, args = _idle_dynamo(model.module, batch, repeats)
    tensors = [a for a in args if isinstance(a, Tensor)]
    symbols = [a for a in args if not isinstance(a, Tensor)]
    piece_us = _least_us(lambda: piece(*args), repeats)
    call_us = _least_us(lambda: model(**batch), repeats)
    planned_us = _least_us(lambda: piece.plan(*args), repeats)
    inner: Costs = _C.step_costs(piece, tensors, symbols, repeats)
    forward_us = inner["all frame"] + inner["all forward"]
    gradients_us = inner["all gradient tensors"]
    return {
        "Dynamo": dynamo_us,
        "wrapper": call_us - dynamo_us - piece_us,
        "arguments": planned_us - inner["lookup"],
        "lookup": inner["lookup"],
        "frame": inner["executor frame"],
        "executor, forward": inner["executor forward"],
        "kernels, forward": inner["all forward"] - inner["executor forward"],
        "autograd, forward": piece_us - planned_us - forward_us,
        "executor, backward": inner["executor backward"],
        "kernels, backward": inner["all backward"] - inner["executor backward"],
        "gradient tensors": gradients_us,
        "autograd, backward": whole["backward"] - inner["all backward"] - gradients_us,
        "left": whole["forward"] - call_us,
    }


def _print(name: str, steps: dict[str, Costs], costs: Costs, console: Console) -> None:
    table = Table(title=f"{name}: whole steps, us of processor time")
    for column in ("variant", "forward", "backward", "step", "of eager"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for variant, took in steps.items():
        ratio = took["step"] / steps["eager"]["step"]
        cells = (f"{took[part]:.0f}" for part in ("forward", "backward", "step"))
        table.add_row(variant, *cells, f"{ratio:.2f}")
    console.print(table)
    table = Table(title=f"{name}: ORTModule's step by part")
    for column in ("part", "us", "of the step"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part, us in costs.items():
        table.add_row(part, f"{us:.0f}", f"{100 * us / steps['ours']['step']:.1f} %")
    console.print(table)


def main() -> int:
    """Measures the models of the command line and prints two tables for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dispatch", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=" ".join(MODELS))
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--core", type=int, default=None)
    parser.add_argument("--compile", action="store_true", help="torch.compile beside us")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")
    torch.set_num_threads(1)
    console = Console(width=100)
    for name in options.models:
        torch.manual_seed(0)
        module, batch = MODELS[name]()
        variants: dict[str, Any] = {"eager": module, "ours": ORTModule(copy.deepcopy(module))}
        if options.compile:
            variants["compile"] = torch.compile(copy.deepcopy(module))
        steps = whole_steps(variants, batch, options.repeats)
        costs = parts(variants["ours"], batch, steps["ours"], options.repeats)
        _print(name, steps, costs, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
