"""Parts `ops 1/8` and so on: every op of tests/ops on the GPU, against float64 on the CPU."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .part import Context, Part, Row

_FOLDER = Path(__file__).resolve().parents[2] / "tests" / "ops"
_NO_DATA = {"__init__", "case", "harness"}
_LEFT_TO_EAGER = "the tensors of a piece must be on one device"
"""Of CannotLower, where torch takes an operand on the CPU only (`Case.on_host`)."""


def _stems() -> list[str]:
    stems = {path.stem for path in _FOLDER.glob("*.py")} - _NO_DATA
    return sorted(stem for stem in stems if not stem.startswith("test_"))


def _checks(harness: Any, case: Any) -> list[tuple[str, Callable[[], None]]]:
    """All that tests/ops/test_ops.py does with a case."""
    arguments = harness.Arguments.of(case, harness.SIZE)
    checks: list[tuple[str, Callable[[], None]]] = [
        ("symbolic", lambda: harness.check_symbolic(case))
    ]
    if any(t.dtype == torch.float64 for t in arguments.tensors):
        checks += [
            (str(dtype), lambda d=dtype: harness.check_fixed(case, arguments.in_dtype(d)))
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        ]
    if arguments.tensors:
        checks.append(("strided", lambda: harness.check_fixed(case, arguments.strided())))
    sizes = [size for size in (0, 1) if size in case.sizes]
    checks += [(f"size {size}", lambda s=size: harness.check_size(case, s)) for size in sizes]
    return checks


@contextmanager
def full_float32() -> Iterator[None]:
    """Without TF32, which convolutions take by default: its error is no mistake."""
    places = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = False
    try:
        yield
    finally:
        for place, allowed in zip(places, before, strict=True):
            place.allow_tf32 = allowed


def run_file(stem: str, context: Context) -> Row:
    """All cases of a file of tests/ops."""
    with full_float32():
        return _run_cases(stem, context)


def _run_cases(stem: str, context: Context) -> Row:
    os.environ["ORTMODULE_TEST_DEVICE"] = str(context.device)
    os.environ["ORTMODULE_CUDA_EMULATION"] = "1" if context.emulated else "0"
    harness = importlib.import_module("tests.ops.harness")
    from ortmodule_py.base.errors import CannotLower

    counts = {"passed": 0, "skipped": 0, "left_to_eager": 0}
    failures: list[str] = []
    for case in importlib.import_module(f"tests.ops.{stem}").cases():
        for name, check in _checks(harness, case):
            try:
                check()
                counts["passed"] += 1
            except harness.EagerRefuses:
                counts["skipped"] += 1
            except CannotLower as error:
                if case.on_host and _LEFT_TO_EAGER in str(error):
                    counts["left_to_eager"] += 1
                else:
                    failures.append(f"{case.name} {name}: {error}")
            except Exception as error:
                if context.lost():
                    raise
                lines = str(error).strip().splitlines() or [""]
                failures.append(f"{case.name} {name}: {type(error).__name__} {lines[0][:160]}")
    return {**counts, "failed": len(failures), "ok": not failures, "why": "; ".join(failures[:8])}


_SHARDS = 8


def _shard(number: int) -> Part:
    return Part(
        f"ops {number + 1}/{_SHARDS}",
        "ops of tests/ops in all types, strides and sizes, against float64 on the CPU",
        lambda: _stems()[number::_SHARDS],
        run_file,
        on_host=True,
        limit_s=150,
        row_s=4.0,
    )


OPERATORS = tuple(map(_shard, range(_SHARDS)))
