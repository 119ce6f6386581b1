"""`fully_shard` (FSDP2) of a wrapper shards its original.

`fully_shard` marks the module that it is given, adds hooks to it and changes its class. All of these must
be the original's: `modules()` lists it, its hooks also run where it is called without the wrapper, and its
parameters are the ones that are gathered. The class is changed in `facade.assign_class`.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ortmodule_py.wrap.facade import SHARDING


class ShardedFace:
    """The methods of a wrapper by which `fully_shard` registers its hooks."""

    def register_forward_pre_hook(self, hook: Any, **kwargs: Any) -> Any:
        """Register a hook of the wrapper itself; one of `fully_shard` becomes a hook of the original."""
        return _receiver(self, hook).register_forward_pre_hook(hook, **kwargs)

    def register_forward_hook(self, hook: Any, **kwargs: Any) -> Any:
        """Register a hook of the wrapper itself; one of `fully_shard` becomes a hook of the original."""
        return _receiver(self, hook).register_forward_hook(hook, **kwargs)


def _receiver(model: Any, hook: object) -> Any:
    state = _state_behind(hook)
    return super(ShardedFace, model) if state is None else _sharded_original(model, state)


def _state_behind(hook: Any) -> Any | None:
    """The state of `fully_shard` or `replicate` that registers `hook`; None for other hooks."""
    while hook is not None:
        owner = getattr(hook, "__self__", None)
        if any(cls.__module__.startswith(SHARDING) for cls in type(owner).__mro__):
            return owner
        inner = getattr(hook, "__wrapped__", None)
        if inner is None and getattr(hook, "__module__", "").startswith(SHARDING):
            # The hooks of a group of modules are functions that enclose a method of their state.
            found = inspect.getclosurevars(hook).nonlocals.values()
            inner = next(filter(inspect.ismethod, found), None)
        hook = inner
    return None


def _sharded_original(model: Any, state: Any) -> nn.Module:
    """The original of `model`, to which `state` belongs from now on.

    `fully_shard` has entered the wrapper, and registers its hooks before it changes the class.
    """
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
    from torch.distributed._composable_state import _get_module_state, _insert_module_state

    original: nn.Module = model._original
    if _get_module_state(original) is not state:
        _insert_module_state(original, state)
        for key in (STATE_KEY, REGISTRY_KEY):
            vars(original)[key] = vars(model)[key]
        state._modules = tuple(original if m is model else m for m in state._modules)
    return original
