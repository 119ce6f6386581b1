"""Captures dropout under `torch.func.vmap`, as in ensembles whose members drop values of their own.

The operators of torch read sizes as C++ ints there; kernels of ours in Python do not (`trace/patched_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.trace.patched_kernels import with_kernels

_DROPOUTS = {
    *(functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d),
    *(functional.alpha_dropout, functional.feature_alpha_dropout),
    *(torch.dropout, torch.feature_dropout, torch.alpha_dropout, torch.feature_alpha_dropout),
}


def _probe(trial: Trial) -> bool:
    def dropped(x: Tensor) -> Tensor:
        drop = torch.func.vmap(lambda x: functional.dropout(x, 0.5), 1, 1, randomness="different")
        return x.sin() + drop(x) * 0

    same = trial(lambda: dropped, *((torch.ones(rows, 2),) for rows in (4, 6, 8)))
    return same and not trial.eager_pieces


@patch(
    "batched_dropout",
    "Dropout under torch.func.vmap is compiled.",
    "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    batched = torch._C._functorch.peek_interpreter_stack() is not None
    if not batched or self.value not in _DROPOUTS:
        return call(self, tx, args, kwargs)
    with with_kernels({}):
        return call(self, tx, args, kwargs)
