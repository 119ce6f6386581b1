"""Embeddings with sparse gradients: torch looks up, the rest is one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py.compile.sparse_lookups import REASON
from tests.semantics import as_in_eager, original


class Looks(nn.Module):
    """Sparse embeddings, a layer, and a forward that is given."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4, sparse=True)
        self.bag = nn.EmbeddingBag(20, 4, sparse=True)
        self.bounded = nn.Embedding(20, 4, sparse=True, max_norm=0.5)
        self.fc = nn.Linear(4, 4)
        self.register_buffer("offsets", torch.tensor([0, 5, 10]))
        self.function = function

    def forward(self, index: Tensor) -> Tensor:
        return self.function(self, index)


def _plain(self: Any, index: Tensor) -> Tensor:
    y: Tensor = self.fc(self.words(index)).tanh()
    return y


def _fields(self: Any, index: Tensor) -> Tensor:
    """Indices that forward computes, in a loop over the columns, too."""
    first: Tensor = self.words(index + self.offsets).sum(1)
    return self.fc(first) * sum(self.words(column) for column in index.unbind(1))


def _in_place(self: Any, index: Tensor) -> Tensor:
    rows = self.words(index)
    rows += self.fc.bias
    y: Tensor = self.fc(rows.mul_(2))
    return y


def _bags(self: Any, index: Tensor) -> Tensor:
    starts = torch.arange(0, index.numel(), 3)
    y: Tensor = self.fc(self.bag(index)) + self.bag(index.flatten(), starts)
    return y


def _tied(self: Any, index: Tensor) -> Tensor:
    """The table is also the weight of a layer, so its gradient is dense."""
    return nn.functional.linear(self.fc(self.words(index)), self.words.weight)


def _of_values(self: Any, index: Tensor) -> Tensor:
    """Indices that follow from values of the piece."""
    y: Tensor = self.words(self.fc(self.words(index)).argmax(-1)) + self.fc(self.words(index))
    return y


def _bounded(self: Any, index: Tensor) -> Tensor:
    """The lookup changes the table."""
    y: Tensor = self.fc(self.bounded(index))
    return y


def _trained(runner: Any) -> list[Any]:
    """Losses and gradients of three steps, sparse gradients as dense ones."""
    found: list[Any] = []
    for rows in (2, 3, 5):
        runner.zero_grad()
        y = runner(torch.arange(rows * 3).view(rows, 3) % 7)
        y.pow(2).mean().backward()
        found.append(y.detach())
        for name, p in original(runner).named_parameters():
            sparse = p.grad is not None and p.grad.is_sparse
            found.append((name, sparse, p.grad.to_dense() if sparse else p.grad))
            with torch.no_grad():
                p -= 0.1 * (torch.zeros(()) if p.grad is None else p.grad.to_dense())
            p.grad = None
    return found


@pytest.mark.parametrize("function", [_plain, _fields, _in_place, _bags, _tied])
def test_only_the_lookup_runs_in_eager(function: Callable[..., Tensor]) -> None:
    report = as_in_eager(Looks(function), _trained)
    assert not report["compiled"] and not report["graph_breaks"]
    assert report["eager_pieces"] and all(REASON in piece for piece in report["eager_pieces"])
    assert report["pieces_run"] == 1


@pytest.mark.parametrize("function", [_of_values, _bounded])
def test_a_lookup_that_cannot_move_leaves_its_piece_to_eager(
    function: Callable[..., Tensor],
) -> None:
    report = as_in_eager(Looks(function), _trained)
    assert not report["compiled"] and report["pieces_run"] == 0


def test_nothing_is_left_to_eager_without_gradients() -> None:
    def infers(runner: Any) -> Any:
        with torch.no_grad():
            return [runner(torch.arange(6).view(2, 3)) for _ in range(2)]

    report = as_in_eager(Looks(_plain), infers)
    assert report["compiled"] and not report["eager_pieces"]
