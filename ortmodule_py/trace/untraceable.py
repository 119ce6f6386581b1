"""Why a call of the program cannot be traced, in terms of the program instead of the tracer's exception."""

from __future__ import annotations

import os
import re
import traceback

from torch._subclasses import fake_tensor
from torch.fx.experimental import symbolic_shapes

from ortmodule_py.base.errors import first_line

_READS_VALUES = (
    fake_tensor.DataDependentOutputException,
    symbolic_shapes.GuardOnDataDependentSymNode,
)
_NO_SHAPE_RULE = (
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedFakeTensorException,
)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NO_DERIVATIVE = re.compile(r"derivative for '?[^']+'? is not implemented|no autograd formula was")


def why_untraceable(call: str, error: Exception) -> str:
    """The rule that `call`, such as `bernoulli_`, breaks: `error` was raised when it was traced."""
    if (line := _line_of_ours(error)) is not None:
        rule = f"internal error, please report it: {error!r} at {line}"
    elif _NO_DERIVATIVE.search(str(error)) is not None:
        rule = "torch has no formula for it"
    elif isinstance(error, fake_tensor.DynamicOutputShapeException):
        rule = "the shape of its result depends on the values of a tensor"
    elif isinstance(error, _READS_VALUES):
        rule = "it needs values of a tensor, which are known only when the model runs"
    elif isinstance(error, _NO_SHAPE_RULE):
        rule = f"torch has no rule for the shapes of {getattr(error, 'func', 'its results')}"
    else:
        rule = f"torch cannot trace it without the values of tensors ({first_line(str(error))})"
    return f"{call}: {rule}"


def needs_values(error: BaseException) -> bool:
    """Whether a call could not be traced because torch reads values of tensors there."""
    return isinstance(error.__cause__, _READS_VALUES)


def _line_of_ours(error: Exception) -> str | None:
    """The line of this package that failed, if it was no call of torch or of the user that did."""
    if not isinstance(error, (AssertionError, AttributeError, LookupError, NameError)):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not os.path.abspath(frames[-1].filename).startswith(_PACKAGE + os.sep):
        return None
    return f"{os.path.relpath(frames[-1].filename, _PACKAGE)}:{frames[-1].lineno}"
