"""Captures the read of the batch counter in a batch norm with `momentum=None`.

Its momentum is 1 / number of batches, and the number is read from a tensor. Dynamo breaks the graph at
this read and skips a container of such layers for good, also after
`torch.optim.swa_utils.update_bn` has restored the momentum. The number is only used in arithmetic, so
the graph can compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import batchnorm

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def make() -> Any:
        return nn.Sequential(nn.BatchNorm1d(2, momentum=None, affine=False), nn.ReLU())

    same = trial(make, (torch.tensor([[1.0, 2.0], [3.0, 5.0]]),))
    return same and not trial.eager_pieces


@patch(
    "counters",
    "Models with a batch normalization of momentum=None are compiled.",
    # Not `method_item`: torch 2.14 also has it in a dispatch table.
    "torch._dynamo.variables.tensor:TensorVariable.call_method",
    probe=_probe,
    needed_by=None,
)
def _read(
    call_method: Callable[..., Any], self: Any, tx: Any, name: str, *args: Any, **kwargs: Any
) -> Any:
    code = getattr(tx, "f_code", None)
    if name != "item" or code is not batchnorm._BatchNorm.forward.__code__:
        return call_method(self, tx, name, *args, **kwargs)
    tx.output.fake_mode.allow_scalar_outputs = True  # Dynamo still breaks at reads elsewhere
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        return call_method(self, tx, name, *args, **kwargs)
