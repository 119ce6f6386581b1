"""Hooks of submodules that are registered after a capture.

Dynamo captures a module's hooks with the module, but looks for new ones at the next call only where
it is told to, and then at every call for every module. It is told so from a module's first hook on.
"""

from __future__ import annotations

from torch import nn
from torch.utils.hooks import RemovableHandle

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
        self.found = any(getattr(part, name) for part in parts for name in _HOOKS)
        return self.found
