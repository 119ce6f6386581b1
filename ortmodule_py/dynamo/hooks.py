"""Hooks of submodules that are registered after a capture.

Dynamo captures a module's hooks with the module. Guards on new hooks are an option, with a cost for each
module in each call; it is turned on with a module's first hook. Dynamo never guards on hooks of all
modules (`register_module_forward_hook`): while there are any, the original runs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as of_all_modules
from torch.utils.hooks import RemovableHandle


def hooks_of_all_modules() -> bool:
    """Whether hooks of all modules are registered."""
    # Spelled out, as it is asked for in each call.
    return bool(
        of_all_modules._global_forward_hooks
        or of_all_modules._global_forward_pre_hooks
        or of_all_modules._global_backward_hooks
        or of_all_modules._global_backward_pre_hooks
    )


def observer_of_calls() -> str | None:
    """An active observer of each module or operator, which would not see those of compiled pieces."""
    if hooks_of_all_modules():
        return "hooks of all modules, which are not captured"
    if torch._C._len_torch_dispatch_stack() > 0:
        # Under it, Dynamo skips the code of each function for good.
        return "a TorchDispatchMode is active, which would not see the engine's operators"
    return None


def has_hooks(module: nn.Module) -> bool:
    """Whether the module itself has hooks of forward or backward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_as_written(module: nn.Module) -> bool:
    """Whether arguments may be passed by name: no hook sees them, and the class's forward runs."""
    return not has_hooks(module) and "forward" not in vars(module)


class Hooks:
    """Detects the first hook of a module or of its submodules."""

    def __init__(self) -> None:
        self.found = False
        self._registered = -1
        self._on_module = False

    def appeared_in(self, module: nn.Module) -> bool:
        """Whether there are hooks now and were none before. Cheap while no hook is registered."""
        registered = RemovableHandle.next_id  # grows with each hook of the process
        if self.found or registered == self._registered:
            return False
        self._registered = registered
        # `modules()` of an inner ORTModule yields its original; the wrapper itself is only a child.
        parts = (p for part in module.modules() for p in (part, *part.children()))
        self.found = any(map(has_hooks, parts))
        return self.found

    def changed_on(self, module: nn.Module) -> bool:
        """Whether the module itself got its first hook or lost its last one since the last call."""
        before, self._on_module = self._on_module, has_hooks(module)
        return before != self._on_module
