"""Indices as eager reads them: larger sources, negative ones, ones that are out of range."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule, ORTModuleError, last_run_report
from tests.semantics import QUIET


class Scattering(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
        y: Tensor = getattr(x, self.name)(1, index, source.tanh())
        return y * 2


@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
@pytest.mark.parametrize("columns", [3, 5])
def test_a_source_larger_than_the_index(name: str, columns: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 7)
    index = torch.stack([torch.randperm(7)[:3] for _ in range(4)])
    source = torch.randn(4, columns)
    module = Scattering(name)
    found = []
    for run in (module, ORTModule(module, QUIET)):
        # Eager has no gradient for a part of the source.
        leaves = x.clone().requires_grad_(), source.clone().requires_grad_(columns == 3)
        y = run(leaves[0], index, leaves[1])
        y.square().sum().backward()
        found.append((y.detach(), *(leaf.grad for leaf in leaves)))
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager)


class Lookup(nn.Module):
    def __init__(self, read: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 3))
        self.read = read

    def forward(self, index: Tensor) -> Tensor:
        return self.read(self.table, index)


@pytest.mark.parametrize(
    "read",
    [
        lambda table, i: nn.functional.embedding(i, table),
        lambda table, i: table.index_select(0, i),
        lambda table, i: table.gather(0, i[:, None].expand(-1, 3)),
        lambda table, i: table.scatter_add(0, i[:, None].expand(-1, 3), table[:2]),
        lambda table, i: table.scatter(0, i[:, None].expand(-1, 3), 1.0),
    ],
    ids=["embedding", "index_select", "gather", "scatter_add", "scatter"],
)
def test_negative_indices_that_eager_refuses(read: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = Lookup(read)
    model = ORTModule(module, QUIET)
    good, bad = torch.tensor([0, 5]), torch.tensor([0, -1])
    torch.testing.assert_close(model(good), module(good))
    for run in (module, model):
        with pytest.raises((IndexError, RuntimeError), match=r"out of range|out of bounds|lie in"):
            run(bad)
    torch.testing.assert_close(model(good), module(good))


def test_negative_indices_that_count_from_the_back() -> None:
    module = Lookup(lambda table, i: table[i] + table.index_put((i,), table[:2])[i])
    model = ORTModule(module, QUIET)
    index = torch.tensor([-1, 2])
    torch.testing.assert_close(model(index), module(index))


def _put(table: Tensor, index: Tensor) -> Tensor:
    table = table.clone()
    table[index] = table[:2] * 2
    return table


@pytest.mark.parametrize(
    "read",
    [
        lambda table, i: table.gather(0, i[:, None].expand(-1, 3)),
        lambda table, i: table.scatter_add(0, i[:, None].expand(-1, 3), table[:2]),
        _put,
    ],
    ids=["gather", "scatter_add", "index_put"],
)
def test_an_index_per_row_is_not_copied_to_the_rows(read: Callable[..., Tensor]) -> None:
    module = Lookup(read)
    model = ORTModule(module, QUIET)
    index = torch.tensor([5, 1])
    grads = []
    for run in (module, model):
        module.zero_grad()
        run(index).square().sum().backward()
        grads.append(module.table.grad)
    torch.testing.assert_close(grads[1], grads[0])
    assert "note: copy" not in model._compiler.pieces[0].compiled.text("plan")


@pytest.mark.parametrize("name", ["scatter_add", "index_put"])
def test_a_tensor_that_is_added_to_itself(name: str) -> None:
    """It may not be summed up in its own memory."""

    def read(table: Tensor, i: Tensor) -> Tensor:
        x = table.index_select(0, i) * 2  # which nobody else reads
        if name == "index_put":
            return x.index_put((i,), x, accumulate=True)
        return x.scatter_add(0, i[:, None].expand(-1, 3), x)

    module = Lookup(read)
    index = torch.tensor([1, 2, 3, 4, 5, 0])
    torch.testing.assert_close(ORTModule(module, QUIET)(index), module(index))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gather", "scatter_add"])
def test_many_updates_of_16_bits_are_added_up(name: str, dtype: torch.dtype) -> None:
    """A sum of 16 bits would stay at 256 or 2048."""
    index = torch.zeros(3000, dtype=torch.int64)
    ones = torch.ones(3000, dtype=dtype)

    def read(table: Tensor, i: Tensor) -> Tensor:
        flat = table.flatten()
        return flat.gather(0, i) if name == "gather" else flat.scatter_add(0, i, ones)

    module = Lookup(read).to(dtype)
    found = []
    for run in (module, ORTModule(module, QUIET)):
        module.zero_grad()
        y = run(index)
        y.backward(torch.ones_like(y))
        found.append((y, module.table.grad))
    for ours, eager in zip(*found, strict=True):
        assert torch.equal(ours, eager)
    assert max(float(value.detach().max()) for value in found[0]) >= 2900


class Reads(nn.Module):
    def __init__(self, read: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))
        self.read = read

    def forward(self, index: Tensor) -> Tensor:
        return self.read(self.w * 2, index)


@pytest.mark.parametrize(
    "read",
    [
        lambda w, i: w[i],
        lambda w, i: w.index_select(0, i),
        lambda w, i: F.embedding(i, w),
        lambda w, i: F.cross_entropy(w.mT[:2], i),
    ],
)
def test_an_index_out_of_range_is_an_index_error(read: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = Reads(read)
    model = ORTModule(copy.deepcopy(module), QUIET)
    for good in ([0, 1], [2, 3]):
        model(torch.tensor(good)).sum().backward()
    for runner in (module, model):
        with pytest.raises(IndexError):
            runner(torch.tensor([0, 9]))
    with pytest.raises(ORTModuleError):
        model(torch.tensor([0, 9]))


class Masking(nn.Module):
    """Writes a value that trains where a mask is true, or at some places."""

    def __init__(self, write: Callable[[Tensor, Tensor, Tensor], None]) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(6))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.write(y, x > 0.3, self.value)
        return y.tanh()


MASKED: dict[str, Callable[[Tensor, Tensor, Tensor], None]] = {
    "number": lambda y, mask, value: y.__setitem__(mask, value.sum()),
    "row": lambda y, mask, value: y.__setitem__(mask[:, :, 0], value),
    "one row": lambda y, mask, value: y.__setitem__(mask[:, 0, 0], value[None, None]),
    "columns": lambda y, mask, value: y.__setitem__((slice(None), mask[0, :, 0]), value[:1]),
    "last dims": lambda y, mask, value: y.__setitem__((..., mask[0]), value[None, :1]),
    "places of a dim": lambda y, _, value: y.index_fill_(-1, torch.tensor([4, 0, 4]), value.sum()),
}


@pytest.mark.parametrize("kind", MASKED)
def test_a_value_that_trains_is_written_by_a_mask(kind: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = Masking(MASKED[kind])
    model = ORTModule(copy.deepcopy(module), QUIET)
    for rows in (3, 5, 4):
        x = torch.randn(rows, 4, 6)
        found = []
        for run in (module, model):
            leaf = x.clone().requires_grad_()
            y = run(leaf)
            y.square().sum().backward()
            found.append((y.detach(), leaf.grad))
        for ours, eager in zip(*found, strict=True):
            torch.testing.assert_close(ours, eager)
    torch.testing.assert_close(model.module.value.grad, module.value.grad)
    report = last_run_report(model)
    assert report["compiled"] and not report["eager_pieces"], report
