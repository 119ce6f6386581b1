"""Captures `torch.cov`, `torch.corrcoef` and `torch.combinations`.

Torch looks at tensors there that follow from sizes alone, which breaks the graph. Here the sizes are numbers, in
eager's order of operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._dynamo.variables import TensorVariable, UserFunctionVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_CAPTURED = (torch.cov, torch.corrcoef, torch.combinations)
_OPTIONS = {"correction", "fweights", "aweights"}
_MOST_PLACES = 10_000
"""Of combinations that a graph has as a constant."""


def _cov(input: Tensor, *, correction: int = 1) -> Tensor:
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    count = rows.shape[1]
    centered = rows - (rows.sum(1) / count).unsqueeze(1)
    free = count - correction if count > correction else 0
    return (torch.mm(centered, centered.t().conj()) / free).squeeze()


def _weighted_cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    if fweights is not None and (fweights < 0).any():
        raise RuntimeError("cov(): fweights cannot be negative")
    if aweights is not None and (aweights < 0).any():
        raise RuntimeError("cov(): aweights cannot be negative")
    weights = torch.ones((), dtype=torch.int64, device=input.device)
    for given in (fweights, aweights):
        weights = weights if given is None else weights * given
    total = weights.sum()
    if total == 0:
        raise RuntimeError("cov(): weights sum to zero, can't be normalized")
    centered = rows - ((rows * weights).sum(1) / total).unsqueeze(1)
    if aweights is not None and correction != 0:
        free = total - correction * (weights * aweights).sum() / total
    else:
        free = total - correction
    free = torch.where(free > 0, free, torch.zeros_like(free))
    return (torch.mm(centered, (centered * weights).t().conj()) / free).squeeze()


def _corrcoef(input: Tensor) -> Tensor:
    covariance = _cov(input)
    if covariance.dim() == 0:
        return covariance / covariance
    variance = covariance.diag()
    deviation = torch.sqrt(variance.real if variance.is_complex() else variance)
    found = covariance / deviation.view(-1, 1) / deviation.view(1, -1)
    if found.is_complex():
        return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))
    return found.clip(-1, 1)


def _pairs(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    count = len(input)
    first, second = torch.triu_indices(
        count, count, 0 if with_replacement else 1, device=input.device
    ).unbind()
    return torch.stack([input[first], input[second]], 1)


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    places = _places(0, len(input), r, with_replacement)
    return input[
        torch.tensor(places, dtype=torch.int64, device=input.device).reshape(len(places), r)
    ]


def _places(first: int, end: int, r: int, repeat: bool) -> list[list[int]]:
    if r == 0:
        return [[]]
    following = [
        (i, _places(i if repeat else i + 1, end, r - 1, repeat)) for i in range(first, end)
    ]
    return [[i, *rest] for i, more in following for rest in more]


def _probe(trial: Trial) -> bool:
    def related(x: Tensor) -> Tensor:
        return torch.cov(x.mT).sum() + x.mT.corrcoef().sum() + torch.combinations(x[:, 0]).sum()

    given = ((torch.arange(2.0 * n).sin().view(n, 2).requires_grad_(),) for n in (4, 5, 7))
    return trial(lambda: related, *given) and trial.captures == 1 and not trial.graph_breaks


@patch(
    "covariances",
    "`torch.cov`, `torch.corrcoef` and `torch.combinations` break no graph.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if args and any(self.value is known for known in _CAPTURED):
        formula = _formula(self.value.__name__, args[0].realize(), args[1:], kwargs)
        if formula is not None:
            return UserFunctionVariable(formula).call_function(tx, list(args), kwargs)
    return call(self, tx, args, kwargs)


@patch(
    "covariances as methods",
    "`x.cov()` and `x.corrcoef()` break no graph.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.call_method"},
    probe=_probe,
    needed_by=None,
)
def _call_method(
    call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any
) -> Any:
    if name in ("cov", "corrcoef"):
        formula = _formula(name, self, args, kwargs)
        if formula is not None:
            return UserFunctionVariable(formula).call_function(tx, [self, *args], kwargs)
    return call(self, tx, name, args, kwargs)


def _formula(name: str, operand: Any, rest: Any, kwargs: Any) -> Callable[..., Tensor] | None:
    """The function that is captured in place of torch's; None for other arguments."""
    if not isinstance(operand, TensorVariable):
        return None
    example = operand.as_proxy().node.meta["example_value"]
    given = {key: value.realize() for key, value in kwargs.items()}
    weights = {key: value for key, value in given.items() if value.is_tensor()}
    options = [
        value.realize() for value in (*rest, *given.values()) if value not in weights.values()
    ]
    if not all(value.is_python_constant() for value in options):
        return None
    if name == "combinations":
        return _chosen(example, rest, kwargs)
    known = example.dim() <= 2 and example.dtype is not torch.bool and not rest
    if not known or not set(kwargs) <= (_OPTIONS if name == "cov" else set()):
        return None
    if weights:
        return _weighted_cov if _are_weights(weights, example) else None
    if name == "cov" and set(kwargs) > {"correction"}:
        return None  # weights that are None
    return _cov if name == "cov" else _corrcoef


def _are_weights(weights: dict[str, Any], of: Tensor) -> bool:
    """Whether torch takes them: one for each column, integers as counts and floats as weights."""
    for name, value in weights.items():
        example = value.as_proxy().node.meta["example_value"]
        columns = of.shape[-1] if of.dim() else 1
        if example.dim() != 1 or str(example.shape[0]) != str(columns) or of.dim() == 0:
            return False
        if example.is_floating_point() != (name == "aweights") or example.dtype is torch.bool:
            return False
    return True


def _chosen(example: Tensor, rest: Any, kwargs: Any) -> Callable[..., Tensor] | None:
    r = [*rest, kwargs.get("r")][0]
    number = 2 if r is None else r.as_python_constant()
    if example.dim() != 1 or number < 1 or not set(kwargs) <= {"r", "with_replacement"}:
        return None
    if isinstance(example.shape[0], SymInt):
        return _pairs if number == 2 else None
    few = math.comb(example.shape[0] + number - 1, number) <= _MOST_PLACES
    return _combinations if few else None
