"""Lets Dynamo read the counter of a batch normalization with `momentum=None`.

Its momentum is then 1 / number of batches, read from a tensor. Dynamo breaks the graph at such a
read, and leaves a container of layers wholly to eager PyTorch for it, also after
`torch.optim.swa_utils.update_bn` has put the momentum back. But this number is only computed with, so
that a graph can say it.
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
    # Not `method_item`, which torch 2.14 keeps in a table besides.
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
    tx.output.fake_mode.allow_scalar_outputs = True  # reads elsewhere are refused here still
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        return call_method(self, tx, name, *args, **kwargs)
