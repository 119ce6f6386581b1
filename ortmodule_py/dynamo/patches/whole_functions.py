"""Captures functions of torch that Dynamo hands to its graph whole, but cannot run without values of tensors.

`gaussian_nll_loss` raises an error for some variances: traced, that is a check (`checked_errors`). Torch has no
shapes for the draws of the Dirichlet and binomial distributions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import UserFunctionVariable
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.trace.patched_kernels import with_kernels

_TRACED = (functional.gaussian_nll_loss,)
_WITHOUT_SHAPES = (
    *(torch._sample_dirichlet, torch._dirichlet_grad, torch.binomial),
    *(torch.max_pool1d, torch.max_pool1d_with_indices),
    *(functional.max_pool1d, functional.max_pool1d_with_indices),
)


def _probe(trial: Trial) -> bool:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        counts = torch.binomial(torch.full_like(x, 4.0), torch.ones_like(x))
        return functional.gaussian_nll_loss(x, y, y.exp()) * counts

    x = torch.linspace(-1, 1, 4)
    given = ((x.clone().requires_grad_(), -x), (x.view(2, 2).requires_grad_(), x.view(2, 2)))
    return trial(lambda: loss, *given) and not trial.graph_breaks


@patch(
    "whole_functions",
    "`gaussian_nll_loss`, and draws of the Dirichlet and binomial distributions, break no graph.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value in _TRACED:
        return UserFunctionVariable(self.value).call_function(tx, list(args), kwargs)
    if self.value in _WITHOUT_SHAPES:
        with with_kernels({}):
            return call(self, tx, args, kwargs)
    return call(self, tx, args, kwargs)
