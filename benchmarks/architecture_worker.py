"""One architecture in eager PyTorch, in float64 and in the engine: the row of the table as JSON.

Started by `benchmarks.architectures`, in a process of its own.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.architecture_images import IMAGES
from benchmarks.architecture_models import MODELS
from benchmarks.architecture_transformers import TRANSFORMERS

SHAPES = ((3, 12), (4, 16), (1, 8), (5, 10), (2, 13))
"""Batch size and length of the training steps; models without a length look at the first alone."""
FLOOR = 1e-4
"""An error is allowed to be this part of the largest value, or twice eager's own."""

ARCHITECTURES = MODELS | IMAGES | TRANSFORMERS
"""By name: a function that makes the module, and one that makes a batch of a size and a length."""

Row = dict[str, Any]


@dataclass
class Seen:
    """What can be seen of one call and its backward pass."""

    outputs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    eager_nodes: int = 0
    """Operators that eager PyTorch recorded for the backward pass; the engine leaves a node of its own."""


def leaves(value: Any, path: str = "output") -> Iterator[tuple[str, Any]]:
    """Tensors and None in nested containers, by path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            yield from leaves(item, f"{path}.{position}")
    elif value is None or isinstance(value, Tensor):
        yield path, value


def loss_of(result: Any) -> Tensor:
    """The loss that a model returns: by name, or as its first or only value."""
    if isinstance(result, dict):
        loss: Tensor = result["loss"]
        return loss
    return result[0] if isinstance(result, (list, tuple)) else result


def eager_nodes(loss: Tensor) -> int:
    """How many nodes of eager operators the backward of `loss` runs through."""
    seen: set[Any] = set()
    ahead = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [following for following, _ in node.next_functions]
    names = (node.name() for node in seen)
    return sum("ortmodule" not in name and "AccumulateGrad" not in name for name in names)


def to_double(batch: dict[str, Any]) -> dict[str, Any]:
    """Floating tensors of a batch as float64."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }


def step(module: nn.Module, batch: dict[str, Any], *, train: bool) -> Seen:
    """Forward, and backward of the loss if this is training."""
    original = getattr(module, "module", module) if type(module).__name__ == "ORTModule" else module
    original.zero_grad()
    module.train(train)
    torch.manual_seed(1)
    with torch.set_grad_enabled(train):
        result = module(**batch)
    nodes = 0
    if train:
        nodes = eager_nodes(loss_of(result))
        loss_of(result).backward()
    outputs = {path: v if v is None else v.detach() for path, v in leaves(result)}
    seen = Seen(outputs, eager_nodes=nodes)
    for name, parameter in original.named_parameters():
        grad = parameter.grad
        seen.gradients[name] = None if grad is None else grad.detach().clone()
    seen.buffers = {name: b.detach().clone() for name, b in original.named_buffers()}
    return seen


# ---- comparing -----------------------------------------------------------------------------------


def _largest(values: Iterator[Any]) -> float:
    floats = (v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.numel())
    finite = (v.abs().nan_to_num(0.0, posinf=0.0).max() for v in floats)
    return max(map(float, finite), default=0.0)


def _error(value: Tensor, exact: Tensor) -> float:
    if value.shape != exact.shape or not value.numel():
        return 0.0
    # What is infinite or NaN in both is equal; in one of them it stays so.
    return float((value.double() - exact.double()).abs().nan_to_num(0.0, posinf=torch.inf).max())


def _strides(tensor: Tensor) -> list[int]:
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def _facts(value: Tensor | None) -> str:
    if value is None:
        return "None"
    return f"{value.dtype} {tuple(value.shape)} of strides {_strides(value)}"


def _compare(name: str, ours: Any, eager: Any, exact: Any, largest: float) -> str | None:
    """What is wrong with one value, or None."""
    if _facts(ours) != _facts(eager):
        return f"{name}: {_facts(ours)}, eager {_facts(eager)}"
    if eager is None:
        return None
    if not eager.is_floating_point():
        return None if torch.equal(ours, eager) else f"{name}: other values than eager"
    if not torch.equal(ours.isfinite(), eager.isfinite()):
        return f"{name}: infinite or NaN in other places than in eager"
    mine, theirs = _error(ours, exact), _error(eager, exact)
    allowed = max(2 * theirs, FLOOR * largest)
    if mine <= allowed:
        return None
    return f"{name}: error {mine:.3g}, allowed {allowed:.3g} of {largest:.3g}"


def differences(ours: Seen, eager: Seen, exact: Seen) -> list[str]:
    """Everything that is not as in eager PyTorch, within the bound."""
    found: list[str | None] = []
    largest = _largest(iter(exact.gradients.values()))
    for group in ("outputs", "gradients", "buffers"):
        mine, theirs, reference = (getattr(seen, group) for seen in (ours, eager, exact))
        if list(mine) != list(theirs):
            found.append(f"{group}: {list(mine)}, eager {list(theirs)}")
            continue
        for name, value in theirs.items():
            scale = largest if group == "gradients" else _largest(iter([value]))
            label = f"gradient of {name}" if group == "gradients" else name
            found.append(_compare(label, mine[name], value, reference[name], scale))
    return [text for text in found if text is not None]


def is_sensitive(before: nn.Module, batch: dict[str, Any], eager: Seen, exact: Seen) -> bool:
    """Whether eager itself leaves the bound when its parameters move by one rounding."""
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        moved = copy.deepcopy(before)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.mul_(1 + 3e-7 * torch.randn(parameter.shape, generator=generator))
        if differences(step(moved, batch, train=True), eager, exact):
            return True
    return False


def gradient_error(seen: Seen, exact: Seen) -> float:
    """The largest error of any gradient, as a part of the largest gradient."""
    largest = _largest(iter(exact.gradients.values())) or 1.0
    errors = (
        _error(grad, reference)
        for grad, reference in zip(seen.gradients.values(), exact.gradients.values(), strict=True)
        if grad is not None and reference is not None
    )
    return max(errors, default=0.0) / largest


def skipped_functions() -> list[str]:
    """Functions that Dynamo left to eager PyTorch as a whole, since a graph would break in a loop."""
    found = set()
    for text in torch._dynamo.utils.counters["unimplemented"]:
        skipped = re.search(r"frame skipped: (.+)", text)
        if skipped is not None:
            found.add(f"{text.splitlines()[0]}: {skipped.group(1)}")
    return sorted(found)


# ---- one architecture ----------------------------------------------------------------------------


def _exact_copy(module: nn.Module) -> nn.Module:
    exact = copy.deepcopy(module).double()
    config: Any = getattr(exact, "config", None)
    if getattr(config, "_experts_implementation", None) == "grouped_mm":
        config._experts_implementation = "eager"  # the grouped product takes no float64
    return exact


class Recaptures(logging.Handler):
    """Collects Dynamo's reasons for each capture but the first of a function."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []
        torch._logging.set_logs(recompiles=True)
        logger = logging.getLogger("torch._dynamo.guards.__recompiles")
        logger.handlers[:] = [self]
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines()
        kept = (line.strip() for line in lines if "triggered by" not in line)
        self.reasons.append(" | ".join(kept)[:400])


def measure(name: str, step_begins: Callable[[str], None] = lambda _: None) -> Row:
    """Train and evaluate one architecture in eager PyTorch, in float64 and in the engine."""
    from ortmodule_py import ORTModule, last_run_report

    build, make_batch = ARCHITECTURES[name]
    torch.manual_seed(0)
    eager = build()
    exact = _exact_copy(eager)
    ours = ORTModule(copy.deepcopy(eager))
    row: Row = {"name": name, "problems": [], "sensitive": []}
    row |= {"gradient_error": 0.0, "eager_error": 0.0}
    for index, (size, length) in enumerate((*SHAPES, SHAPES[0])):
        train = index < len(SHAPES)
        label = f"batch {size}" if train else "evaluation"
        step_begins(label)
        torch.manual_seed(index)
        batch = make_batch(size, length)
        before = copy.deepcopy(eager)
        theirs = step(eager, batch, train=train)
        reference = step(exact, to_double(batch), train=train)
        start, processor = time.perf_counter(), time.process_time()
        mine = step(ours, batch, train=train)
        if index == 0:
            row["first_step_s"] = time.perf_counter() - start
            row["first_step_processor_s"] = time.process_time() - processor
        found = [f"{label}: {text}" for text in differences(mine, theirs, reference)]
        if train and found and all(": error " in text for text in found):
            sensitive = is_sensitive(before, batch, theirs, reference)
            row["sensitive" if sensitive else "problems"] += found
        else:
            row["problems"] += found
        report = last_run_report(ours)
        if train:
            row["gradient_error"] = max(row["gradient_error"], gradient_error(mine, reference))
            row["eager_error"] = max(row["eager_error"], gradient_error(theirs, reference))
            row["outside"] = [mine.eager_nodes, theirs.eager_nodes]
            row["skipped"] = skipped_functions()
            row["report"] = report
        row["problems"] += [f"{label}: {text}" for text in _peak_differs(report, train)]
    return row


def _peak_differs(report: Row, train: bool) -> list[str]:
    planned, measured = report["planned_peak_bytes"], report["measured_peak_bytes"]
    if not train or not report["prediction_exact"] or not measured or planned == measured:
        return []
    return [f"planned peak {planned}, measured {measured}"]


def main() -> None:
    """Prints lines of JSON: where it is, then the row."""
    warnings.simplefilter("ignore")
    logging.getLogger("ortmodule_py").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    name, core = sys.argv[1], int(sys.argv[2])
    os.sched_setaffinity(0, {core})
    at = ["start"]
    recaptures = Recaptures()
    training: list[str] = []

    def step_begins(label: str) -> None:
        at[0] = label
        if label == "evaluation":
            training.extend(recaptures.reasons)
        print(json.dumps({"at": label}), flush=True)

    try:
        row = measure(name, step_begins) | {"recaptures": training}
    except Exception as error:  # whatever it is, it belongs into the row
        text = f"{at[0]}: {type(error).__name__}: {error}"
        row = {"name": name, "error": text[:2000], "trace": traceback.format_exc()}
    print(json.dumps({"row": row}), flush=True)


if __name__ == "__main__":
    main()
