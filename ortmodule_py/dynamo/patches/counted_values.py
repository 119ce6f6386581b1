"""Captures `torch.bincount` where the number of its counts is known before the call.

Dynamo breaks the graph there, as the greatest value decides how many counts there are. It is known where
`minlength` bounds the values, as those of `argmin` and `topk` are bounded by the size that they index, and where
they follow from integers that are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.variables import ConstantVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortmodule_py.dynamo.content_sizes import read_size
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_KEEPS_VALUES = {
    *("clone", "contiguous", "detach", "expand", "flatten", "int", "long", "permute", "ravel"),
    *("reshape", "squeeze", "t", "to", "transpose", "unsqueeze", "view"),
}
_GIVES_INDICES = {"argmax", "argmin", "argsort", "multinomial"}
_GIVES_INDICES_TOO = {"kthvalue", "max", "median", "min", "mode", "sort", "topk"}
"""As their second result."""


def _probe(trial: Trial) -> bool:
    def used(x: Tensor, labels: Tensor) -> Tensor:
        counts = torch.bincount(x.argmax(1), minlength=x.shape[1])
        return counts * x.sum() + labels.bincount().sum()

    given = ((torch.rand(n, 3), torch.arange(n) % 4) for n in (4, 5, 7))
    return trial(lambda: used, *given) and not trial.graph_breaks


@patch(
    "bincount",
    "`torch.bincount` of indices with a `minlength` that bounds them, or of integers that are given, is captured.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    found = _counted(tx, *args, **kwargs) if self.value is torch.bincount else None
    return call(self, tx, args, kwargs) if found is None else found


@patch(
    "bincount as a method",
    "`x.bincount()` is captured as `torch.bincount` is.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.call_method"},
    probe=_probe,
    needed_by=None,
)
def _method(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    found = _counted(tx, self, *args, **kwargs) if name == "bincount" else None
    return call(self, tx, name, args, kwargs) if found is None else found


def _counted(
    tx: Any, input: Any = None, weights: Any = None, minlength: Any = None
) -> VariableTracker | None:
    """The counts; None for other calls."""
    if input is None or not input.is_tensor():
        return None
    weights = ConstantVariable.create(None) if weights is None else weights.realize()
    least = ConstantVariable.create(0) if minlength is None else minlength.realize()
    fake = input.as_proxy().node.meta["example_value"]
    if fake.dtype is not torch.int64 or fake.dim() != 1:
        return None
    number = least.as_proxy() if not least.is_python_constant() else least.as_python_constant()
    if isinstance(number, fx.Proxy):
        number = number.node.meta["example_value"]
    if not _is_below(input.as_proxy().node, number):
        count = read_size(tx, input, _count)
        if count is None:
            return None
        least = UserFunctionVariable(_greater).call_function(tx, [least, count], {})
    return UserFunctionVariable(_bincount).call_function(tx, [input, weights, least], {})


def _greater(first: int, second: int) -> int:
    return max(first, second)


def _count(values: Tensor) -> int:
    return int(values.max()) + 1 if values.numel() else 0


def _bincount(values: Tensor, weights: Tensor | None, count: int) -> Tensor:
    if weights is None:
        counts = torch.zeros(count, dtype=torch.int64, device=values.device)
        return counts.scatter_add(0, values, torch.ones_like(values))
    single = weights.dtype is torch.float32
    weights = weights.detach() if single else weights.detach().double()
    counts = torch.zeros(count, dtype=weights.dtype, device=values.device)
    return counts.scatter_add(0, values, weights)


# ---- bounds of indices ---------------------------------------------------------------------------


def _is_below(node: fx.Node, bound: int | torch.SymInt) -> bool:
    """Whether all values are indices of a dim of at most this size."""
    size = _indexed(node)
    return size is not None and statically_known_true(size <= bound)


def _indexed(node: fx.Node) -> int | torch.SymInt | None:
    """The size of the dim that the values are indices of; None if that is not known."""
    while _name(node) in _KEEPS_VALUES and isinstance(node.args[0], fx.Node):
        fake = node.meta.get("example_value")
        if not isinstance(fake, Tensor) or fake.dtype is not torch.int64 or fake._version:
            return None
        node = node.args[0]
    named = _name(node)
    if named == "getitem" and node.args[1] == 1 and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        named = _name(node) if _name(node) in _GIVES_INDICES_TOO else ""
    elif named not in _GIVES_INDICES:
        named = ""
    of = node.args[0] if named and node.args else None
    fake = of.meta.get("example_value") if isinstance(of, fx.Node) else None
    if not isinstance(fake, Tensor) or fake.dim() == 0:
        return None
    return _size_of(node, named, fake)


def _size_of(node: fx.Node, name: str, fake: Tensor) -> int | torch.SymInt | None:
    if name == "multinomial":
        return fake.shape[-1]
    position = 2 if name in ("topk", "kthvalue") else 1
    default = None if name in ("argmax", "argmin", "max", "min") else -1
    dim = node.args[position] if len(node.args) > position else node.kwargs.get("dim", default)
    if dim is None:
        return fake.numel()
    return fake.shape[dim] if isinstance(dim, int) else None


def _name(node: fx.Node) -> str:
    if not node.op.startswith("call"):
        return ""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
