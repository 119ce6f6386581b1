"""Methods of the original that are called through the wrapper: what they call runs on the engine.

`model.training_step(batch)` runs with the original as `self`, so that its class, `super()` and
private names are as without the wrapper. While it runs, `self(...)` and `self.forward(...)` of this
thread call the wrapper, if gradients are on. Without gradients they run in eager PyTorch: text
generation would be captured for each kind of cache. So do generators and coroutines, which run in
parts, and what a method computes itself or through submodules.

`self(...)` is redirected by the attribute that torch has for compiled modules, which no guard of
Dynamo reads. Dynamo does guard on `forward` in a module's dict, so it is there only while no forward
of the wrapper runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ortmodule_py.base.tree import tensors
from ortmodule_py.dynamo.hooks import has_hooks

_CALL = "_compiled_call_impl"
_IN_PARTS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Here(threading.local):
    """Of a thread: whether a method runs in it, and no forward of the wrapper inside of that."""

    within = False


class OriginalMethods:
    """The methods of one wrapper: `routed` makes one; the wrapper's own forward runs between
    `begin_forward()` and `end_forward()`."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._original: nn.Module = model._original
        self._here = _Here()
        self._lock = threading.RLock()
        self._methods = self._forwards = 0  # running now, in all threads
        self._placed: dict[str, _StandIn] = {}
        self._known: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

    def routed(self, name: str, method: types.MethodType) -> types.MethodType:
        """`method`, redirected if it is one of the user's own; otherwise as it is."""
        original, function = self._original, method.__func__
        if (
            method.__self__ is not original
            or (name.startswith("__") and name.endswith("__"))
            or type(original).__call__ is not nn.Module.__call__  # would run its own part twice
            or getattr(getattr(function, "__code__", None), "co_flags", 0) & _IN_PARTS
        ):
            return method
        # Cached while in use, so that `model.method == model.method`.
        known = self._known.get(function)
        if known is None:
            known = self._known[function] = _routed(self._model(), function)
        return types.MethodType(known, original)

    def wrapper(self) -> Any | None:
        """The wrapper, if calls of the original are redirected to it now."""
        if torch.compiler.is_dynamo_compiling() or not self._here.within:
            return None
        return self._model() if torch.is_grad_enabled() else None

    def begin_forward(self) -> bool:
        """A forward of the wrapper runs: calls of the original run the original. The result is for
        `end_forward`; no context manager, whose time counts in small models."""
        here = self._here
        before, here.within = here.within, False
        self._add(0, 1)
        return before

    def end_forward(self, before: bool) -> None:
        """The forward that began so has ended."""
        self._add(0, -1)
        self._here.within = before

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """A method runs: calls of the original are redirected."""
        here = self._here
        before, here.within = here.within, True
        self._add(1, 0)
        try:
            yield
        finally:
            self._add(-1, 0)
            here.within = before

    def _add(self, methods: int, forwards: int) -> None:
        with self._lock:
            self._methods += methods
            self._forwards += forwards
            if self._methods or self._placed:
                self._place(_CALL, self._methods > 0)
                self._place("forward", self._methods > 0 and self._forwards == 0)

    def _place(self, name: str, wanted: bool) -> None:
        own = self._original.__dict__
        if wanted and own.get(name) is None:  # the user's own value stays
            own[name] = self._placed[name] = _StandIn(self, self._original, name)
        elif not wanted:
            placed = self._placed.pop(name, None)
            if placed is not None and own.get(name) is placed:
                del own[name]


class _StandIn:
    """In the original's dict while a method runs; looks like the method that it replaces."""

    def __init__(self, methods: OriginalMethods, original: nn.Module, name: str) -> None:
        plain = original._call_impl if name == _CALL else original.forward
        functools.update_wrapper(self, plain)
        self.__self__, self.__func__ = original, getattr(plain, "__func__", None)
        self._ours = methods, name, plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        methods, name, plain = self._ours
        model = methods.wrapper()
        if model is None:
            return plain(*args, **kwargs)
        if name == _CALL:
            return model(*args, **kwargs)
        # The engine runs the original's hooks, which `original.forward` does not.
        return (
            plain(*args, **kwargs) if has_hooks(self.__self__) else model.forward(*args, **kwargs)
        )

    def __reduce__(self) -> Any:
        # A copy of the original gets the plain method; `copy` and `pickle` know the original already.
        return getattr, (self.__self__, self._ours[1])


for _function in (_StandIn.__call__, OriginalMethods.wrapper):
    # They run between the engine's call of the original and its forward: Dynamo must not capture them.
    torch._dynamo.eval_frame.skip_code(_function.__code__)


def _routed(model: Any, function: Callable[..., Any]) -> Any:
    """`function` for `MethodType`; it keeps the wrapper alive, as a bound method keeps its object."""

    @functools.wraps(function)
    def method(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling() or module is not model._original:
            return function(module, *args, **kwargs)
        with model._methods.within():
            result = function(module, *args, **kwargs)
        compiler = model._compiler
        unused = compiler.last is None and not model._engine_options.bypass
        if unused and any(t.grad_fn is not None for t in tensors(result)):
            compiler.log.report_without_effect(
                f"the method {function.__name__} does not call the model itself, so it runs"
            )
        return result

    return method
