"""Lets Python read lists of tensors that are another kind of list in each call, such as the targets of a detector.

Dynamo guards the length of a list, and for each tensor in it which of its sizes are 0 or 1. Where an image has one box
and the next one several, nearly each batch would be a capture. After a few kinds, the graph breaks where the list is
read first: what stands before it is captured, and so are layers and functions that are called behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables.misc import UnknownVariable
from torch._guards import CompileContext

from ortmodule_py.dynamo.graph_breaks import OPEN_LIST
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, capturing_compiler, patch

_KINDS, _KINDS_OF_RECORDS = 4, 2
"""So many captured kinds of a list of tensors, twice as many if it always has the same number of them, or of a list of
dicts or lists."""
_MOST = 256
"""Values in a list, with those in its items, that are looked at."""


def _probe(trial: Trial) -> bool:
    def summed(x: Tensor, targets: list[Tensor]) -> Tensor:
        y = x.sin() * 2
        return y * torch.stack(targets).sum()

    def call(count: int) -> tuple[Any, ...]:
        return torch.ones(3, requires_grad=True), [torch.ones(3) for _ in range(count)]

    return trial(lambda: summed, *map(call, range(2, 20))) and trial.captures < 15


@patch(
    "open_lists",
    "A list of tensors that is another kind of list in each call is read in Python.",
    "torch._dynamo.variables.builder:VariableBuilder._wrap",
    probe=_probe,
    needed_by=None,
)
def _wrapped(wrap: Callable[..., Any], self: Any, value: Any) -> Any:
    looked_at = type(value) in (list, tuple, dict) and value and not self.tx.one_graph
    if not looked_at or not _is_open(self.tx, self.source, value):
        return wrap(self, value)
    if self.tx.output.should_exit:  # at a graph break, across which it goes as it is
        return UnknownVariable(source=self.source)
    return break_graph(OPEN_LIST, "Each kind of it would be a capture.")


def _is_open(tx: Any, source: Any, value: Any) -> bool:
    """Whether this list has been of too many kinds."""
    kind, tensors = _kind(value, [_MOST])
    flat = all(isinstance(item, Tensor) for item in value)
    if not tensors or (type(value) is tuple and not flat):  # such as what `*args` gathers
        return False
    if type(value) is not list:
        kind = tuple(value) if type(value) is dict else (None,) * len(value)
    log: Any = capturing_compiler().log  # type: ignore[union-attr]
    code = tx.output.root_tx.f_code
    name = source.name() if callable(source.name) else source.name
    captures = log.list_kinds[code.co_filename, code.co_firstlineno, code.co_name, name]
    captures[CompileContext.current_compile_id()] = kind
    kinds = set(captures.values())
    most = _KINDS if flat else _KINDS_OF_RECORDS
    if flat and len(set(map(len, kinds))) == 1:
        most *= 2
    # A kind may take two captures, as sizes of the first are constants.
    return len(kinds) > most or (len(kinds) > 1 and len(captures) > 2 * most)


def _kind(value: Any, left: list[int]) -> tuple[Any, bool]:
    """What Dynamo guards of this value, and whether there is a tensor in it."""
    left[0] -= 1
    if isinstance(value, torch.nn.Parameter) or left[0] < 0:
        return None, False
    if isinstance(value, Tensor):
        return tuple(min(int(size), 2) for size in value.shape), True
    if type(value) in (list, tuple):
        found = [_kind(item, left) for item in value]
        return tuple(kind for kind, _ in found), any(tensor for _, tensor in found)
    if type(value) is dict:
        found = [_kind(item, left) for item in value.values()]
        kinds = tuple((str(key), kind) for key, (kind, _) in zip(value, found, strict=True))
        return kinds, any(tensor for _, tensor in found)
    return type(value).__name__, False
