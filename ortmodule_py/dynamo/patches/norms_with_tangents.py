"""Captures norms with a weight in `torch.func.jvp` and other forward-mode gradients.

Torch cannot run their formula on the tensors of a capture. Here they are their parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import UserFunctionVariable
from torch.autograd import forward_ad
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.trace.decompositions.inner_gradients import SPELLED_OUT, SPELLED_OUT_ALWAYS

_layers = SPELLED_OUT[torch.ops.aten.layer_norm.default]
_groups = SPELLED_OUT[torch.ops.aten.group_norm.default]
_batches = SPELLED_OUT_ALWAYS[torch.ops.aten.batch_norm.default]


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _layers(input, normalized_shape, weight, bias, eps)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _groups(input, num_groups, weight, bias, eps)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    return _groups(input, input.shape[1], weight, bias, eps)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    return _batches(input, weight, bias, running_mean, running_var, training, momentum, eps)


_PARTS: dict[Any, Callable[..., Any]] = {
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
    functional.instance_norm: _instance_norm,
    functional.batch_norm: _batch_norm,
}


def _probe(trial: Trial) -> bool:
    def pushed(x: Tensor, weight: Tensor) -> Tensor:
        normal = lambda z: functional.layer_norm(z, (4,), weight)  # noqa: E731
        values, tangents = torch.func.jvp(normal, (x,), (x.cos(),))
        return values * tangents.detach()  # of tangents eager has wrong gradients

    given = torch.arange(8.0).view(2, 4).square(), torch.arange(1.0, 5)
    same = trial(lambda: pushed, tuple(value.requires_grad_() for value in given))
    return same and trial.captures == 1 and not trial.eager_pieces


@patch(
    "norms with tangents",
    "Norms with weights are captured in forward-mode gradients (`torch.func.jvp`).",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    parts = _PARTS.get(self.value) if callable(self.value) else None
    # Dynamo enters the levels of forward-mode gradients as the program does.
    if parts is None or forward_ad._current_level < 0 or _keeps_statistics(parts, args, kwargs):
        return call(self, tx, args, kwargs)
    return UserFunctionVariable(parts).call_function(tx, list(args), kwargs)


def _keeps_statistics(parts: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a norm changes its statistics, which torch refuses there, or an instance norm reads any."""
    given = inspect.signature(parts).bind(*args, **kwargs).arguments
    if parts is _instance_norm:
        mean = given.get("running_mean")
        return mean is not None and not mean.realize().is_constant_none()
    training = given.get("training")
    return training is not None and training.realize().as_python_constant() is not False
