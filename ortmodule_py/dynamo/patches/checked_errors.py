"""Captures errors that forward raises for some data: `if torch.isnan(x).any(): raise ValueError("...")`.

Dynamo breaks the graph at the condition, except at an assertion with a constant text. Here the condition
becomes a check, whose failure raises the same error. Parts of its text that are computed read "...".
"""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import (
    ConstantVariable,
    SymNodeVariable,
    UserFunctionVariable,
    WithExitFunctionVariable,
)

from ortmodule_py.dynamo.graph_breaks import user_line
from ortmodule_py.dynamo.patches.conditions import decide
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.trace import raised_errors

_UNKNOWN = object()
_NULL = object()
LATER = "..."
"""Stands for what is computed in the text of an error."""
_REFUSED = ("JUMP", "STORE_", "DELETE_", "YIELD", "SWAP", "COPY", "KW_NAMES", "CALL_KW", "CALL_EX")
_GENERIC: Any = torch._dynamo.variables.GenericContextWrappingVariable


def _probe(trial: Trial) -> bool:
    def positive(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x.sqrt()

    same = trial(lambda: positive, (torch.ones(3),), (-torch.ones(3),), (torch.ones(2),))
    return same and not trial.graph_breaks


@patch(
    "checked_errors",
    "A condition on data that only decides whether an error is raised breaks no graph.",
    {(2, 13): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step"},
    probe=_probe,
    needed_by=None,
)
def _step(step: Callable[..., Any], self: Any) -> Any:
    decide(self, lambda value: _checked(self, value))
    return step(self)


def _probe_container(trial: Trial) -> bool:
    def first(*given: Tensor) -> Tensor:
        assert given, "nothing is given"
        return given[0] * 2

    return trial(lambda: first, (torch.ones(3), torch.ones(3))) and not trial.eager_pieces


@patch(
    "asserted_containers",
    "An assertion that a list, a dict or an object of the user's is not empty breaks no graph.",
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step",
    probe=_probe_container,
    needed_by=None,
)
def _step_over_assertion(step: Callable[..., Any], self: Any) -> Any:
    position = self.instruction_pointer
    if position is not None and self.stack and _is_assertion(self.instructions, position):
        value = self.stack[-1].realize()
        number = value.is_tensor() or isinstance(value, SymNodeVariable)
        if not number and not value.is_python_constant():
            # Dynamo makes a tensor of what it does not know to be constant.
            self.stack[-1] = UserFunctionVariable(_holds).call_function(self, [value], {})
    return step(self)


def _is_assertion(instructions: Any, position: int) -> bool:
    position += instructions[position].opname == "TO_BOOL"
    jump = instructions[position].opname
    if not jump.startswith("POP_JUMP") or not jump.endswith("_IF_TRUE"):
        return False
    following = instructions[position + 1]
    return following.opname == "LOAD_ASSERTION_ERROR" or following.argval is AssertionError


def _holds(value: Any) -> bool:
    return True if value else False  # noqa: SIM210 (Dynamo takes `bool` of fewer kinds)


def _checked(tx: Any, value: Any) -> bool | None:
    """The outcome of the condition without an error, which the graph checks; None without an error."""
    if value.as_proxy().node.meta["example_value"].numel() != 1:
        return None
    position = tx.instruction_pointer
    position += tx.instructions[position].opname == "TO_BOOL"
    jump = tx.instructions[position]
    if "JUMP" not in jump.opname or not jump.opname.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    on_jump = jump.opname.endswith("_IF_TRUE")
    places = ((tx.indexof[jump.target], not on_jump), (position + 1, on_jump))
    for start, outcome in places if "POP_JUMP" in jump.opname else ():
        make = _error_at(tx, start)
        if make is not None and not is_handled(tx, jump):
            holds = UserFunctionVariable(_as_expected).call_function(
                tx, [value, ConstantVariable.create(outcome)], {}
            )
            add_check(tx, holds, make, user_line())
            return outcome
    return None


def add_check(tx: Any, holds: Any, make: Callable[[], BaseException], line: str) -> None:
    """Let the graph check `holds`, and raise the error of this line if it is false."""
    key = f"{line}: {make()!r}"
    raised_errors.errors[key] = functools.partial(_noted, make, line)
    arguments = (holds.as_proxy(), key)
    tx.output.create_proxy("call_function", raised_errors.raise_unless, arguments, {})


def _noted(make: Callable[[], BaseException], line: str) -> BaseException:
    error = make()
    if sys.version_info >= (3, 11):
        error.add_note(f"raised by {line}, whose condition a compiled piece has checked at its end")
    return error


def _as_expected(value: Tensor, outcome: bool) -> Tensor:
    holds = value.detach().reshape(()) != 0
    return holds if outcome else holds.logical_not()


# ---- the error -----------------------------------------------------------------------------------


def _error_at(tx: Any, start: int) -> Callable[[], BaseException] | None:
    """Makes the error that the instructions from here raise; None if they do anything else."""
    stack: list[Any] = []
    for instruction in tx.instructions[start:]:
        name = instruction.opname
        if name == "RAISE_VARARGS":
            made = stack[-1] if stack and instruction.arg == 1 else None
            return _maker(made, []) if _is_error(made) else made if callable(made) else None
        try:
            if any(part in name for part in _REFUSED) or not _run(tx, instruction, stack):
                return None
        except IndexError:  # it reads what lies on the stack before
            return None
    return None


def _run(tx: Any, instruction: Any, stack: list[Any]) -> bool:
    """Follow one instruction; False if it does more than compute a value."""
    name, arg = instruction.opname, instruction.arg or 0
    if name in ("POP_TOP", "RETURN_VALUE", "RERAISE"):
        return False
    if name == "LOAD_GLOBAL":
        known = {**vars(builtins), **tx.f_globals}.get(instruction.argval, _UNKNOWN)
        stack += [_NULL, known] if sys.version_info >= (3, 11) and arg & 1 else [known]
    elif name == "LOAD_ASSERTION_ERROR":
        stack.append(AssertionError)
    elif name in ("LOAD_CONST", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT"):
        stack.append(instruction.argval)
    elif name == "PUSH_NULL":
        stack.append(_NULL)
    elif name in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(stack[-1], types.ModuleType):
        stack[-1] = getattr(stack[-1], instruction.argval, _UNKNOWN)
        stack += [_NULL] * _effect(instruction)
    elif name == "BUILD_STRING":
        parts = [stack.pop() for _ in range(arg)][::-1]
        stack.append("".join(part if isinstance(part, str) else LATER for part in parts))
    elif name in ("CALL", "CALL_FUNCTION"):
        _call(stack, arg)
    elif name != "PRECALL":
        _compute(stack, _effect(instruction))
    return True


def _effect(instruction: Any) -> int:
    """By how much an instruction makes the stack longer."""
    arg = instruction.arg
    if arg is None and instruction.opcode >= dis.HAVE_ARGUMENT:
        arg = 0  # Dynamo adds what loads the arguments of `super()` by name only
    return dis.stack_effect(instruction.opcode, arg)


def _call(stack: list[Any], count: int) -> None:
    items = [stack.pop() for _ in range(count)][::-1]
    # From Python 3.11 on, the function stands beside an empty place or the object of a method.
    places = [stack.pop() for _ in range(2 if sys.version_info >= (3, 11) else 1)]
    if _is_error(places[-1]) and places[0] not in (_NULL, places[-1]):
        items.insert(0, places[0])
    function = next(filter(_is_error, places), None)
    stack.append(_UNKNOWN if function is None else _maker(function, items))


def _compute(stack: list[Any], effect: int) -> None:
    """An instruction that computes a value from those on top of the stack."""
    if effect < 0:
        del stack[effect:]
    stack += [_UNKNOWN] * max(effect, 0)
    if stack:
        stack[-1] = _UNKNOWN


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _maker(error: Any, items: list[Any]) -> Callable[[], BaseException] | None:
    known = [LATER if item is _UNKNOWN or callable(item) else item for item in items]
    make = functools.partial(error, *known)
    try:
        make()
    except Exception:  # an error of the user's with other arguments
        return None
    return make


# ---- who handles it ------------------------------------------------------------------------------


def is_handled(tx: Any, instruction: Any) -> bool:
    """Whether a `try` or a context around the line may handle the error, in a function that is captured."""
    frame = tx
    while frame is not None:
        if any(_may_swallow(frame, block) for block in frame.block_stack):
            return True
        entry = getattr(instruction, "exn_tab_entry", None)
        if entry is not None:
            handler = frame.indexof[entry.target]
            if not _passes_on([i.opname for i in frame.instructions[handler:]]):
                return True
        frame = frame.parent
        instruction = getattr(frame, "current_instruction", None)
    return False


def _passes_on(names: list[str]) -> bool:
    """Whether the instructions of a handler are those of a `with`, or of a `finally` that raises the error again."""
    if names[:2] == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
        return True
    body = list(itertools.takewhile(lambda name: name != "RERAISE", names))
    ends = ("POP_EXCEPT", "RETURN", "EXC_MATCH", "JUMP_BACKWARD", "YIELD", "SEND")
    caught = body[:2] == ["PUSH_EXC_INFO", "POP_TOP"] or any(end in n for n in body for end in ends)
    return body[:1] == ["PUSH_EXC_INFO"] and not caught


def _may_swallow(frame: Any, block: Any) -> bool:
    """Whether a block may end an error: not a context of torch's, or a generator without an `except`."""
    context = _context(frame, block)
    if context is None:
        return True
    if not isinstance(context, _GENERIC):
        return False
    effects = frame.output.side_effects
    if not effects.has_pending_mutation_of_attr(context, "gen"):
        return True
    generator = effects.load_attr(context, "gen")
    code, inner = getattr(generator, "code", None), getattr(generator, "inline_tracer", None)
    if code is None or inner is None or _has_except(code):
        return True
    return any(_may_swallow(inner, block) for block in inner.block_stack)


def _context(frame: Any, block: Any) -> Any:
    """The context of a `with`; None of other blocks. In a function that another one calls only the stack has it."""
    if block.with_context is not None:
        return block.with_context
    below = frame.stack[block.stack_index - 1 : block.stack_index]
    return next((held.ctx for held in below if isinstance(held, WithExitFunctionVariable)), None)


def _has_except(code: types.CodeType) -> bool:
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    any_error = ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names)
    return any_error or any("EXC_MATCH" in name for name in names)
