"""Captures `torch.block_diag` once for all sizes: torch reads them as numbers, so that each would be a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._dynamo.variables import TensorVariable, UserFunctionVariable
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _block_diag(*tensors: Tensor) -> Tensor:
    blocks = [t.reshape(1, 1) if t.dim() == 0 else t[None] if t.dim() == 1 else t for t in tensors]
    left, width = 0, sum(block.shape[1] for block in blocks)
    rows = []
    for block in blocks:
        right = width - left - block.shape[1]
        rows.append(functional.pad(block, (left, right)))
        left = left + block.shape[1]
    return torch.cat(rows)


def _probe(trial: Trial) -> bool:
    def twice(x: Tensor) -> Tensor:
        return torch.block_diag(x, x)

    given = ((torch.ones(rows, 2, requires_grad=True),) for rows in (4, 5, 7))
    return trial(lambda: twice, *given) and trial.captures == 1


@patch(
    "block_diag",
    "`torch.block_diag` needs no new capture for other sizes.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is torch.block_diag and not kwargs:
        given = [arg.realize() for arg in args]
        if given and all(isinstance(value, TensorVariable) for value in given):
            examples = [value.as_proxy().node.meta["example_value"] for value in given]
            if _change(examples):
                return UserFunctionVariable(_block_diag).call_function(tx, given, {})
    return call(self, tx, args, kwargs)


def _change(examples: Sequence[Tensor]) -> bool:
    """Whether these are matrices of one type, one of which has a size that changes."""
    alike = all(e.dim() <= 2 and e.dtype is examples[0].dtype for e in examples)
    return alike and any(isinstance(size, SymInt) for e in examples for size in e.shape)
