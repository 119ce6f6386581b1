"""Copies of results that the rest of a function changes in place (Longformer's attention).

Eager PyTorch often saves what it has computed of such a value, as a copy in another order. The engine saves the
value itself and computes the rest again, so the change would be an error in backward.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.symbolic_convert import InstructionTranslator


def changed_later(gm: fx.GraphModule) -> list[int]:
    """Places of the results of this piece that lines behind it in its function change, by `x[i] = ...` say."""
    function: Any = InstructionTranslator.current_tx()
    names: dict[str, set[str]] = {}
    for name, variable in function.symbolic_locals.items():
        if getattr(variable, "proxy", None) is not None:
            names.setdefault(variable.proxy.node.name, set()).add(name)
    results = gm.graph.find_nodes(op="output")[0].args[0]
    known = [(i, names[v.name]) for i, v in enumerate(results) if getattr(v, "name", "") in names]
    if not known:
        return []
    end = getattr(function.current_instruction, "offset", None)
    changed = _changed_behind(function.f_code, end or 0)
    return [i for i, variables in known if variables & changed]


def with_copies(run: Callable[..., Any], places: list[int]) -> Callable[..., Any]:
    """`run`, which returns copies of these results if they have a gradient."""
    if not places or not torch.is_grad_enabled():
        return run

    def copying(*args: Any) -> Any:
        results = list(run(*args))
        for i in places:
            if isinstance(results[i], Tensor) and results[i].requires_grad:
                results[i] = results[i].clone()
        return tuple(results)

    return copying


def _changed_behind(code: types.CodeType, offset: int) -> set[str]:
    """Variables that lines behind `offset` change in place, or index in a line that changes one."""
    changed: set[str] = set()
    loaded: set[str] = set()
    last = ""
    for instruction in dis.get_instructions(code):
        if instruction.offset <= offset:
            continue
        if instruction.starts_line:
            loaded.clear()
        name, kind = instruction.argval, instruction.opname
        in_place = kind == "BINARY_OP" and instruction.argrepr.endswith("=")
        method = kind in ("LOAD_METHOD", "LOAD_ATTR") and str(name)
        if kind.startswith("LOAD_FAST"):
            loaded.update(name if isinstance(name, tuple) else (name,))
        elif in_place or kind == "STORE_SUBSCR":
            changed |= loaded
        elif last and method and method.endswith("_") and not method.endswith("__"):
            changed.add(last)
        last = name if kind.startswith("LOAD_FAST") and isinstance(name, str) else ""
    return changed
