"""What Dynamo raises where it fails, and which of it is for the user."""

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
    # These Dynamo lets through as they are, its own as well as those of what it calls.
    AssertionError,
    IndexError,
    symbolic_shapes.ConstraintViolationError,
    symbolic_shapes.GuardOnDataDependentSymNode,
)
"""Dynamo fails on a function, be it by a mistake of the user's or of its own. The module's own code may
raise some of them, too, when it runs."""


def ours_within(error: Exception) -> Exception:
    """The engine's own error without Dynamo's wrapping, which hides the sentence that matters."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, _C.ORTModuleError) else error
