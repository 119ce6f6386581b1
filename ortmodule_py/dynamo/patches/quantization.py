"""Traces the layers of torch's quantization-aware training that are one operator of torch.

Dynamo skips all of `torch.ao.quantization`, so the graph would break at each layer that `prepare_qat` has
given a fake quantizer. Older ones read their buffers in conditions, and stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import UserFunctionVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_FOLDER = os.path.join(os.path.dirname(torch.__file__), "ao", "quantization", "")
_TRACED = {
    (_FOLDER + "fake_quantize.py", "FusedMovingAvgObsFakeQuantize.forward"),
    (_FOLDER + "quantize.py", "_observer_forward_hook"),
    (_FOLDER + "quantize.py", "_observer_forward_pre_hook"),
}


def _probe(trial: Trial) -> bool:
    from torch.ao.quantization import FusedMovingAvgObsFakeQuantize

    def make() -> Callable[[Tensor], Tensor]:
        layer = FusedMovingAvgObsFakeQuantize()
        return lambda x: layer(x.sin()).cos()

    same = trial(make, *((torch.linspace(-i, i, 4, requires_grad=True),) for i in range(3)))
    return same and not trial.graph_breaks


@patch(
    "quantization",
    "The fake quantizers of torch's default configurations are part of the graph.",
    "torch._dynamo.trace_rules:lookup_inner",
    probe=_probe,
    needed_by=None,
)
def _rule(
    lookup: Callable[..., Any],
    obj: Any,
    name: str | None = None,
    filename: str | None = None,
    is_direct_call: bool = True,
    reasons: set[str] | None = None,
) -> Any:
    code = getattr(obj, "__code__", None)
    place = getattr(code, "co_filename", ""), getattr(code, "co_qualname", "")
    if not is_direct_call or place not in _TRACED:
        return lookup(obj, name, filename, is_direct_call, reasons)
    if reasons is not None:
        reasons.add("a fake quantizer")
    return UserFunctionVariable
