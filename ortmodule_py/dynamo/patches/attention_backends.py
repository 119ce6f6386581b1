"""Captures `with torch.backends.cuda.sdp_kernel(...)`, the older name of `torch.nn.attention.sdpa_kernel`.

Attention layers that were written for torch 2.0 choose the kernels of a GPU by it. Dynamo knows the newer name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import UserFunctionVariable
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def attended(x: Tensor) -> Tensor:
        with torch.backends.cuda.sdp_kernel(enable_flash=False):
            return functional.scaled_dot_product_attention(x, x, x) * 2

    same = trial(lambda: attended, (torch.ones(1, 3, 4),))
    return same and not trial.graph_breaks and not trial.eager_pieces


@patch(
    "attention_backends",
    "`with torch.backends.cuda.sdp_kernel(...)` breaks no graph.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is torch.backends.cuda.sdp_kernel:
        return UserFunctionVariable(_chosen).call_function(tx, list(args), kwargs)
    return call(self, tx, args, kwargs)


def _chosen(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Any:
    backends = []
    if enable_flash:
        backends.append(SDPBackend.FLASH_ATTENTION)
    if enable_mem_efficient:
        backends.append(SDPBackend.EFFICIENT_ATTENTION)
    if enable_math:
        backends.append(SDPBackend.MATH)
    if enable_cudnn:
        backends.append(SDPBackend.CUDNN_ATTENTION)
    return sdpa_kernel(backends)
