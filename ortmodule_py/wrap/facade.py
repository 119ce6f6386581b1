"""The class of a wrapper, which follows that of its original, and the wrapper's own attributes.

Some libraries read the signature of `forward` from the class of a model, not from the model.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

# Methods that return `self`. If the original's class overrides one, the override runs.
_RETURN_SELF = (
    "to",
    "to_empty",
    "cpu",
    "cuda",
    "type",
    "float",
    "double",
    "half",
    "bfloat16",
    "train",
    "eval",
    "share_memory",
)
# Hooks registered on the wrapper do not go to the original.
_OWN_HOOKS = tuple(name for name in vars(nn.Module()) if "forward_" in name or "backward_" in name)

SHARDING = "torch.distributed.fsdp"
"""The package of `fully_shard` and `replicate`."""
_sharded_classes: weakref.WeakKeyDictionary[type[nn.Module], dict[Any, type]] = (
    weakref.WeakKeyDictionary()
)
_classes: weakref.WeakKeyDictionary[type[nn.Module], dict[type, type]] = weakref.WeakKeyDictionary()


def class_like(base: type[Any], original: type[nn.Module]) -> type[Any]:
    """A subclass of `base` with the name of the original's class, the signature of its `forward`, and
    its overrides of the methods that return `self`."""
    known = _classes.setdefault(original, {})
    if base in known:
        return known[base]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return base.forward(self, *args, **kwargs)

    forward.__doc__ = original.forward.__doc__
    with contextlib.suppress(TypeError, ValueError):
        forward.__signature__ = inspect.signature(original.forward)  # type: ignore[attr-defined]
    name = f"{base.__name__}[{original.__name__}]"
    members = {"forward": forward, "__module__": base.__module__}
    for method in _RETURN_SELF:
        if getattr(original, method) is not getattr(nn.Module, method):
            members[method] = _returning_self(method, getattr(original, method))
    known[base] = type(name, (base,), members)
    return known[base]


def put_class(model: Any) -> None:
    """Give a wrapper the class that follows its original's."""
    original = type(model._original)
    cls = class_like(model._base, original)
    # Libraries that save or train a model by methods of its class (transformers, peft, Lightning) use
    # `isinstance` first.
    shown = any(hasattr(original, name) for name in ("save_pretrained", "configure_optimizers"))
    if shown or parametrize.is_parametrized(model._original):
        cls = _showing_the_original(cls)
    _set_type(model, cls)


def assign_class(model: Any, given: type[Any]) -> None:
    """`model.__class__ = given`, as parametrizations assign it: applied to the original.

    They subclass the current class, and later add properties to it or restore the old one. From now on
    `model.__class__` is the original's class.

    `fully_shard` adds a class with methods in front; equal originals get the same class, as Dynamo's
    guards compare it.

    Raises:
        TypeError: `given` is not a subclass of the wrapper's class that adds only that.
    """
    original, own = model._original, type(model)
    if not issubclass(given, model._base):
        original.__class__ = given
        put_class(model)
        return
    *added, last = given.__bases__
    if last is not own or any(not cls.__module__.startswith(SHARDING) for cls in added):
        raise TypeError(
            f"[ORTModule] the class must stay {own.__name__}, but found that it is set to "
            f"{given.__name__}; do this to the original module, before it is wrapped"
        )
    members = {k: v for k, v in vars(given).items() if k not in ("__dict__", "__weakref__")}
    name = given.__name__.replace(own.__name__, type(original).__name__)
    if added:
        known = _sharded_classes.setdefault(type(original), {})
        bases = (*added, type(original))
        original.__class__ = known.setdefault(bases, type(name, bases, members))
        # Not the original's class: Dynamo would call its forward without the original's hooks.
        _set_type(model, given)
        return
    if not hasattr(type(original), "__deepcopy__"):
        # torch adds one where the class has none; the wrapper's class has one.
        members.setdefault("__deepcopy__", _plain_copy)
    original.__class__ = type(name, (type(original),), members)
    _set_type(model, _showing_the_original(class_like(model._base, type(original))))


def _showing_the_original(cls: type[Any]) -> type[Any]:
    """A subclass whose instances report the original's class as their `__class__`."""
    known: type[Any] | None = vars(cls).get("_showing")
    if known is not None:
        return known
    shown = property(lambda model: type(model._original))
    # `pickle` would look `__reduce_ex__` up in the reported class.
    members = {"__class__": shown, "__reduce_ex__": lambda model, protocol: model.__reduce__()}
    made = type(cls.__name__, (cls,), members | {"__module__": cls.__module__})
    cls._showing = made
    return made


def _set_type(model: Any, cls: type[Any]) -> None:
    vars(object)["__class__"].__set__(model, cls)  # `__class__` may be a property


def _plain_copy(module: Any, memo: dict[int, Any]) -> Any:
    """A deep copy of a module whose class cannot be pickled, which parametrizations forbid."""
    cls: Any = type(module)
    copied = cls.__new__(cls)
    memo[id(module)] = copied
    copied.__dict__ = copy.deepcopy(module.__dict__, memo)
    return copied


def _returning_self(name: str, override: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(override)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._call_original(name, *args, **kwargs)

    return method


def is_own_forward(model: Any, value: object) -> bool:
    """Whether `value` is the wrapper's own forward as a bound method."""
    known = (type(model).forward, model._base.forward)
    return (
        isinstance(value, types.MethodType) and value.__self__ is model and value.__func__ in known
    )


def own_state(model: Any) -> dict[str, Any]:
    """What a copy of a wrapper needs besides the original: hooks, a replaced forward, and the wrapper's
    own forward where it is stored under another name."""
    return {
        name: value
        for name, value in model.__dict__.items()
        if name in _OWN_HOOKS or name == "forward" or is_own_forward(model, value)
    }


class OriginalFace:
    """Special methods that the original answers: indexing of containers such as `nn.Sequential`."""

    if TYPE_CHECKING:  # torch.jit.script reads annotations of classes
        _original: Any

    def __repr__(self) -> str:
        return f"ORTModule({self._original!r})"

    def __prepare_scriptable__(self) -> nn.Module:
        return self._original  # `torch.jit.script` compiles it instead

    def __getitem__(self, key: Any) -> Any:
        return self._original[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._original[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._original[key]

    def __iadd__(self, other: Any) -> Any:
        result = operator.iadd(self._original, other)
        return self if result is self._original else result

    def __len__(self) -> int:
        return len(self._original)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._original)

    def __contains__(self, item: Any) -> bool:
        return item in self._original

    def __bool__(self) -> bool:
        return bool(self._original)


def parameter_strides(module: nn.Module) -> list[tuple[int, ...] | None]:
    """Strides of all parameters; None for those of lazy layers, which have no shape yet."""
    return [None if is_lazy(p) else p.stride() for p in module.parameters()]
