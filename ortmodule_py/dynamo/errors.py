"""The exceptions that Dynamo raises when it fails."""

from __future__ import annotations

import traceback
import types
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator
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


def place_of_failure(error: BaseException) -> tuple[types.CodeType, int] | None:
    """The function on which Dynamo failed with this error, and the offset of the instruction there."""
    if not isinstance(error, torch._dynamo.exc.Unsupported):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # `f_locals` of others may hold the error.
        if frame.f_code is InstructionTranslator.run.__code__:
            translator = frame.f_locals["self"]
            return translator.f_code, translator.current_instruction.offset
    return None
