"""Views of contiguous tensors whose sizes change, without a comparison of each old size with each new one.

torch goes through the sizes from left to right and asks of each whether it is that of the tensor, or divides it.
Each answer is a guard: a view of (batch, words) as (words, batch) would be a capture of its own where both are
equal. And each is found by sympy, which takes a tenth of a second for sizes such as those of padded windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import SymInt, Tensor, _prims_common

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def turned(x: Tensor) -> Tensor:
        rows, words = x.shape
        return x.view(words, rows) * 2

    given = [(torch.arange(rows * 6).view(rows, 6),) for rows in (4, 5, 6)]
    return trial(lambda: turned, *given) and trial.captures == 1


@patch(
    "contiguous_views",
    "A view with changing sizes adds no guards that compare them with those of the tensor.",
    "torch._refs:_reshape_view_helper",
    probe=_probe,
    needed_by=None,
)
def _view(view: Callable[..., Any], a: Any, *shape: Any, **options: Any) -> Any:
    sizes = _prims_common.extract_shape_from_varargs(shape, validate=False)
    changes = any(isinstance(size, SymInt) for size in (*a.shape, *sizes))
    if not changes or a.ndim == 0 or not sizes or not _prims_common.is_contiguous_or_false(a):
        return view(a, *shape, **options)
    sizes = _prims_common.infer_size(sizes, a.numel())  # compares the numbers of elements
    strides, elements = [], 1
    for size in reversed(sizes):
        strides.append(elements)
        elements = elements * size
    return torch.as_strided(a, sizes, strides[::-1])
