"""`nonzero`, `unique` and `repeat_interleave` where integers that are given tell how many results there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_whole

LABELS = ([0, 1, 1, 2, 0], [0, 1, 1, 2, 0, 2], [3, 1, 3, 1, 0], [2, 2, 2, 2, 2, 4, 1])


def _report(function: Callable[..., Any], labels: Any = LABELS) -> Any:
    def step(model: Any) -> list[Tensor]:
        results = []
        for i, numbers in enumerate(labels):
            x = torch.linspace(-1, 1, 4 * len(numbers)).view(-1, 4) + i
            y = model(x, torch.tensor(numbers))
            y.square().sum().backward()
            results.append(y)
        return results

    return as_in_eager(Calls(function), step)


def test_means_of_the_rows_of_each_label() -> None:
    def averaged(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        found, group, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        sums = x.new_zeros(len(found), 4).index_add(0, group, self.fc(x))
        return sums / counts[:, None] + found[:, None]

    assert_whole(_report(averaged), 1)


def test_rows_at_the_values_in_a_row() -> None:
    def looked_up(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        found, counts = labels.unique_consecutive(return_counts=True)
        y: Tensor = self.fc(x)[found]
        return y * counts[:, None]

    assert_whole(_report(looked_up), 1)


def test_pairs_of_rows_whose_labels_are_in_order() -> None:
    def products(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        y = self.fc(x)
        first, second = torch.where(labels[:, None] > labels)
        places = torch.argwhere(labels > 0)
        return torch.cat([y[first] * y[second], y[labels.nonzero(as_tuple=True)[0]] + places])

    assert_whole(_report(products), 1)


def test_rows_that_are_repeated_as_often_as_numbers_say() -> None:
    """As a length regulator spreads phonemes over frames, and as graphs of a batch are numbered."""

    def spread(self: Any, x: Tensor, durations: Tensor) -> Tensor:
        row = torch.repeat_interleave(torch.arange(len(durations)), durations)
        y: Tensor = self.fc(x).repeat_interleave(durations, dim=0)
        again = torch.repeat_interleave(durations)
        return (y + row[:, None]) * again[:, None]

    assert_whole(_report(spread), 1)


def test_one_number_for_all_rows_is_no_number_for_each() -> None:
    def spread(self: Any, x: Tensor, durations: Tensor) -> Tensor:
        y: Tensor = self.fc(x).repeat_interleave(durations[:1], dim=0)
        return y

    _report(spread, ([2, 1], [3, 1], [2, 2, 2]))


def test_crops_of_equal_sizes_run_together() -> None:
    """As DINO's wrapper does: the sizes are constants, so the places where they change are, too."""

    def cropped(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        crops = [x, x + 1, x[:, :2], x[:, 2:]]
        sizes = torch.tensor([crop.shape[-1] for crop in crops])
        _, counts = torch.unique_consecutive(sizes, return_counts=True)
        begin, parts = 0, []
        for end in torch.cumsum(counts, 0):
            together = torch.cat(crops[begin:end])
            parts.append(self.fc(F.pad(together, (0, 4 - together.shape[1]))))
            begin = end
        return torch.cat(parts)

    assert_whole(_report(cropped), 1)


def test_prototypes_of_the_classes_of_an_episode() -> None:
    """Each number of classes is a capture, as the loop over them is unrolled."""

    def prototypes(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        y = self.fc(x)
        rows = [labels.eq(label).nonzero().squeeze(1) for label in torch.unique(labels)]
        return torch.stack([y[places].mean(0) for places in rows])

    assert_whole(_report(prototypes, ([0, 1, 1, 0], [1, 0, 0, 1, 1], [2, 4, 4, 2, 2, 2])), 1)


@pytest.mark.parametrize("dim", [0, None])
def test_values_that_no_integer_tells_break_the_graph(dim: int | None) -> None:
    def different(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y.sum() + torch.unique(labels if dim == 0 else y > 0, dim=dim).sum()

    assert "result of `torch.unique` depends on" in str(_report(different)["graph_breaks"])
