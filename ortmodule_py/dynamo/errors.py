"""The exceptions that Dynamo raises when it fails."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental import symbolic_shapes

from ortmodule_py import _C

_errors: Any = torch._dynamo.exc

RecompileLimit: type[Exception] = _errors.FailOnRecompileLimitHit
BackendCompilerFailed: type[Exception] = _errors.BackendCompilerFailed
CannotTrace: tuple[type[Exception], ...] = (
    _errors.TorchDynamoException,
    # Dynamo does not wrap these, whether from its own code or from a callee.
    AssertionError,
    IndexError,
    symbolic_shapes.ConstraintViolationError,
    symbolic_shapes.GuardOnDataDependentSymNode,
)
"""Dynamo fails on a function, by the user's mistake or its own. The module's code may also raise some of
them when it runs."""


def ours_within(error: Exception) -> Exception:
    """The engine's own error, if Dynamo has wrapped one: the wrapper hides its message."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, _C.ORTModuleError) else error
