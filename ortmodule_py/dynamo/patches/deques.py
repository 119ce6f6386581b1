"""Tells Dynamo how long a user's `collections.deque` may become, which it takes for unlimited.

What changes a deque with a limit is then refused, and eager PyTorch runs it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import guards
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import builder

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch how Dynamo takes up lists and their like, which is one private method of torch."""
    made_by: Any = getattr(builder, "VariableBuilder", None)
    wrap_listlike = getattr(made_by, "wrap_listlike", None)
    if wrap_listlike is None:
        return  # another torch, of which nothing is known

    @functools.wraps(wrap_listlike)
    def wrap(self: Any, value: Any) -> Any:
        made = wrap_listlike(self, value)
        of_deque = type(value) is collections.deque and hasattr(made, "maxlen")
        if of_deque and find_compiler(getattr(self.tx.output, "compiler_fn", None)) is not None:
            limit = AttrSource(self.source, "maxlen")
            guards.install_guard(limit.make_guard(guards.GuardBuilder.CONSTANT_MATCH))
            made.maxlen = torch._dynamo.variables.ConstantVariable.create(value.maxlen)
        return made

    made_by.wrap_listlike = wrap
