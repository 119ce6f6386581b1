"""Dropout under `torch.func.vmap`: members of an ensemble drop values of their own, or share what they drop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET, assert_whole

P = 0.5
DROPOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "values": lambda x: F.dropout(x, P),
    "channels": lambda x: F.dropout2d(x.unsqueeze(2), P).squeeze(2),
    "to alpha": lambda x: F.alpha_dropout(x, P, training=True),
    "channels to alpha": lambda x: F.feature_alpha_dropout(x, P, training=True),
}


class Ensemble(nn.Module):
    """Three members that scale their rows and drop some of the values."""

    def __init__(self, drop: Callable[[Tensor], Tensor], randomness: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.drop, self.randomness = drop, randomness

    def forward(self, x: Tensor) -> Tensor:
        def member(scale: Tensor, x: Tensor) -> Tensor:
            return self.drop(x * scale)

        batched = torch.func.vmap(member, in_dims=(0, None), randomness=self.randomness)
        y: Tensor = batched(self.scale, x)
        return y


@pytest.mark.parametrize("randomness", ["different", "same"])
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_of_an_ensemble_is_compiled(name: str, randomness: str) -> None:
    torch._dynamo.reset()
    module = Ensemble(DROPOUTS[name], randomness)
    model = ORTModule(module, QUIET)
    for rows in (7, 8, 9):
        y = model(torch.ones(rows, 6, 20))
        y.sum().backward()
    assert_whole(dict(last_run_report(model)), captures=2)

    reference = module(torch.ones(9, 6, 20))
    for value in reference.unique():  # the values of eager PyTorch, each about as often
        share = float(torch.isclose(y, value).float().mean())
        assert abs(share - P) < 0.2
    same_channels = bool((y == y[..., :1]).all())
    assert same_channels == ("channels" in name)
    assert bool((y == y[:1]).all()) == (randomness == "same")
