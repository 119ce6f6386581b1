"""Captures assignments of a buffer that was made by `nn.Buffer`, as `self.pos = self.pos.to(x.dtype)`.

The module asks such a tensor whether it is persistent. `to` returns the buffer itself where nothing changes, but
Dynamo then has a value without that attribute, at which the graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.variables import ConstantVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import OLDEST, patch


class _Placed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Buffer(torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.positions = self.positions.to(x.dtype)
        return x + self.positions


def _probe(trial: Trial) -> bool:
    return trial(_Placed, (torch.ones(3),), (torch.ones(2, 3),)) and not trial.graph_breaks


@patch(
    "buffer_objects",
    "Buffers made by `nn.Buffer` are assigned without a graph break.",
    {
        OLDEST: "torch._dynamo.variables.tensor:TensorVariable.var_getattr",
        (2, 14): "torch._dynamo.variables.tensor:TensorVariable.tp_getattro_impl",
    },
    probe=_probe,
    needed_by=None,
)
def _attribute(read: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if name == "persistent":
        example = self.as_proxy().node.meta.get("example_value")
        known = vars(example).get(name) if isinstance(example, nn.Buffer) else None
        if isinstance(known, bool):
            return ConstantVariable.create(known)
    return read(self, tx, name)
