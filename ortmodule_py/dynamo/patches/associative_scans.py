"""Captures `associative_scan`, as Mamba of transformers calls it, in few operators and for any length.

Torch traces its recursion through `vmap`, half a second for each of its levels, and asks in each whether the
length is even: so each length is a capture, and a few levels exceed Python's recursion limit. Here an elementwise
`combine_fn` is applied to all pairs at once (G. E. Blelloch, "Prefix sums and their applications", 1990), and the
captures differ by the number of levels only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import (
    ListVariable,
    NestedUserFunctionVariable,
    TupleVariable,
    UserFunctionVariable,
)
from torch._higher_order_ops.associative_scan import associative_scan
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

Leaves = tuple[Tensor, ...]
_KINDS: dict[type, Any] = {ListVariable: list, TupleVariable: tuple}
_TRIED = (2, 3)
"""Sizes of the tensors on which `combine_fn` is tried."""


def _probe(trial: Trial) -> bool:
    def combine(left: Leaves, right: Leaves) -> Leaves:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def states(x: Tensor) -> Tensor:
        return associative_scan(combine, (x.sigmoid(), x), 0, combine_mode="generic")[1]

    given = ((torch.ones(n, 2, requires_grad=True),) for n in (9, 8, 10, 11))
    return trial(lambda: states, *given) and trial.captures < 4


@patch(
    "associative_scans",
    "`associative_scan` of an elementwise function is captured for any length.",
    "torch._dynamo.variables.functions:UserFunctionVariable.call_function",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn is associative_scan:
        found = _elementwise(tx, *args, **kwargs)
        if found is not None:
            return found
    return call(self, tx, args, kwargs)


def _elementwise(
    tx: Any, combine_fn: Any, xs: Any, dim: Any, reverse: Any = None, combine_mode: Any = None
) -> Any | None:
    """The result for a list or tuple of tensors and an elementwise function; None for others."""
    xs = xs.realize()
    known = all(v is None or v.is_python_constant() for v in (reverse, combine_mode, dim))
    if type(xs) not in _KINDS or not known:
        return None
    leaves = [leaf.realize() for leaf in xs.items]
    mode = "pointwise" if combine_mode is None else combine_mode.as_python_constant()
    if mode != "generic" or not leaves or not all(leaf.is_tensor() for leaf in leaves):
        return None
    examples = [leaf.as_proxy().node.meta["example_value"] for leaf in leaves]
    if len({(str(example.shape), example.dtype) for example in examples}) > 1:
        return None
    function = _function_of(combine_fn.realize())
    if function is None or not _is_elementwise(
        function, _KINDS[type(xs)], len(leaves), examples[0].dtype
    ):
        return None
    backward = reverse is not None and reverse.as_python_constant()
    scan = UserFunctionVariable(_scan_back if backward else _scan)
    return scan.call_function(tx, [combine_fn, xs, dim], {})


def _function_of(combine_fn: Any) -> Any | None:
    """The function itself; None for one whose variables are values of the graph."""
    if isinstance(combine_fn, UserFunctionVariable):
        return combine_fn.fn
    if isinstance(combine_fn, NestedUserFunctionVariable) and not combine_fn.closure:
        return combine_fn.get_function()
    return None


def _is_elementwise(function: Any, kind: Any, count: int, dtype: torch.dtype) -> bool:
    """Whether a function has the same results for the elements of tensors as for the tensors."""
    with unset_fake_temporarily(), torch.no_grad():
        values = [
            (torch.arange(6 * count) * 7 % 11 + 1).reshape(count, *_TRIED).to(dtype) / 4
            for _ in range(2)
        ]
        values[1] = values[1].flip(0, 1, 2)
        try:
            whole = function(*(kind(value.unbind(0)) for value in values))
            same = len(whole) == count
            for i, j in itertools.product(*map(range, _TRIED)):
                found = function(*(kind(value[:, i, j].unbind(0)) for value in values))
                same &= all(torch.equal(w[i, j], f) for w, f in zip(whole, found, strict=True))
            return same
        except Exception:  # of a function of the user: torch's own way reports it
            return False


def _scan(combine: Any, xs: Any, dim: int) -> Any:
    leaves = _prefixes(combine, type(xs), [x.movedim(dim, 0) for x in xs])
    return type(xs)([leaf.movedim(0, dim) for leaf in leaves])


def _scan_back(combine: Any, xs: Any, dim: int) -> Any:
    leaves = _prefixes(combine, type(xs), [x.movedim(dim, 0).flip(0) for x in xs])
    return type(xs)([leaf.flip(0).movedim(0, dim) for leaf in leaves])


def _prefixes(combine: Any, kind: Any, leaves: list[Tensor]) -> list[Tensor]:
    """What `combine` makes of the first 1, 2, ... rows."""
    n = leaves[0].shape[0]
    if n < 2:
        return leaves
    pairs = combine(kind([x[:-1:2] for x in leaves]), kind([x[1::2] for x in leaves]))
    odd = _prefixes(combine, kind, list(pairs))
    later = combine(kind([x[: (n - 1) // 2] for x in odd]), kind([x[2::2] for x in leaves]))
    row = torch.arange(n, device=leaves[0].device)
    row = row // 2 + row % 2 * ((n + 1) // 2)  # in the even ones and the odd ones behind them
    parts = zip(leaves, later, odd, strict=True)
    return [torch.cat([x[:1], even, after]).index_select(0, row) for x, even, after in parts]
