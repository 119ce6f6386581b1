"""Masks and numbers that follow from integer arguments of forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ortmodule_py import ORTModule
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, Calls, as_in_eager, assert_whole

GROUPS = ([0, 3, 1, 2, 2], [2, 2, 0, 1], [0, 0, 0, 0, 4, 1], [1, 1, 1], [4, 0, 4, 4])


def _report(function: Callable[..., Any], groups: Any = GROUPS, **attributes: Any) -> Any:
    def step(model: Any) -> list[Tensor]:
        results = []
        for i, numbers in enumerate(groups):
            index = torch.tensor(numbers)
            x = torch.linspace(-1, 1, 4 * len(numbers)).view(-1, 4) + i
            y = model(x, index)
            y.square().sum().backward()
            results.append(y)
        return results

    return as_in_eager(Calls(function, **attributes), step)


def _whole(report: Any, captures: int = 3) -> None:
    """0 and 1 elements may be captures of their own."""
    assert_whole(report, captures)


def test_rows_that_a_mask_leaves() -> None:
    _whole(_report(lambda self, x, index: self.fc(x[index != 1]) * 2))


def test_columns_of_a_transposed_value() -> None:
    _whole(_report(lambda self, x, index: self.fc(x).t()[:, index != 1]))


LABELS = ([0, 1, 1, 2, 0], [0, 1, 1, 2, 0, 2], [3, 1, 3, 1, 0], [2, 2, 2, 2, 2, 4, 1])


def test_the_greatest_distance_of_each_row_of_a_batch() -> None:
    """The mask is made of the labels and of the size of something else, as where triplets are mined."""

    def mined(self: Any, x: Tensor, labels: Tensor) -> Tensor:
        y = self.fc(x)
        n = y.size(0)
        distance = y @ y.mT
        same = labels.expand(n, n).eq(labels.expand(n, n).t())
        hardest = [distance[i][same[i]].max() for i in range(3)]
        others = ~same & ~torch.eye(n, dtype=torch.bool)
        return torch.stack([*hardest, distance[others].min(), distance[same.triu(1)].sum()])

    assert_whole(_report(mined, LABELS), 2)


def test_a_mask_of_two_arguments() -> None:
    def kept(self: Any, x: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
        y: Tensor = self.fc(x)[(labels != 1) & valid & (torch.arange(len(labels)) < labels.max())]
        return y

    def step(model: Any) -> list[Tensor]:
        results = []
        for rows in (6, 7, 9):
            y = model(torch.ones(rows, 4), torch.arange(rows), torch.arange(rows) % 3 > 0)
            y.sum().backward()
            results.append(y)
        return results

    assert_whole(as_in_eager(Calls(kept), step), 1)


def test_a_mask_that_leaves_nothing() -> None:
    groups = ([0, 2, 3], [1, 1, 1], [1, 0, 1])
    _whole(_report(lambda self, x, index: self.fc(x)[index != 1], groups))


def test_the_edges_of_graphs_of_other_sizes() -> None:
    """Self-loops are replaced, and the number of nodes is the greatest index, as torch_geometric does."""

    def function(self: Any, x: Tensor, edges: Tensor) -> Tensor:
        edges = torch.stack([edges, edges.flip(0) % 3])
        row, col = edges
        kept = edges[:, row != col]
        nodes = int(edges.max()) + 1
        loops = torch.arange(nodes).view(1, -1).repeat(2, 1)
        row, col = torch.cat([kept, loops], 1)
        features = x.new_zeros(nodes, 4).index_add(0, edges[0], self.fc(x))
        degree = x.new_zeros(nodes).scatter_add(0, col, torch.ones_like(col, dtype=x.dtype))
        return x.new_zeros(nodes, 4).index_add(0, col, features[row] / degree[row, None])

    _whole(_report(function))


def test_the_greatest_index_as_a_size() -> None:
    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        return x.new_zeros(int(index.max()) + 1, 4).index_add(0, index, self.fc(x))

    _whole(_report(function))


def test_a_place_in_a_buffer_that_forward_moves() -> None:
    """The queue of contrastive learning."""

    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        y = self.fc(x) + self.queue.sum()
        place = int(self.place)
        self.queue[place : place + 2] = y[:2].detach()
        self.place[0] = (place + 2) % 8
        return y

    module = Calls(function)
    module.register_buffer("queue", torch.zeros(8, 4))
    module.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def step(model: Any) -> list[Tensor]:
        results = []
        for i in range(6):
            y = model(torch.full((3, 4), 0.1 * i), torch.arange(3))
            y.sum().backward()
            results.append(y)
        return results

    _whole(as_in_eager(module, step), 2)


def test_a_number_that_a_condition_reads() -> None:
    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        return self.fc(x) * (2 if int(index[0]) > 1 else 3)

    _whole(_report(function))


def test_a_list_of_numbers() -> None:
    """Sizes of images that are packed in one sequence, as in Qwen-VL: a capture for each number of images."""

    def function(self: Any, x: Tensor, grids: Tensor) -> Tensor:
        factors = torch.tensor([2]).expand(len(grids))
        places = [
            torch.cartesian_prod(torch.arange(h // factor), torch.arange(w))
            for (h, w), factor in zip(grids.tolist(), factors.tolist(), strict=True)
        ]
        return self.fc(x) * torch.cat(places).sum()

    groups = [[[4, 4], [4, 6]], [[6, 4], [8, 5]], [[10, 3], [4, 7]], [[4, 4], [6, 3], [8, 6]]]
    assert_whole(_report(function, groups), 2)


def test_a_number_of_which_each_value_is_a_capture_breaks_the_graph_in_the_end() -> None:
    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        for _ in range(index[0].item()):
            x = self.fc(x)
        return x

    report = _report(function, [[i] for i in range(1, 9)])
    assert "a number is read" in str(report["graph_breaks"])


def test_numbers_that_forward_has_changed_before_are_read_where_they_are() -> None:
    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        index.add_(1)
        return self.fc(x) * index.max().item()

    assert _report(function)["graph_breaks"]


def test_a_mask_of_another_size_is_eagers_error() -> None:
    module = Calls(lambda self, x, index: self.fc(x)[index[:2] > 1])
    for model in (module, ORTModule(module, QUIET)):
        with pytest.raises(IndexError, match="shape of the mask"):
            model(torch.ones(4, 4), torch.arange(4))


def test_a_mask_of_floats_breaks_the_graph() -> None:
    assert _report(lambda self, x, index: self.fc(x)[x.sum(1) > 0])["graph_breaks"]


def test_elements_that_a_mask_of_two_dimensions_leaves() -> None:
    """The labels of a masked language model."""

    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        labels = index.view(-1, 1).expand(-1, 2) - 1
        kept = labels != -1
        return self.fc(x).view(-1, 2, 2)[kept] * labels.masked_select(kept)[:, None]

    _whole(_report(function))


def test_a_transposed_value_and_a_mask_of_two_dimensions_break_the_graph() -> None:
    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        kept = index.view(1, -1) != -torch.arange(4).view(-1, 1)
        return self.fc(x).t()[kept]

    assert _report(function)["graph_breaks"]


def test_conditions_on_what_is_given() -> None:
    def function(self: Any, x: Tensor, index: Tensor) -> Tensor:
        if index.max() >= 5:
            raise ValueError("too many")
        y = self.fc(x)
        return y * 2 if (index == 0).any() else y

    _whole(_report(function))
    module = Calls(function)
    for model in (module, ORTModule(module, QUIET)):
        model(torch.ones(3, 4), torch.arange(3))
        with pytest.raises(ValueError, match="too many"):
            model(torch.ones(6, 4), torch.arange(6))


def test_a_flag_in_a_buffer() -> None:
    module = Calls(lambda self, x: self.fc(x) * (2 if self.on[0] == 1 else 3))
    module.register_buffer("on", torch.ones(1, dtype=torch.uint8))

    def step(model: Any) -> list[Tensor]:
        results = []
        for flag in (1, 0, 1, 0):
            model.on.fill_(flag)
            y = model(torch.ones(3, 4))
            y.sum().backward()
            results.append(y)
        return results

    _whole(as_in_eager(module, step), 2)


def _trained_on_four_batches(model: Any) -> list[Tensor]:
    results = [model(torch.randn(rows, 4)) for rows in (3, 4, 5, 6)]
    sum(result.square().sum() for result in results).backward()
    return results


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16])
def test_a_first_batch_that_initializes(dtype: torch.dtype) -> None:
    """As normalizing flows do: the flag is an item of a buffer."""

    def normalized(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.fc(x)
        if m.initialized.item() == 0:
            with torch.no_grad():
                m.shift.copy_(-y.mean(0))
            m.initialized.fill_(1)
        return y + m.shift

    module = Calls(normalized)
    module.register_buffer("initialized", torch.tensor(0).to(dtype))
    module.register_buffer("shift", torch.zeros(4))

    _whole(as_in_eager(module, _trained_on_four_batches), 2)


@pytest.mark.parametrize("compared", [True, False])
def test_a_first_batch_that_initializes_by_a_float(compared: bool) -> None:
    """As activation norms of normflows do: forward replaces the flag."""

    def normalized(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.fc(x)
        if not (m.initialized > 0.0 if compared else m.initialized):
            m.shift.copy_(-y.detach().mean(0))
            m.initialized = torch.tensor(1.0)
        return y + m.shift

    module = Calls(normalized)
    module.register_buffer("initialized", torch.tensor(0.0))
    module.register_buffer("shift", torch.zeros(4))

    _whole(as_in_eager(module, _trained_on_four_batches), 2)


def test_numbers_of_tensors_that_are_made_of_constants() -> None:
    """As layers of asteroid list the dimensions to average over."""

    def normalized(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        dims = torch.arange(1, y.dim()).tolist()
        scale = torch.tensor([0.5, 2.0]).max().item()
        kind = torch.tensor([[1, 2], [3, 4]]).tolist()
        if torch.ones(2).sum() > 1:
            y = y * scale
        return y / y.square().mean(dims, keepdim=True).sqrt() * kind[1][0]

    def step(model: Any) -> list[Tensor]:
        results = [model(torch.randn(rows, 3, 4)) for rows in (3, 4, 5)]
        sum(result.sin().sum() for result in results).backward()
        return results

    _whole(as_in_eager(Calls(normalized), step), 1)


def test_one_hot_of_as_many_classes_as_there_are() -> None:
    def averaged(self: Any, x: Tensor, index: Tensor) -> Tensor:
        member = F.one_hot(index).float()
        sums: Tensor = member.mT @ self.fc(x)
        return sums / member.sum(0).clamp_min(1)[:, None]

    _whole(_report(averaged))


def _slots(x: Tensor, index: Tensor) -> Tensor:
    """The place of each row among those of its expert, which takes half of all rows."""
    capacity = (len(x) + 1) // 2
    expert = F.one_hot(index % 2, 2)
    place = (expert.cumsum(0) * expert).sum(1) - 1
    kept = F.one_hot(place.clamp_max(capacity - 1), num_classes=capacity)
    return kept * (place < capacity)[:, None]


def test_one_hot_of_a_number_of_classes_that_follows_from_a_size() -> None:
    def routed(self: Any, x: Tensor, index: Tensor) -> Tensor:
        member = _slots(x, index).float()
        y: Tensor = member @ self.fc(member.mT @ x)
        return y

    _whole(_report(routed))


def test_one_hot_refuses_what_is_beyond_its_classes() -> None:
    model = ORTModule(Calls(lambda self, x, index: self.fc(x) * F.one_hot(index, len(x))), QUIET)
    for rows in (4, 4, 4):
        model(torch.ones(rows, 4), torch.arange(rows))
    # Before torch 2.13 it is compiled without a check, as torch.compile does.
    refused = ((4, "smaller than num_classes"), (-1, "non-negative"))
    for wrong, message in refused if running_torch() >= (2, 13) else ():
        with pytest.raises(RuntimeError, match=message):
            model(torch.ones(4, 4), torch.tensor([0, 1, 2, wrong]))
