"""Chooses the order of an `einsum` of three or more operands from the sizes of the capture, without guards.

Where the package opt_einsum is installed, torch asks it for that order. It computes with the sizes as numbers,
so that each size of a batch would be a capture. The order changes the time of a call, and its value by rounding.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.base.changing_numbers import value_now
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("bi,ij,jk->bk", x, w, w)

    with installed(_pairs_from_the_left):
        given = ((torch.ones(rows, 2), torch.ones(2, 2)) for rows in (4, 6, 8))
        return trial(lambda: product, *given) and trial.captures == 1


@patch(
    "einsum_paths",
    "An `einsum` of three or more operands needs no new capture for other sizes.",
    "torch.backends.opt_einsum:get_opt_einsum",
    probe=_probe,
    needed_by=None,
)
def _get(get: Callable[..., Any]) -> Any:
    package = get()
    if package is None:
        return None

    def contract_path(equation: str, *operands: Tensor, **options: Any) -> Any:
        sizes = [tuple(map(_size_now, operand.shape)) for operand in operands]
        return package.contract_path(equation, *sizes, shapes=True, **options)

    return SimpleNamespace(contract_path=contract_path)


def _size_now(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else max(int(value_now(size)), 1)


@contextlib.contextmanager
def installed(contract_path: Callable[..., Any]) -> Iterator[None]:
    """A context in which torch takes this function for that of an installed opt_einsum."""
    names = inspect.unwrap(torch.backends.opt_einsum.get_opt_einsum).__globals__
    changed = {
        "_opt_einsum": SimpleNamespace(contract_path=contract_path),
        "enabled": True,
        "is_available": lambda: True,
    }
    before = {name: names[name] for name in changed}
    names.update(changed)
    try:
        yield
    finally:
        names.update(before)


def _pairs_from_the_left(equation: str, *operands: Any, shapes: bool = False, **_: Any) -> Any:
    """A path as opt_einsum gives it, which reads all sizes as numbers."""
    sizes = [int(size) for operand in operands for size in (operand if shapes else operand.shape)]
    assert all(sizes) and "->" in equation
    return [(0, 1)] * (len(operands) - 1), ""
