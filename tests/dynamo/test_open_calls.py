"""Layers that call an object which forward has made, as decoders do with their cache, are copied, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py.dynamo import layer_copies
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import as_in_eager, assert_whole, original

COPIES = running_torch() >= (2, 13)
"""Whether layers are copied; before, all of them are traced, with the same results."""


class _Slot:
    values: Tensor | None = None

    def update(self, values: Tensor) -> Tensor:
        self.values = values if self.values is None else torch.cat([self.values, values], 1)
        return self.values


class _Cache:
    """One slot for each layer, made when it is needed."""

    def __init__(self) -> None:
        self.slots: list[_Slot] = []
        self.calls = 0
        self.inner: Any = None
        self.sizes: dict[str, Any] = {}

    def update(self, values: Tensor, index: int, sizes: Any = None) -> Tensor:
        self.calls += 1
        if sizes is not None and sizes.get("index") == 4:
            values = values * 2
        while len(self.slots) <= index:
            self.slots.append(_Slot())
        return self.slots[index].update(values * (1 + index))

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def first_as_it_is(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values if self.calls == 4 else values * 2

    def as_it_is_but_once(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values * 2 if self.calls == 4 else values

    def set_last(self, values: Tensor) -> None:
        self.last = values * 2

    def adopt(self, slot: _Slot) -> None:
        self.slots.append(slot)

    def take(self, values: Tensor) -> Tensor:
        self.calls += 1
        if self.calls != 4:
            raise KeyError("nothing to take")
        return values * 3

    def note(self, values: Tensor) -> None:
        self.slots.append(_Slot())
        self.slots[-1].values = values.sum(1)

    def mark(self, sizes: dict[str, Tensor]) -> Tensor:
        self.calls += 1
        sizes["extra"] = sizes["x"] * self.calls
        return sizes["x"] * 1.0

    def grow(self, values: Tensor) -> Tensor:
        self.calls += 1
        self.grown = True
        return values + self.calls


class _Layer(nn.Module):
    """Enough calls for a copy to pay."""

    def __init__(self, index: int, call: Callable[[_Layer, Tensor, _Cache], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4, eps=1.0)
        self.index, self.call = index, call

    def forward(self, x: Tensor, cache: _Cache) -> Tensor:
        y = self.norm(self.first(x)).tanh().sin().relu()
        return x + self.last(self.call(self, y, cache)).cos()


class Decoder(nn.Module):
    """Returns what is in its cache, too."""

    def __init__(self, call: Callable[[_Layer, Tensor, _Cache], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(_Layer(i, call) for i in range(6))

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        cache = _Cache()
        cache.inner = _Cache()
        x = x + 0.5 * x.detach()
        for layer in self.layers:
            x = layer(x, cache)
        last = getattr(cache, "last", None)
        return x, cache.calls, cache.inner.calls, last, *(slot.values for slot in cache.slots)


def update(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    """As in a decoder."""
    return cache.update(y, layer.index).square()


def _with_a_dictionary(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    return cache.update(y.sin(), layer.index, sizes={"y": y.cos(), "none": None}).square()


def _of_its_attribute(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    return cache.inner.update(y, layer.index).square()


def _without_a_result(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    cache.note(y)
    return y.square()


def _twice(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    return cache.update(cache.update(y, layer.index)[:, :3], layer.index)[:, :3] * y


def _index_read_before(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    y = y * 3 if layer.index == 2 else y
    return cache.update(y, layer.index)


def _index_read_after(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    y = cache.update(y, layer.index)
    return y * 3 if layer.index == 2 else y


def _index_read_again(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    index = layer.index
    y = cache.update(y, index)
    return y * index


def _index_in_a_dictionary(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    given = {"index": layer.index}
    return cache.update(y, 0, sizes=given)[:, :3] * given["index"]


def _count_read(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    y = cache.update(y, layer.index)
    return y * 3 if cache.calls == 3 else y


def _count_returned(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    return y * cache.count()


def _attribute_looked_for(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    y = y * 3 if hasattr(cache, "grown") else y
    return cache.grow(y)


def _all_attributes(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    y = y * len(vars(cache))
    return cache.grow(y)


def _list_read(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    y = cache.update(y, layer.index)
    return y * len(cache.slots)


def _list_changed(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    cache.slots.append(_Slot())
    cache.slots[-1].values = y.sum(1)
    return y * 2


def _passed_on_for_one(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    z = cache.first_as_it_is(y)
    return z + y.square() * z


def _passed_on_but_once(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    z = cache.as_it_is_but_once(y)
    return z + y.square() * z


def _attribute_of_the_call(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    cache.set_last(y)
    return y + cache.last.sin()


def _attribute_changed(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    cache.last = y * 2
    return y.cos()


def _own_object_given(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    slot = _Slot()
    slot.values = y.sum(1)
    cache.adopt(slot)
    return y * 2


def _error_handled(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    try:
        return cache.take(y)
    except KeyError:
        return y * 2


def _argument_changed(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    sizes = {"x": y}
    y = cache.mark(sizes)
    return y + sizes["extra"]


def _without_gradients(layer: _Layer, y: Tensor, cache: _Cache) -> Tensor:
    with torch.no_grad():
        z = cache.update(y, layer.index)
    return y * z


COPIED = [update, _with_a_dictionary, _of_its_attribute, _without_a_result, _twice]
TRACED = [
    *(_index_read_before, _index_read_after, _index_read_again, _count_read, _count_returned),
    *(_attribute_looked_for, _all_attributes, _list_read, _list_changed, _passed_on_for_one),
    *(_argument_changed, _without_gradients, _index_in_a_dictionary, _passed_on_but_once),
    *(_attribute_of_the_call, _attribute_changed, _own_object_given, _error_handled),
]


@pytest.mark.parametrize("call", [*COPIED, *TRACED])
def test_each_layer_has_its_own_call(call: Callable[[_Layer, Tensor, _Cache], Tensor]) -> None:
    def step(model: Any) -> list[Any]:
        results = []
        for size in (3, 3, 5):
            x = (
                torch.linspace(-1, 1, 12 * size, dtype=torch.float64)
                .view(size, 3, 4)
                .requires_grad_()
            )
            found = model(x)
            sum(
                value.sum() for value in found if isinstance(value, Tensor) and value.requires_grad
            ).backward()
            results.append((found, x.grad))
        return results

    before = layer_copies.copied_layers
    ours = as_in_eager(Decoder(call).double(), step)
    assert_whole(ours)
    copied = layer_copies.copied_layers - before
    if call in COPIED:
        # One of the six is traced; whatever the size of the batch, this is one capture.
        assert copied == (5 if COPIES else 0)


def test_a_number_of_a_layer_that_changes_later() -> None:
    def step(model: Any) -> list[Any]:
        results = []
        for index in (3, 3, 7):
            original(model).layers[3].index = index
            found = model(torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 3, 4))
            found[0].sum().backward()
            results.append(found)
        return results

    before = layer_copies.copied_layers
    assert_whole(as_in_eager(Decoder(update).double(), step), captures=2)
    assert (layer_copies.copied_layers > before) == COPIES
