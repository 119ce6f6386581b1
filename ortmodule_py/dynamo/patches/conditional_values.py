"""Captures `if not torch.isfinite(x).all(): x = x.clamp(...)`: a condition on data that only replaces values.

Dynamo breaks the graph at the condition. Here both values are computed and the condition selects one, where the
lines under it consist of a few functions that are cheap and whose gradient is finite where its own is zero.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.bytecode_analysis import livevars_analysis
from torch._dynamo.exc import RestartAnalysis, Unsupported, UserError
from torch._dynamo.variables import ConstantVariable, UserFunctionVariable

from ortmodule_py.dynamo.patches.conditions import decide
from ortmodule_py.dynamo.patches.masked_updates import symbol_of
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, patch

_READ = {"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"}
_FOLLOWED = _READ | {
    *("CACHE", "CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_KW", "CALL_METHOD"),
    *("COMPARE_OP", "KW_NAMES"),
    *("LOAD_ATTR", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_SMALL_INT", "NOP", "PRECALL"),
    *("PUSH_NULL", "STORE_FAST", "UNARY_NEGATIVE"),
}
_NAMES = {
    *("abs", "clamp", "clamp_max", "clamp_min", "clip", "clone", "contiguous", "dtype", "eps"),
    *("finfo", "functional", "isfinite", "isinf", "isnan", "logical_and", "logical_not"),
    *("logical_or", "masked_fill", "max", "maximum", "min", "minimum", "nan_to_num", "neg", "nn"),
    *("relu", "tiny", "where"),
}
"""Attributes of torch, of tensors and of types that are read or called."""


def _probe(trial: Trial) -> bool:
    def bounded(x: Tensor) -> Tensor:
        y = x * 2
        if y.isinf().any():
            y = torch.clamp(y, -9.0, 9.0)
        return y * 3

    large = torch.tensor([1.0, torch.inf], requires_grad=True)
    given = ((torch.ones(3, requires_grad=True),), (large,))
    return trial(lambda: bounded, *given) and not trial.graph_breaks


@dataclass
class _Condition:
    """A condition under whose lines Dynamo is."""

    holds: Any
    on: bool
    """The value of `holds` with which the lines run."""
    start: int
    end: int
    before: dict[str, Any]
    """Local variables that the lines replace."""


_refused: weakref.WeakKeyDictionary[types.CodeType, set[int]] = weakref.WeakKeyDictionary()
"""Positions of conditions that are none of these, which a restarted capture leaves to Dynamo."""
_CURRENT = "_ortmodule_condition"
_PARTIAL = "should_compile_partial_graph"


@patch(
    "conditional_values",
    "A condition on data that only replaces values by others of their size breaks no graph.",
    {(2, 13): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step"},
    probe=_probe,
    needed_by=None,
)
def _step(step: Callable[..., Any], self: Any) -> Any:
    current = vars(self).get(_CURRENT)
    if current is None:
        decide(self, lambda value: _entered(self, value))
        return step(self)
    try:
        if self.instruction_pointer == current.end:
            _select(self, current)
        return step(self)
    except (Unsupported, UserError) as error:
        if _CURRENT not in vars(self):
            raise
        _refused.setdefault(self.f_code, set()).add(current.start)
        raise RestartAnalysis(restart_reason="a condition on data") from error


def _entered(tx: Any, value: Any) -> bool | None:
    """The outcome with which the lines under the condition run, if they only replace values; else None."""
    example = value.as_proxy().node.meta["example_value"]
    start = tx.instruction_pointer
    start += tx.instructions[start].opname == "TO_BOOL"
    jump = tx.instructions[start]
    if example.numel() != 1 or "POP_JUMP" not in jump.opname or jump.target is None:
        return None
    if not jump.opname.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    end = tx.indexof[jump.target]
    lines = tx.instructions[start + 1 : end]
    if start in _refused.get(tx.f_code, ()) or not lines or not _are_followed(tx, lines):
        return None
    stored = {i.argval for i in lines if i.opname == "STORE_FAST"}
    replaced = stored & livevars_analysis(tx.instructions, jump.target)
    before = {name: tx.symbolic_locals.get(name) for name in replaced}
    if not replaced or not all(_is_replaceable(tx, known) for known in before.values()):
        return None
    on = jump.opname.endswith("_IF_FALSE")
    vars(tx)[_CURRENT] = _Condition(value, on, start, end, before)
    # A graph break under the condition would leave code that takes it for true.
    vars(tx)[_PARTIAL] = lambda: False
    return on


def _are_followed(tx: Any, lines: list[Any]) -> bool:
    made: set[str] = set()
    for n, line in enumerate(lines):
        name = line.opname
        if name == "STORE_FAST":
            made.add(line.argval)
        elif name in _READ and line.argval not in made:
            if not _is_value(tx.symbolic_locals.get(line.argval)):
                return False
        elif name == "LOAD_GLOBAL":
            found = tx.f_globals.get(line.argval)
            if not isinstance(found, types.ModuleType) or not found.__name__.startswith("torch"):
                return False
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            if line.argval not in _NAMES:
                return False
        elif symbol_of(line) is not None:
            # The gradient of a sum is finite, and so is that of a product with a constant.
            constant = lines[n - 1].opname in ("LOAD_CONST", "LOAD_SMALL_INT")
            if symbol_of(line) not in ("+", "-", *(("*",) if constant else ())):
                return False
        elif name not in _FOLLOWED:
            return False
    return True


def _is_value(known: Any) -> bool:
    known = None if known is None else known.realize()
    return known is not None and (known.is_tensor() or known.is_python_constant())


def _is_replaceable(tx: Any, known: Any) -> bool:
    """Whether the value is a tensor that no other variable names: a change of it in place would be seen there."""
    known = None if known is None else known.realize()
    if known is None or not known.is_tensor() or known.as_proxy().node.op == "placeholder":
        return False
    example = known.as_proxy().node.meta["example_value"]
    if example._is_view():
        return False
    names = [other for other in tx.symbolic_locals.values() if _names(other, known)]
    return len(names) == 1 and not any(_names(other, known) for other in tx.stack)


def _names(other: Any, known: Any) -> bool:
    if type(other) is type(known) and other.is_tensor():
        return bool(other.as_proxy().node is known.as_proxy().node)
    return False


def _select(tx: Any, current: _Condition) -> None:
    """Behind the lines: each variable is the value of the outcome."""
    for name, old in current.before.items():
        new = tx.symbolic_locals[name].realize()
        if new is old or not new.is_tensor() or not _are_alike(new, old):
            break_graph("condition on data", "its lines replace a value by one of another kind")
        args = [current.holds, ConstantVariable.create(current.on), new, old]
        tx.symbolic_locals[name] = UserFunctionVariable(_selected).call_function(tx, args, {})
    del vars(tx)[_CURRENT], vars(tx)[_PARTIAL]


def _are_alike(new: Any, old: Any) -> bool:
    nodes = [value.as_proxy().node for value in (new, old)]
    a, b = (node.meta["example_value"] for node in nodes)
    alike = a.dtype is b.dtype and a.device == b.device and str(a.shape) == str(b.shape)
    return alike and (not b.requires_grad or _has_gradient(*nodes))


def _has_gradient(of: fx.Node, wanted: fx.Node) -> bool:
    """Whether a gradient reaches `wanted` in any case: else the unselected one is a zero that may become NaN."""
    ahead, seen = [of], {of}
    while ahead:
        node = ahead.pop()
        if node is wanted:
            return True
        further = {n for n in node.all_input_nodes if _requires_grad(n)} - seen
        seen |= further
        ahead += further
    return False


def _requires_grad(node: fx.Node) -> bool:
    example = node.meta.get("example_value")
    return isinstance(example, Tensor) and example.requires_grad


def _selected(holds: Tensor, on: bool, new: Tensor, old: Tensor) -> Tensor:
    outcome = holds.reshape(()) != 0
    return torch.where(outcome, new, old) if on else torch.where(outcome, old, new)
