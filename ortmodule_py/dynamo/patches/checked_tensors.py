"""Captures checks of a whole tensor: `torch._check_tensor_all`, and transformers' `torch_compilable_check`.

Models of images and text count their placeholders by the latter. Dynamo reads the outcome as a number, which
breaks the graph. Here the graph checks it, as the condition of an `if` that only raises an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import (
    CellVariable,
    ConstantVariable,
    SymNodeVariable,
    UserFunctionVariable,
)

from ortmodule_py.dynamo.graph_breaks import user_line
from ortmodule_py.dynamo.patches.checked_errors import LATER, add_check, is_handled
from ortmodule_py.dynamo.patches.masked_updates import symbol_of
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_WITH_TYPE = torch._check_tensor_all_with
_CHECKS = (torch._check_tensor_all, _WITH_TYPE)
_OF_TRANSFORMERS = "torch_compilable_check"
"""While it is traced it drops type and text of the error, which are its arguments."""
_METHODS = ("LOAD_ATTR", "LOAD_METHOD")
_FORMATS = ("FORMAT_VALUE", "FORMAT_SIMPLE")


def _probe(trial: Trial) -> bool:
    def root(x: Tensor) -> Tensor:
        torch._check_tensor_all(x > 0)
        return x.sqrt()

    same = trial(lambda: root, (torch.ones(3),), (-torch.ones(3),), (torch.ones(2),))
    return same and not trial.graph_breaks


@patch(
    "checked_tensors",
    "Checks of all elements of a tensor break no graph.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value in _CHECKS and not kwargs:
        error, rest = (args[0], args[1:]) if self.value is _WITH_TYPE else (None, args)
        if rest and _checked(tx, error, *rest):
            return ConstantVariable.create(None)
    return call(self, tx, args, kwargs)


def _checked(tx: Any, error: Any, condition: Any, text: Any = None) -> bool:
    """Whether the graph checks this condition from now on."""
    known = condition.is_tensor() and condition.as_proxy().node.meta["example_value"]
    if not isinstance(known, Tensor) or known.dtype is not torch.bool:
        return False
    frame = tx
    if tx.f_code.co_name == _OF_TRANSFORMERS:
        error, text = (_argument(tx, name) for name in ("error_type", "msg"))
        frame = tx.parent
    kind = error.as_python_constant() if error is not None else RuntimeError
    if is_handled(frame, frame.current_instruction):
        return False
    holds = UserFunctionVariable(_all).call_function(tx, [condition], {})
    add_check(tx, holds, functools.partial(kind, _text(text)), user_line())
    return True


def _argument(tx: Any, name: str) -> Any:
    found = tx.symbolic_locals.get(name)
    if isinstance(found, CellVariable):  # a function inside of this one reads it, too
        return tx.output.side_effects.load_cell(found)
    return found


def _all(condition: Tensor) -> Tensor:
    return condition.detach().all()


def _text(given: Any) -> str:
    """The text of the error; what is computed from tensors is left out."""
    if given is None:
        return "Expected cond to be True, but got False."
    template = getattr(given, "format_string", None)
    if template is not None:
        parts = [_constant(value) for value in given.sym_args]
        named = {name: _constant(value) for name, value in given.sym_kwargs.items()}
        return str(template.format(*parts, **named))
    if given.is_python_constant() and isinstance(given.as_python_constant(), str):
        return str(given.as_python_constant())
    try:
        return str(given.get_function()())
    except Exception:  # a function of values that only the graph knows
        return LATER


def _constant(value: Any) -> Any:
    return value.as_python_constant() if value.is_python_constant() else LATER


# ---- arguments of transformers' check ----------------------------------------------------------------


def _probe_arguments(trial: Trial) -> bool:
    def torch_compilable_check(condition: Any, _: str) -> None:
        if torch.compiler.is_compiling():
            torch._check_tensor_all(condition)

    def scattered(x: Tensor, values: Tensor) -> Tensor:
        torch_compilable_check(x[x < 0].numel() == values.numel(), f"not {len(values)}")
        return x.masked_scatter(x < 0, values)

    x = torch.tensor([1.0, -1.0, -2.0])
    given = ((x, torch.ones(2)), (torch.cat([x, x]), torch.ones(4)), (x.repeat(3), torch.ones(6)))
    return trial(lambda: scattered, *given) and not trial.graph_breaks and trial.captures <= 2


@patch(
    "check_arguments",
    "`x[mask].numel()` and sizes in the text of transformers' check break no graph and are no constants.",
    {(2, 13): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step"},
    probe=_probe_arguments,
    needed_by=None,
)
def _step(step: Callable[..., Any], self: Any) -> Any:
    position = self.instruction_pointer
    following = self.instructions[position : position + 6] if position is not None else []
    if following and following[0].opname in _FORMATS:
        # Dynamo would make the size a constant for a text that nobody reads.
        if isinstance(self.stack[-1], SymNodeVariable) and _calls_check(self.stack):
            self.stack[-1] = ConstantVariable.create(LATER)
    elif following and symbol_of(following[0]) == "[]" and _calls_check(self.stack[-4:-2]):
        length = _length_of_count(following)
        if length and _selects(*self.stack[-2:]):
            count = UserFunctionVariable(_count).call_function(self, self.stack[-2:], {})
            self.stack[-2:] = [count]
            self.instruction_pointer = position + length
            return True
    return step(self)


def _calls_check(stack: list[Any]) -> bool:
    """Whether the call for which arguments are on the stack is that of transformers' check."""
    functions = [value for value in stack if isinstance(value, UserFunctionVariable)]
    return any(function.get_name() == _OF_TRANSFORMERS for function in functions)


def _length_of_count(instructions: list[Any]) -> int:
    """The number of instructions of `[...].numel()`; 0 for another line."""
    names = [instruction.opname for instruction in instructions]
    if names[1] not in _METHODS or instructions[1].argval != "numel":
        return 0
    end = next((place for place, name in enumerate(names) if name in ("CALL", "CALL_METHOD")), 0)
    without = not instructions[end].arg and not set(names[2:end]) - {"PRECALL", "PUSH_NULL"}
    return end + 1 if end and without else 0


def _selects(tensor: Any, mask: Any) -> bool:
    tensor, mask = tensor.realize(), mask.realize()
    if not tensor.is_tensor() or not mask.is_tensor():
        return False
    x, chosen = (value.as_proxy().node.meta["example_value"] for value in (tensor, mask))
    same = 0 < chosen.dim() <= x.dim() and tuple(x.shape[: chosen.dim()]) == tuple(chosen.shape)
    return bool(same and chosen.dtype is torch.bool)


def _count(tensor: Tensor, mask: Tensor) -> Tensor:
    return mask.sum() * tensor.shape[mask.dim() :].numel()
