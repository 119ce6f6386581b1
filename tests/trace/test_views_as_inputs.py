"""Inputs that are views of one another, as `model(tokens, tokens[:, :-1])`: which symbols their sizes have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.semantics import as_in_eager, assert_whole


class _Predictor(nn.Module):
    """Reads the tokens and those in front of them, in both orders."""

    def __init__(self, tokens_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.tokens_first = tokens_first

    def forward(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        loss = torch.zeros(())
        if self.tokens_first:
            loss = loss + self.embedding(tokens).view(-1, 8).square().mean()
        scores = self.head(self.embedding(inputs)).reshape(-1, 20)
        loss = loss + F.cross_entropy(scores, tokens[:, 1:].reshape(-1))
        return loss + self.embedding(tokens).reshape(-1, 8).sin().mean()


def _front(tokens: Tensor) -> tuple[Tensor, Tensor]:
    return tokens[:, :-1], tokens


def _two_views(tokens: Tensor) -> tuple[Tensor, Tensor]:
    longer = torch.cat([tokens, tokens], 1)
    return longer[:, : tokens.shape[1] - 1], longer[:, : tokens.shape[1]]


@pytest.mark.parametrize("give", [_front, _two_views])
@pytest.mark.parametrize("tokens_first", [False, True])
def test_one_capture_for_all_sizes(
    give: Callable[[Tensor], tuple[Tensor, Tensor]], tokens_first: bool
) -> None:
    def step(model: Any) -> list[Tensor]:
        losses = []
        for batch, length in ((2, 7), (3, 9), (4, 6), (3, 12)):
            inputs, tokens = give(torch.arange(batch * length).view(batch, length) % 20)
            losses.append(model(inputs, tokens))
            losses[-1].backward()
        return losses

    assert_whole(as_in_eager(_Predictor(tokens_first), step))


class _Changing(nn.Module):
    """Changes a part of what it reads later."""

    def forward(self, x: Tensor, part: Tensor) -> Tensor:
        part.mul_(2)
        return (x * x).sum(1)


def test_a_change_of_a_view_is_seen_in_what_it_is_of() -> None:
    def step(model: Any) -> list[Tensor]:
        results = []
        for size in (3, 4):
            x = torch.arange(4.0 * size).view(size, 4)
            results += [model(x, x[1:]), x]
        return results

    as_in_eager(_Changing(), step)
