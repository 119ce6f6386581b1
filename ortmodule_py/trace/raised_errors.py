"""Errors that forward raises if a condition on data holds: `if (x < 0).any(): raise ValueError(...)`.

Such a condition is a check of the piece, like an assertion, and its failure raises the user's error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

errors: dict[str, Callable[[], BaseException]] = {}
"""By key: makes the error that the user's line raises. A key names the line and the error."""


@has_side_effect
def raise_unless(ok: Tensor, key: str) -> None:
    """Raise the error with this key if `ok` is false."""
    if not bool(ok):
        raise errors[key]()


def check(ok: Tensor, key: str) -> None:
    """`raise_unless` in a trace."""
    torch.ops.aten._assert_async.msg(ok, key)


def user_error(arguments: tuple[Any, ...]) -> Callable[[], BaseException] | None:
    """The error of an assertion with these arguments behind its condition; None for that of torch."""
    return errors.get(arguments[0]) if arguments else None
