"""Calls of Dynamo's graph that affect gradients, but are absent from a functional graph.

A piece is traced with gradients off, on tensors that require none. Grad modes are interpreted; other such
calls cannot be lowered; functions under `allow_in_graph`, which Dynamo does not inline, are monitored.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode, resolve_name

from ortmodule_py.base.errors import CannotLower, Origin

_set_grad_enabled = torch._C._set_grad_enabled
_enter_inference_mode = torch.autograd.grad_mode._enter_inference_mode
_exit_inference_mode = torch.autograd.grad_mode._exit_inference_mode
GRAD_MODES = (_set_grad_enabled, _enter_inference_mode, _exit_inference_mode)
"""Functions that turn gradients on and off in a graph."""


class GradMode:
    """Whether gradients are on at the current node of a graph."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._inference = False
        self._outside: list[bool] = []
        """For each transform of torch.func that computes gradients, whether they were on in front of it."""

    def keeps_gradients_of(self, value: Any) -> bool:
        """Whether the current node passes on the gradient of its operand `value`."""
        of_transform = torch._C._functorch.is_functorch_wrapped_tensor
        outside = all(self._outside) or not isinstance(value, Tensor) or of_transform(value)
        return self.enabled and outside

    def note_transform(self, target: Any) -> None:
        """Enter or leave a transform of torch.func, if `target` does: inside of it gradients are on."""
        if target is torch._C._functorch._grad_increment_nesting:
            self._outside.append(self.enabled)
        elif target is torch._C._functorch._grad_decrement_nesting:
            self._outside.pop()

    def state(self) -> tuple[bool, bool]:
        """Equal if gradients are on, and will be turned on, at the same nodes."""
        return self.enabled, self._inference

    def change(self, target: Any, argument: Any) -> Any:
        """Apply a call of one of `GRAD_MODES`; returns the call's result (for inference mode, the state to restore)."""
        before = self.enabled, self._inference
        if target is _enter_inference_mode:
            self.enabled, self._inference = not argument, bool(argument)
            return before
        if target is _exit_inference_mode:
            self.enabled, self._inference = argument
        else:
            self.enabled = bool(argument) and not self._inference
        return None


def turns_gradients_on(gm: fx.GraphModule) -> bool:
    """Whether a part of the graph turns gradients on."""
    return any(
        (node.target is _set_grad_enabled and node.args[0])
        or (node.target is _enter_inference_mode and not node.args[0])
        for node in gm.graph.nodes
    )


def has_tangents(gm: fx.GraphModule) -> bool:
    """Whether the graph uses forward-mode AD, whose tangents composite operators drop if they stay whole."""
    graphs = (graph for graph in gm.modules() if isinstance(graph, fx.GraphModule))
    targets = (node.target for graph in graphs for node in graph.graph.nodes)
    return any(getattr(target, "__name__", "").endswith("make_dual") for target in targets)


def refuse(target: Any, with_gradients: bool, origin: Origin) -> None:
    """Raise for a function or method whose effect on gradients is not traced.

    Raises:
        CannotLower: `target` is one.
    """
    if with_gradients and target in ("detach_", Tensor.detach_, torch.detach_):
        text = "detach_() ends a gradient in place; only detach() can be traced"
        raise CannotLower(text, origin)


def is_opaque(target: Any) -> bool:
    """Whether Dynamo did not inline this function, because of `torch.compiler.allow_in_graph`."""
    module = getattr(target, "__module__", None)
    if module is None or isinstance(target, (OpOverload, OpOverloadPacket)):
        return False  # functions and methods of torch in C++
    if module.startswith("torch._dynamo."):
        # Dynamo's wrapper of such a function is a closure.
        return "<locals>" in getattr(target, "__qualname__", "")
    return module.partition(".")[0] not in ("torch", "_operator", "builtins", "math")


@contextlib.contextmanager
def watched(opaque: Any, origin: Origin) -> Iterator[None]:
    """A context around a call of `opaque` that raises if it affects gradients or reads their state.

    Raises:
        CannotLower: it does, or it is a function in C++.
    """
    if isinstance(opaque, types.BuiltinFunctionType):
        raise _refusal(f"a function in C++, {opaque.__name__}", origin)
    function, thread = torch.autograd.Function, threading.get_ident()
    apply, is_grad_enabled = function.__dict__["apply"], torch.is_grad_enabled

    def watched_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            raise _refusal(f"an autograd.Function, {cls.__name__}", origin)
        return apply.__get__(None, cls)(*args, **kwargs)

    def watched_is_grad_enabled() -> bool:
        of_torch = sys._getframe(1).f_code.co_filename.startswith(_TORCH)
        if threading.get_ident() == thread and not of_torch:
            raise _refusal("torch.is_grad_enabled", origin)
        return is_grad_enabled()

    # A TorchFunctionMode does not get calls of these two.
    function.apply = classmethod(watched_apply)
    torch.is_grad_enabled = watched_is_grad_enabled
    try:
        with _Watch(origin):
            yield
    finally:
        function.apply = apply
        torch.is_grad_enabled = is_grad_enabled


_TORCH = torch.__path__[0]


def _refusal(what: str, origin: Origin) -> CannotLower:
    return CannotLower(f"a function under allow_in_graph calls {what}", origin)


class _Watch(TorchFunctionMode):
    """Monitors all calls of torch's functions, also those without tensors."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin

    def __torch_function__(
        self, func: Any, classes: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled():
            raise _refusal("torch.inference_mode", self.origin)
        if func in _ON_GRADIENTS:
            raise _refusal(resolve_name(func) or getattr(func, "__name__", str(func)), self.origin)
        return func(*args, **(kwargs or {}))


def _properties(*names: str) -> list[Callable[..., Any]]:
    of_tensors = (getattr(Tensor, name) for name in names)
    accessors = (getattr(p, a, None) for p in of_tensors for a in ("__get__", "__set__"))
    return [accessor for accessor in accessors if accessor is not None]


_ON_GRADIENTS = {
    _set_grad_enabled,
    torch.detach_,
    torch.autograd.grad,
    torch.autograd.backward,
    Tensor.backward,
    Tensor.detach_,
    Tensor.register_hook,
    Tensor.requires_grad_,
    Tensor.retain_grad,
    Tensor.set_,
    Tensor.data.__set__,
    *_properties("requires_grad", "grad", "grad_fn", "is_leaf"),
}
