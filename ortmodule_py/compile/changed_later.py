"""Copies of results that the rest of a function changes in place (Longformer's attention).

Eager PyTorch often saves what it has computed of such a value, as a copy in another order. The engine saves the
value itself and computes the rest again, so the change would be an error in backward. Pieces that read the value
before it changes, such as those of functions that are called with it, save a copy, too.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.utils.weak import WeakTensorKeyDictionary

_CHANGING: Any = WeakTensorKeyDictionary()
"""The copies that are alive: a line that has not run yet may change them."""


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
                _CHANGING[results[i]] = True
        return tuple(results)

    return copying


def read_before_change(gm: fx.GraphModule) -> list[int]:
    """Places of the arguments that are such copies at this capture, as the piece's caller changes them behind it."""
    if not _CHANGING:
        return []
    given = [node.meta.get("grapharg") for node in gm.graph.find_nodes(op="placeholder")]
    tensors = [argument.example if argument and argument.is_tensor else None for argument in given]
    return [i for i, x in enumerate(tensors) if isinstance(x, Tensor) and x in _CHANGING]


def on_copies(run: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """`run` on copies of these arguments if they have a gradient."""
    if not places or not torch.is_grad_enabled():
        return run

    def reading(*args: Any) -> Any:
        given = list(args)
        for i in places:
            if isinstance(args[i], Tensor) and args[i].requires_grad:
                given[i] = args[i].clone()
        return run(*given)

    return reading


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
