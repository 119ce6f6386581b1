"""Makes the sizes of a buffer symbols where forward replaces it by one of another size.

The membranes of spiking neurons and other states have the size of the batch. Dynamo takes all sizes of buffers
as constants, so that each batch would be a capture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.source import UnspecializedParamBufferSource

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import dynamo_output, patch


@dataclass
class _Sizes:
    """The sizes of a buffer at its last capture, and the dims where they have changed."""

    last: torch.Size
    changed: set[int] = field(default_factory=set)

    def now(self, sizes: torch.Size) -> None:
        if len(sizes) == len(self.last):
            self.changed |= {d for d, size in enumerate(sizes) if size != self.last[d]}
        else:
            self.changed.clear()
        self.last = sizes


_seen: weakref.WeakKeyDictionary[nn.Module, dict[str, _Sizes]] = weakref.WeakKeyDictionary()


class _State(nn.Module):
    state: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.zeros_like(x) if self.state.shape != x.shape else self.state
        self.state = self.state.detach() * 0.5 + x
        return self.state * 2


def _probe(trial: Trial) -> bool:
    sizes = (4, 4, 6, 6, 8, 8, 10, 10)
    return trial(_State, *((torch.ones(rows, 3),) for rows in sizes)) and trial.captures <= 4


@patch(
    "changing_buffers",
    "Buffers that forward replaces by others of the size of the batch need no capture for each size.",
    {(2, 13): "torch._dynamo.variables.builder:tensor_always_has_static_shape"},
    probe=_probe,
    needed_by=None,
)
def _is_static(ask: Callable[..., Any], tensor: Any, is_tensor: bool, tensor_source: Any) -> Any:
    found = ask(tensor, is_tensor, tensor_source)
    holder: Any = getattr(tensor_source, "base", None)
    of_torch = tensor_source.guard_source.is_unspecialized_builtin_nn_module()
    of_module = isinstance(holder, UnspecializedParamBufferSource) and holder.member == "_buffers"
    if not of_module or of_torch or not is_tensor:
        return found
    output: Any = dynamo_output()
    buffers = _seen.setdefault(output.resolve_source_value(holder.base), {})
    sizes = buffers.setdefault(str(tensor_source.index), _Sizes(tensor.shape))
    sizes.now(tensor.shape)
    if not sizes.changed:
        return found
    for dim in sizes.changed:
        if tensor.shape[dim] > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)
    return False, None
