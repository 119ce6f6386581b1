"""Captures `one_hot` once for all numbers of classes.

Torch's operator takes that number as a constant, so that each size which it follows from, as the capacity
of experts follows from the batch, would be a capture. Without a number Dynamo breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import SymNodeVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch.nn import functional

from ortmodule_py.dynamo.content_sizes import read_size
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def places(x: Tensor) -> Tensor:
        index = torch.arange(len(x)) // 2
        return functional.one_hot(index, (len(x) + 1) // 2).float().mT @ x

    same = trial(lambda: places, *((torch.ones(rows, 2),) for rows in (4, 6, 8, 10)))
    return same and trial.captures <= 2


@patch(
    "one_hot",
    "`one_hot` with a number of classes that changes needs no new capture.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is functional.one_hot:
        found = _of_any_size(tx, *args, **kwargs)
        if found is not None:
            return found
    return call(self, tx, args, kwargs)


def _of_any_size(tx: Any, index: Any = None, num_classes: Any = None) -> VariableTracker | None:
    """The result for a number of classes that changes; None for other calls."""
    if index is None or not index.is_tensor():
        return None
    if index.as_proxy().node.meta["example_value"].dtype is not torch.int64:
        return None  # an error
    if num_classes is None or num_classes.is_constant_match(-1):
        num_classes = read_size(tx, index, _count)
    if not isinstance(num_classes, SymNodeVariable):
        return None
    return UserFunctionVariable(_one_hot).call_function(tx, [index, num_classes], {})


def _count(index: Tensor) -> int:
    return int(index.max()) + 1


def _one_hot(index: Tensor, classes: int) -> Tensor:
    torch._assert_async((index >= 0).all(), "Class values must be non-negative.")
    torch._assert_async((index < classes).all(), "Class values must be smaller than num_classes.")
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).long()
