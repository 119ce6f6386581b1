"""Captures the first call of models of transformers that return hidden states or attentions.

They install hooks in that call, under a lock, which Dynamo cannot trace. The hooks are the same for all calls, so they
are installed while the call is captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.variables import ConstantVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_INSTALLS = "maybe_install_capturing_hooks"
_lock = threading.Lock()


class _Recorded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.installed = nn.Linear(2, 2), False
        nn.init.ones_(self.layer.weight)
        nn.init.ones_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        maybe_install_capturing_hooks(self)
        y: Tensor = self.layer(x)
        return y


def maybe_install_capturing_hooks(model: Any) -> None:
    """As in transformers."""
    if not model.installed:
        with _lock:
            model.layer.register_forward_hook(lambda layer, args, result: result * 2)
            model.installed = True


def _probe(trial: Trial) -> bool:
    same = trial(_Recorded, (torch.ones(3, 2),), (torch.ones(4, 2),))
    return same and not trial.graph_breaks and not trial.eager_pieces


@patch(
    "installed_hooks",
    "The first call of a model of transformers that returns hidden states is captured whole.",
    "torch._dynamo.variables.functions:UserFunctionVariable.call_function",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if getattr(self.fn, "__name__", None) == _INSTALLS and len(args) == 1 and not kwargs:
        model = getattr(args[0].realize(), "value", None)
        if isinstance(model, nn.Module):
            self.fn(model)
            return ConstantVariable.create(None)
    return call(self, tx, args, kwargs)
