"""Methods of the original that are called through the wrapper: what they call is the wrapper.

`model.training_step(batch)` keeps the original as its `self`, so that its class, `super()` and private
names are what they were. While it runs, `self(...)` and `self.forward(...)` of this thread go to the
wrapper where gradients are on. Without gradients they stay eager: what generates text token by token
would be captured for each kind of cache.

`self(...)` is led there by what torch has for compiled modules, which no guard of Dynamo's looks at. They
do look at a `forward` in a module's dict: it lies there only while no forward of the wrapper runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import nn

from ortmodule_py.dynamo.hooks import has_hooks
from ortmodule_py.wrap.direct_methods import DirectMethods

_CALL = "_compiled_call_impl"
_LATER = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Functions that run piece by piece among others of the thread; they stay eager."""


class OriginalMethods:
    """Of one wrapper. `routed` makes a method; a forward of the wrapper runs in `apart()`."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._original: nn.Module = model._original
        self._here = threading.local()
        self._direct = DirectMethods()
        self._lock = threading.RLock()
        self._methods = self._forwards = 0  # that run now, in all threads
        self._stand_ins: dict[str, _StandIn] = {}
        self._known: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

    def routed(self, name: str, method: types.MethodType) -> types.MethodType:
        """`method`, whose calls of the module go to the wrapper, where it is one of the user's own."""
        original, function = self._original, method.__func__
        if (
            method.__self__ is not original
            or (name.startswith("__") and name.endswith("__"))
            or type(original).__call__ is not nn.Module.__call__  # would do its own part twice
            or getattr(getattr(function, "__code__", None), "co_flags", 0) & _LATER
        ):
            return method
        # Known while somebody holds it, so that `model.method == model.method`.
        known = self._known.get(function)
        if known is None:
            known = self._known[function] = _routed(self._model(), function)
        return types.MethodType(known, original)

    def wrapper(self) -> Any | None:
        """The wrapper, if a call of the module goes there now."""
        if torch.compiler.is_dynamo_compiling() or not getattr(self._here, "within", False):
            return None
        return self._model() if torch.is_grad_enabled() else None

    def within(self) -> contextlib.AbstractContextManager[None]:
        """A method runs."""
        return self._counting(True, 1, 0)

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a method, which is said to be eager where no forward of the wrapper ran in it."""
        forwards = self._forwards_here()
        with self.within():
            result = function(self._original, *args, **kwargs)
        name = getattr(function, "__name__", "")
        if forwards == self._forwards_here() and name not in self._direct.known:
            self._direct.look(self._model(), name, (*args, *kwargs.values()), result)
        return result

    def _forwards_here(self) -> int:
        """How many forwards of the wrapper began in this thread."""
        return getattr(self._here, "forwards", 0)

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """A forward of the wrapper runs, for which the original is the original."""
        self._here.forwards = self._forwards_here() + 1
        return self._counting(False, 0, 1)

    @contextlib.contextmanager
    def _counting(self, within: bool, methods: int, forwards: int) -> Iterator[None]:
        before = getattr(self._here, "within", False)
        self._here.within = within
        self._add(methods, forwards)
        try:
            yield
        finally:
            self._add(-methods, -forwards)
            self._here.within = before

    def _add(self, methods: int, forwards: int) -> None:
        with self._lock:
            self._methods += methods
            self._forwards += forwards
            if self._methods or self._stand_ins:
                self._put(_CALL, self._methods > 0)
                self._put("forward", self._methods > 0 and self._forwards == 0)

    def _put(self, name: str, wanted: bool) -> None:
        own, mine = self._original.__dict__, self._stand_ins.get(name)
        if not wanted:
            if mine is not None and own.get(name) is mine:
                del own[name]
            self._stand_ins.pop(name, None)
        elif mine is None and own.get(name) is None:  # what the user put there stays
            own[name] = self._stand_ins[name] = _StandIn(self, self._original, name)


class _StandIn:
    """Lies in the original's dict while a method runs."""

    def __init__(self, methods: OriginalMethods, original: nn.Module, name: str) -> None:
        plain = original._call_impl if name == _CALL else original.forward
        functools.update_wrapper(self, plain)
        self._ours = methods, original, name, plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        methods, original, name, plain = self._ours
        model = methods.wrapper()
        if model is None:
            return plain(*args, **kwargs)
        if name == _CALL:
            return model(*args, **kwargs)
        # The engine runs the hooks of the original, which a call of its forward does not.
        return plain(*args, **kwargs) if has_hooks(original) else model.forward(*args, **kwargs)

    @property
    def __self__(self) -> nn.Module:
        return self._ours[1]

    @property
    def __func__(self) -> Any:
        return getattr(self._ours[3], "__func__", None)

    def __reduce__(self) -> Any:
        # A copy has what its class has; `copy` and `pickle` know the module already.
        return getattr, (self._ours[1], self._ours[2])


for _function in (_StandIn.__call__, OriginalMethods.wrapper):
    # Between the engine's call of the original and its forward: not a function to be captured.
    torch._dynamo.eval_frame.skip_code(_function.__code__)


def _routed(model: Any, function: Callable[..., Any]) -> Any:
    """`function` for `MethodType`; it keeps the wrapper alive, as any method keeps its object."""

    def stays(module: Any) -> bool:
        return torch.compiler.is_dynamo_compiling() or module is not model._original

    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def steps(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            generator = function(module, *args, **kwargs)
            return (
                yield from generator if stays(module) else _each_within(model._methods, generator)
            )

        return steps

    @functools.wraps(function)
    def method(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        if stays(module):
            return function(module, *args, **kwargs)
        return model._methods.run(function, args, kwargs)

    return method


def _each_within(
    methods: OriginalMethods, generator: Generator[Any, Any, Any]
) -> Generator[Any, Any, Any]:
    """The same generator, each step of which is a part of the method; between them it is not."""
    proceed, given = generator.send, None
    while True:
        try:
            with methods.within():
                item = proceed(given)
        except StopIteration as end:
            return end.value
        try:
            proceed, given = generator.send, (yield item)
        except GeneratorExit:
            with methods.within():
                generator.close()
            raise
        except BaseException as error:
            proceed, given = generator.throw, error
