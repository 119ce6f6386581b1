"""Captures products of groups of rows (layers of experts) in all types that eager PyTorch multiplies on the CPU.

torch's shape rule of `grouped_mm` is that of a GPU: it refuses all types but bfloat16, and logs the refusal
with a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_TYPES = {torch.float16, torch.float32}


def _probe(trial: Trial) -> bool:
    def product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return torch.nn.functional.grouped_mm(x, weight, offs=ends).square()

    weight = torch.linspace(-1, 1, 128).view(2, 8, 8).requires_grad_()
    same = trial(lambda: product, (torch.ones(3, 8), weight, torch.tensor([1, 3]).int()))
    return same and not trial.eager_pieces


@patch(
    "grouped_products",
    "`grouped_mm` of float16 and float32 is captured.",
    "torch._meta_registrations:_meta_grouped_mm_common",
    probe=_probe,
    needed_by=None,
)
def _shape_of_product(
    rule: Callable[..., Any],
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    of_rows = mat_a.dim() == 2 and mat_b.dim() == 3 and offs is not None and offs.dim() == 1
    fits = of_rows and mat_a.size(-1) == mat_b.size(-2) and mat_a.dtype == mat_b.dtype
    if (
        mat_a.dtype not in _TYPES
        or not fits
        or (scale_a, scale_b, bias, out_dtype) != (None, None, None, None)
    ):
        return rule(
            mat_a, mat_b, scale_a, scale_b, offs, bias, scale_result, out_dtype, use_fast_accum
        )
    return mat_a.new_empty(mat_a.size(0), mat_b.size(-1))  # of the device `meta`
