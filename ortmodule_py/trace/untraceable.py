"""Why a call of the program cannot be traced, in terms of the program instead of the tracer's exception."""

from __future__ import annotations

import re

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
_NO_DERIVATIVE = re.compile(r"derivative for '?[^']+'? is not implemented|no autograd formula was")


def why_untraceable(call: str, error: Exception) -> str:
    """The rule that `call`, such as `bernoulli_`, breaks: torch raised `error` when it was traced."""
    if _NO_DERIVATIVE.search(str(error)) is not None:
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
