"""Hooks of submodules that are registered after a capture.

Dynamo captures a module's hooks with the module, but looks for new ones at the next call only where
it is told to, and then at every call for every module. It is told so from a module's first hook on.
For hooks of all modules (`register_module_forward_hook`) it never looks: while there are any, the
original runs.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as of_all_modules
from torch.utils.hooks import RemovableHandle

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooks_of_all_modules() -> bool:
    """Whether there are hooks that fire for whatever module is called."""
    return bool(
        of_all_modules._global_forward_hooks
        or of_all_modules._global_forward_pre_hooks
        or of_all_modules._global_backward_hooks
        or of_all_modules._global_backward_pre_hooks
    )


def has_hooks(module: nn.Module) -> bool:
    """Whether this very module has hooks around its forward or backward."""
    return any(getattr(module, name) for name in _HOOKS)


class Hooks:
    """Whether a module or a submodule of it has had hooks."""

    def __init__(self) -> None:
        self.found = False
        self._registered = -1

    def appeared_in(self, module: nn.Module) -> bool:
        """Whether there are hooks now and were none before; as good as free while nobody adds any."""
        registered = RemovableHandle.next_id  # grows with every hook of the process
        if self.found or registered == self._registered:
            return False
        self._registered = registered
        # `modules` of a wrapper inside yields its original, not the wrapper, which only is a child.
        parts = (p for part in module.modules() for p in (part, *part.children()))
        self.found = any(map(has_hooks, parts))
        return self.found
