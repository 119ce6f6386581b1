"""Takes integers of numpy among the attributes of modules for constants, such as `self.hop = np.prod(strides)`.

Dynamo makes a tensor of each, so that the graph breaks where a size is computed with one. An attribute that
keeps changing stays a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import LocalSource
from torch._dynamo.variables import ConstantVariable

from ortmodule_py.dynamo.patches.numpy_numbers import of_numpy
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import capturing_compiler, patch

_VALUES = 4
"""Values for which an attribute is a constant before it is a tensor, as equal layers may have values of their own."""


class _Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hop = np.prod([2, 3])

    def forward(self, x: Tensor) -> Tensor:
        missing = math.ceil(x.shape[0] / self.hop) * self.hop - x.shape[0]
        return nn.functional.pad(x, (0, missing)) * 2


def _probe(trial: Trial) -> bool:
    same = trial(_Padded, *((torch.ones(size),) for size in (4, 5, 7, 8)))
    return same and not trial.graph_breaks


@patch(
    "numpy_attributes",
    "Sizes that are computed with integers of numpy in attributes of a module break no graph.",
    {(2, 13): "torch._dynamo.variables.builder:VariableBuilder._wrap"},
    probe=_probe,
    needed_by=None,
)
def _wrapped(wrap: Callable[..., Any], self: Any, value: Any) -> Any:
    if type(value) is not np.int64 or isinstance(self.source, LocalSource):
        return wrap(self, value)
    compiler: Any = capturing_compiler()
    values = compiler.log.number_reads[f"attribute {self.source.name}"]
    if str(value) not in values and len(values) >= _VALUES:
        return wrap(self, value)
    values.add(str(value))
    install_guard(self.source.make_guard(GuardBuilder.EQUALS_MATCH))
    return of_numpy(ConstantVariable.create(int(value)))
