"""Transforms of torch.func that run in Python, with all frames below them."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch._functorch import apis, eager_transforms, vmap

from ortmodule_py.base.errors import CannotLower

_FILES = {module.__file__ for module in (apis, eager_transforms, vmap)}


class Transforms:
    """The transforms of one module that Dynamo cannot trace."""

    def __init__(self) -> None:
        self._reasons: dict[types.CodeType, CannotLower] = {}
        self._last: CannotLower | None = None
        self.in_python: set[types.CodeType] = set()
        """Functions that always run in Python, also where Dynamo would look at what they call."""

    def refuse(self, tx: Any, reason: CannotLower) -> None:
        """Run the outermost transform that Dynamo has inlined into `tx` in Python from now on."""
        self._last = reason
        inlined = []
        while tx is not None:
            inlined.append(tx.f_code)
            tx = getattr(tx, "parent", None)
        while inlined and inlined[-1].co_filename not in _FILES:
            inlined.pop()
        self._reasons.update(dict.fromkeys(inlined, reason))

    def run_in_python(self, codes: Iterable[types.CodeType]) -> None:
        """Run these functions in Python from now on, with all frames below them."""
        self.in_python.update(codes)

    def refused(self, code: types.CodeType) -> CannotLower | None:
        """Why this frame runs in Python, with all frames below it; None if Dynamo may trace it."""
        if torch._C._functorch.peek_interpreter_stack() is None:
            return self._reasons.get(code) if code.co_filename in _FILES else None
        return self._reasons.get(code, self._last)
