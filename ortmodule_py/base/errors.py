"""The error of a piece that cannot be compiled, and source locations in the user's program."""

from __future__ import annotations

import re

import torch
from torch import fx

Origin = tuple[str, str]
"""Path of the innermost module, and "file.py:line" in the user's code; either may be empty."""

_TORCH = torch.__path__[0]
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class CannotLower(Exception):
    """A piece of the program that cannot be compiled without a change of its results.

    The caller runs this piece in eager PyTorch and reports it.
    """

    def __init__(self, reason: str, origin: tuple[str, str] = ("", "")) -> None:
        super().__init__(reason)
        self.reason = reason
        self.origin = origin


def origin_of(node: fx.Node) -> Origin:
    """Path of the innermost module, and "file.py:line" of the innermost frame of the user's code."""
    module_path = ""
    stack = node.meta.get("nn_module_stack")
    if stack:
        innermost = list(stack.values())[-1][0]
        module_path = ".".join(_path_keys(innermost))
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    frames = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return module_path, f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def _path_keys(text: str) -> list[str]:
    """`L['self'].blocks[0].attn` and `L['self']._modules['blocks']._modules['0']` are both blocks, 0, ..."""
    keys = re.findall(r"[^\.\[\]']+", re.sub(r"^L\['[^']+'\]", "", text))
    return [key for key in keys if key not in ("__dict__", "_modules")]


def place(origin: Origin) -> str:
    """The origin in words; the path of a layer alone may be a bare number."""
    path, line = origin
    return ", ".join(part for part in (f"layer {path}" if path else "", line) if part)


def first_line(text: str) -> str:
    """The first line of a message."""
    return text.strip().partition("\n")[0]
