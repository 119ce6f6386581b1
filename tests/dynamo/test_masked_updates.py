"""`x[mask] *= 2` and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, Calls, as_in_eager, assert_whole


def _halved(y: Tensor, x: Tensor) -> Tensor:
    y[x < 0] *= 0.5
    return y


def _rows(y: Tensor, x: Tensor) -> Tensor:
    """A mask of fewer dimensions, and a number with a name."""
    step = 2
    y[x.sum(1) > 0] -= step
    y[y > 100] /= 3
    return y


def _of_a_view(y: Tensor, x: Tensor) -> Tensor:
    y.t()[x.t() > 0.5] += 1
    return y.sin()


def _nothing(y: Tensor, x: Tensor) -> Tensor:
    y[x > 100] += 1.5
    return y


def _in_no_grad(y: Tensor, x: Tensor) -> Tensor:
    weights = torch.ones_like(x)
    with torch.no_grad():
        weights[x > 0] *= 3
    return y * weights


def _report(update: Callable[[Tensor, Tensor], Tensor]) -> Any:
    def steps(model: nn.Module) -> list[Tensor]:
        results = []
        for rows in (2, 3, 5):
            x = torch.linspace(-1, 1, 4 * rows).view(rows, 4)
            y = model(x)
            y.square().sum().backward()
            results += [y, x]
        return results

    return as_in_eager(Calls(lambda self, x: update(self.fc(x), x)), steps)


def _of_integers(y: Tensor, x: Tensor) -> Tensor:
    kept = (x * 3).int()
    kept[kept > 0] *= 2
    return y * kept


def _others(y: Tensor, x: Tensor) -> Tensor:
    """Negatives that are no positives, as wav2vec 2.0 draws them."""
    own = torch.arange(len(x)).unsqueeze(-1)
    drawn = (x.abs() * (len(x) - 1)).long()
    drawn[drawn >= own] += 1
    return y.gather(0, drawn.clamp(max=len(x) - 1))


@pytest.mark.parametrize(
    "update", [_halved, _rows, _of_a_view, _nothing, _in_no_grad, _of_integers, _others]
)
def test_an_update_under_a_mask_is_captured(update: Callable[..., Tensor]) -> None:
    assert_whole(_report(update))


def _by_tensor(y: Tensor, x: Tensor) -> Tensor:
    y[x > 0] *= x[0].detach().max()
    return y


def _selected(y: Tensor, x: Tensor) -> Tensor:
    y[x > 0] *= y[x > 0].tanh()
    return y


def _infinite(y: Tensor, x: Tensor) -> Tensor:
    """All elements would have no number as gradient."""
    y[x > 0.9] *= float("inf")
    return y.clamp(max=1)


@pytest.mark.parametrize("update", [_by_tensor, _selected, _infinite])
def test_other_updates_are_eagers(update: Callable[..., Tensor]) -> None:
    report = _report(update)
    if running_torch() >= (2, 13):
        assert report["graph_breaks"] or report["eager_pieces"]


def test_an_error_is_eagers() -> None:
    def wrong(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        y[x[:2] > 0] += 1
        return y

    def step(model: nn.Module) -> str:
        with pytest.raises(IndexError, match="does not match") as caught:
            model(torch.ones(3, 4))
        return type(caught.value).__name__

    as_in_eager(Calls(wrong), step)


# ---- values of their own ---------------------------------------------------------------------------


def _harder(self: Any, x: Tensor) -> Tensor:
    """The negatives of CurricularFace."""
    y = self.fc(x) * 1
    mask = y > 0.1
    hard = y[mask]
    y[mask] = hard * (0.5 + hard)
    return y.cos()


def _both_sides(self: Any, x: Tensor) -> Tensor:
    """The places of one mask and those of the other."""
    y: Tensor = self.fc(x)
    mask, new = y > 0.0, torch.zeros_like(y)
    new[mask] = y[mask].exp()
    new[~mask] = -y[~mask]
    return new


def _some_rows(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x) * 1
    mask = x[:, 2] > 0
    y[mask] = self.fc(y[mask]).sin()
    return y.cos()


def _no_rows(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.fc(x) * 1
    mask = x[:, 0] > 9
    y[mask] = self.fc(y[mask]).sin()
    return y


def _even_rows(self: Any, x: Tensor) -> Tensor:
    """The number of values is known."""
    tokens = torch.zeros(x.shape[0], 4)
    tokens[torch.arange(x.shape[0]) % 2 == 0] = self.fc(x)[::2]
    return tokens.sin()


@pytest.mark.parametrize("forward", [_harder, _both_sides, _some_rows, _no_rows, _even_rows])
def test_each_place_has_a_value_of_its_own(forward: Callable[..., Tensor]) -> None:
    def step(model: Any) -> list[Tensor]:
        found = []
        for rows in (5, 6, 7, 5):
            y = model(torch.linspace(-1, 1, rows * 4).view(4, rows).mT.contiguous())
            y.square().sum().backward()
            found.append(y)
        return found

    report = as_in_eager(Calls(forward), step)
    assert report["compiled"] and not report["eager_pieces"], report


def _nearest(self: Any, x: Tensor) -> Tensor:
    """The distances of farthest point sampling."""
    y = self.fc(x)
    distances = torch.full_like(y, 0.3)
    for shift in (0.0, 0.2, -0.1):
        found = (y - shift) ** 2
        mask = found < distances
        distances[mask] = found[mask]
    return distances


def _rows_of_another(self: Any, x: Tensor) -> Tensor:
    y, z, mask = self.fc(x) * 1, x.sin(), x[:, 2] > 0
    y[mask] = z[mask]
    return y.cos()


def _indices_of_another(self: Any, x: Tensor) -> Tensor:
    order = self.fc(x).argsort(1)
    first = order[:, :1].repeat(1, 4)
    late = order > 1
    order[late] = first[late]
    return self.fc(x).gather(1, order)


@pytest.mark.parametrize("forward", [_nearest, _rows_of_another, _indices_of_another])
def test_the_same_places_of_another_tensor(forward: Callable[..., Tensor]) -> None:
    def step(model: Any) -> list[Tensor]:
        found = []
        for rows in (5, 6, 7, 5):
            found.append(model(torch.linspace(-1, 1, rows * 4).view(4, rows).mT.contiguous()))
            found[-1].square().sum().backward()
        return found

    assert_whole(as_in_eager(Calls(forward), step))


def test_values_of_another_type_are_an_error() -> None:
    def wrong(self: Any, x: Tensor) -> Tensor:
        y, z, mask = self.fc(x) * 1, x.double(), x > 0
        y[mask] = z[mask]
        return y

    def step(model: nn.Module) -> str:
        with pytest.raises(RuntimeError, match="dtypes match") as caught:
            model(torch.ones(3, 4))
        return type(caught.value).__name__

    as_in_eager(Calls(wrong), step)


def test_a_number_of_another_type() -> None:
    def converted(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x) * 1
        y[x > 0] = x.double().mean()
        return y

    assert_whole(as_in_eager(Calls(converted), lambda model: model(torch.randn(3, 4))))


def test_another_number_of_values_is_an_error() -> None:
    def forward(self: Any, x: Tensor, mask: Tensor) -> Tensor:
        y = self.fc(x) * 1
        y[mask] = y[:2, 0]
        return y

    torch._dynamo.reset()
    model = ORTModule(Calls(forward), QUIET)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 1:3] = True
    model(torch.ones(3, 4), mask).sum().backward()
    mask[1] = True
    with pytest.raises(Exception, match="shape mismatch"):
        model(torch.ones(3, 4), mask)
