"""Python integers that change from call to call, negative ones too, and what they index."""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import Calls as Layer, as_in_eager, assert_compiled, assert_whole


def _assigned(x: Tensor, k: int) -> Tensor:
    y = x * 1
    y[:, k] = 7.0
    return y


USES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "slice": lambda x, k: x[:, k : k + 2] * 1.0,
    "tail": lambda x, k: x[:, k:] * 1.0,
    "head": lambda x, k: x[:, :k] * 1.0,
    "element": lambda x, k: x[:, k] * 1.0,
    "before": lambda x, k: x[:, k - 1] * 1.0,
    "narrow": lambda x, k: x.narrow(1, abs(k), 1) * 1.0,
    "assigned": _assigned,
    "rolled": lambda x, k: x.roll(k, 1) * 1.0,
}


class Calls(nn.Module):
    def __init__(self, use: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor, k: int) -> Tensor:
        return self.use(x, k)


NEGATIVE, POSITIVE, EITHER = (-4, -5, -6, -3), (2, 3, 4, 6), (3, -4, -5, 2, 0, -1)


@pytest.mark.parametrize(
    ("use", "numbers"),
    [
        ("slice", NEGATIVE),
        ("slice", POSITIVE),
        ("slice", EITHER),
        ("tail", EITHER),
        ("head", NEGATIVE),
        ("element", EITHER),
        ("before", NEGATIVE),
        ("narrow", EITHER),
        ("assigned", POSITIVE),
        ("rolled", NEGATIVE),
    ],
)
def test_integers_of_either_sign(use: str, numbers: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    eager = Calls(USES[use])
    ours = ORTModule(Calls(USES[use]))
    for k in numbers:
        results = []
        for runner in (eager, ours):
            x = torch.arange(24.0).reshape(3, 8).requires_grad_()
            y = runner(x, k)
            (y * y).sum().backward()
            results.append((y.detach(), x.grad))
        for want, got in zip(*results, strict=True):
            assert torch.equal(got, want), (k, got, want)


def _assigned_values(y: Tensor, k: int) -> Tensor:
    y = y * 1
    y[:, k] = y[:, 0] * 2
    y[..., k, 1:] += 1
    return y


INDEXES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "element": lambda y, k: y[:, k],
    "behind an ellipsis": lambda y, k: y[..., k, :],
    "with a new dim": lambda y, k: y[None, :, k, 1:],
    "two": lambda y, k: y[1, k],
    "beside a mask": lambda y, k: y[y[:, 0, 0] > -9, k],
    "beside an index": lambda y, k: y[torch.tensor([1, 0]), :, k - 2],
    "list": lambda y, k: y[[0, 1]][:, [k, 0, k - 1]],
    "lists": lambda y, k: y[[0, 1], [k, k - 1]],
    "assigned": _assigned_values,
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_by_integers_is_captured_once(name: str) -> None:
    def used(self: Any, x: Tensor, k: int) -> Tensor:
        return INDEXES[name](self.fc(x), k)

    def step(model: Any) -> list[Tensor]:
        results = [model(torch.randn(2, 7, 4), k) for k in (2, 3, 4, 5, 3)]
        sum(y.square().sum() for y in results).backward()
        return results

    report = as_in_eager(Layer(used), step)
    if name == "beside a mask":  # whose number of elements is data
        assert report["captures"] <= 4
    else:
        assert_whole(report, captures=2)


def test_a_new_dim_has_the_stride_of_eager() -> None:
    def used(self: Any, x: Tensor, k: int) -> Tensor:
        return self.fc(x)[:, None, k]

    as_in_eager(Layer(used), lambda model: [model(torch.randn(2, 7, 4), k) for k in (2, 3, 4)])


class Indexed(nn.Module):
    def forward(self, x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x[i, j] * 1.0


def test_each_index_is_checked_in_its_own_dimension() -> None:
    model = ORTModule(Indexed())
    x = torch.arange(15.0).reshape(3, 5).requires_grad_()
    i = torch.tensor([0, 1])
    assert torch.equal(model(x, i, torch.tensor([4, -5])), torch.tensor([4.0, 5.0]))
    for wrong in ([5, 0], [0, -6]):
        with pytest.raises(RuntimeError, match="indices must lie in"):
            model(x, i, torch.tensor(wrong))
    with pytest.raises(RuntimeError, match="indices must lie in"):
        model(x, torch.tensor([3, 0]), torch.tensor([0, 0]))


def test_a_label_does_not_count_from_the_back() -> None:
    loss = ORTModule(nn.NLLLoss(ignore_index=-7))
    scores = torch.randn(3, 4).log_softmax(-1).requires_grad_()
    labels = torch.tensor([0, -7, 3])
    torch.testing.assert_close(loss(scores, labels), nn.NLLLoss(ignore_index=-7)(scores, labels))
    with pytest.raises(RuntimeError, match="indices must lie in"):
        loss(scores, torch.tensor([0, -1, 1]))


def _pooled(pool: nn.Module, dims: int) -> tuple[ORTModule, list[str]]:
    """A model that ran with batches of four sizes, and what it said of sizes."""
    torch._dynamo.reset()
    conv = (nn.Conv2d if dims == 2 else nn.Conv3d)(1, 3, 3)
    eager = nn.Sequential(conv, pool)
    model = ORTModule(copy.deepcopy(eager))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(model._logger.name).addHandler(handler)
    for batch in (4, 7, 5, 6):
        x = torch.randn(batch, 1, *[9] * dims)
        results = []
        for runner in (model, eager):
            torch.manual_seed(batch)
            results.append(runner(x))
            results[-1].square().sum().backward()
        assert torch.equal(*results)
        assert torch.equal(model[0].weight.grad, eager[0].weight.grad)
    return model, [text for text in said if "is a capture" in text]


def test_fractional_pooling_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    for size in ({"output_size": 3}, {"output_ratio": 0.5}):
        model, said = _pooled(nn.FractionalMaxPool2d(2, **size), 2)
        assert_compiled(last_run_report(model))
        assert not said


def test_a_line_that_fixes_the_batch_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake kernels of this operator take no symbols."""
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    model, (said,) = _pooled(nn.FractionalMaxPool3d(2, output_size=3), 3)
    assert last_run_report(model)["captures"] == 4
    assert "a line that needs its exact value" in said and "pooling.py:" in said


def test_the_line_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that shares no folder with torch, and one beside it."""
    file = tmp_path / "rows.py"
    text = "import torch\n\n\nclass Rows(torch.nn.Module):\n    def forward(self, x):\n"
    file.write_text(text + "        return torch.stack([x[i] for i in range(x.shape[0])])\n")
    monkeypatch.syspath_prepend(tmp_path)
    elsewhere = importlib.import_module("rows")
    for rows, line in ((elsewhere.Rows(), f"{file}:6"), (Rows(), f"{__file__}:")):
        _model, (said,) = _pooled(rows, 2)
        assert f"({line}" in said, said


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[i] for i in range(x.shape[0])])
