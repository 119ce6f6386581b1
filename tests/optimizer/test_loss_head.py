"""Linear layer and cross entropy as one op: its values, gradients and bytes, and what leads to it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.nn import LinearCrossEntropy
from ortmodule_py.options.memory import MemoryRequest
from ortmodule_py.report.plan_table import table_lines, training_piece

CLASSES, WIDTH = 1031, 24


class Model(nn.Module):
    """A head over a small body; rows are cast, sliced and flattened on the way to the loss."""

    def __init__(
        self,
        bias: bool = False,
        shift: bool = False,
        tied: bool = False,
        classes_second: bool = False,
        **loss: Any,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.shift = shift
        self.classes_second = classes_second
        self.loss = loss

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.head(torch.tanh(self.body(self.embedding(tokens))))
        used, wanted = scores, labels
        if self.shift:
            used, wanted = scores[:, :-1].float(), labels[:, 1:]
        if self.classes_second:
            loss = F.cross_entropy(used.transpose(1, 2), wanted, **self.loss)
            return {"loss": loss, "scores": scores}
        flat = used.reshape(-1, CLASSES)
        return {"loss": F.cross_entropy(flat, wanted.reshape(-1), **self.loss), "scores": scores}


def batch(rows: int = 6, length: int = 50) -> tuple[Tensor, Tensor]:
    tokens, labels = torch.randint(0, CLASSES, (2, rows, length))
    labels[0, :7] = -100
    return tokens, labels


def fused_count(model: ORTModule) -> int:
    (piece,) = model._compiler.pieces
    return int(piece.compiled.text("joint").count("= LinearCrossEntropy"))


def check_gradients(
    ours: nn.Module, eager: nn.Module, exact: nn.Module, relative: float = 1e-5
) -> None:
    for (name, mine), theirs, wanted in zip(
        ours.named_parameters(), eager.parameters(), exact.parameters(), strict=True
    ):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is None or theirs.grad is None or wanted.grad is None:
            continue
        assert mine.grad.dtype == theirs.grad.dtype and mine.grad.stride() == theirs.grad.stride()
        largest = float(wanted.grad.abs().max())
        error = float((mine.grad.double() - wanted.grad).abs().max())
        allowed = max(2 * float((theirs.grad.double() - wanted.grad).abs().max()), 1e-4 * largest)
        assert error <= max(allowed, relative * largest), name


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": True},
    {"shift": True},
    {"tied": True},
    {"classes_second": True},
    {"tied": True, "bias": True, "shift": True},
    {"reduction": "sum"},
    {"label_smoothing": 0.1, "bias": True},
    {"weight": torch.linspace(0.1, 2, CLASSES)},
    {"weight": torch.linspace(0.1, 2, CLASSES), "label_smoothing": 0.2, "ignore_index": 3},
]


@pytest.mark.parametrize(
    ("options", "retain"),
    [
        pytest.param(o, n % 2 == 1, marks=[pytest.mark.slow] * (n % 2), id="-".join(o) or "plain")
        for n, o in enumerate(OPTIONS)
    ],
)
def test_gradients_are_eagers(options: dict[str, Any], retain: bool) -> None:
    torch.manual_seed(0)
    eager = Model(**options)
    ours, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    if "weight" in options:
        exact.loss = options | {"weight": options["weight"].double()}
        eager.loss = ours.loss = exact.loss | {"weight": options["weight"]}
    for model in (eager, ours, exact):
        own = ("bias", "shift", "tied", "classes_second")
        model.loss = {k: v for k, v in model.loss.items() if k not in own}
    model = ORTModule(ours, outputs=["loss"])
    tokens, labels = batch()
    labels[labels == -100] = options.get("ignore_index", -100)
    for runner in (eager, model, exact):
        for _ in range(2):  # the second backward accumulates
            result = runner(tokens, labels)
            loss = result["loss"] * 3
            if retain:
                loss.backward(retain_graph=True)
            loss.backward()
    assert fused_count(model) == 1
    torch.testing.assert_close(model(tokens, labels)["loss"], eager(tokens, labels)["loss"])
    assert model(tokens, labels)["scores"] is None
    check_gradients(ours, eager, exact)
    report = last_run_report(model)
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"]


def test_levels_and_rows_recompute_the_head_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A head that runs again in backward makes unit gradients alone, not the loss."""
    torch.manual_seed(0)
    first = Model(bias=True, tied=True)
    tokens, labels = batch()
    initial = copy.deepcopy(first)
    plain = ORTModule(first, outputs=["loss"])
    plain(tokens, labels)["loss"].backward()
    rows = training_piece(plain._compiler).memory()["rows"]
    assert any("LinearCrossEntropy+" in row["cluster_id"] for row in rows)
    settings = [("CONFIG", f"{row['cluster_id']}:{row['strategy']}:-1") for row in rows]
    for name, value in [*settings, ("LEVEL", "1"), ("LEVEL", "2")]:
        monkeypatch.setenv(f"ORTMODULE_MEMORY_OPT_{name}", value)
        again = copy.deepcopy(initial)
        ORTModule(again, outputs=["loss"])(tokens, labels)["loss"].backward()
        for a, b in zip(first.parameters(), again.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad), value
        monkeypatch.delenv(f"ORTMODULE_MEMORY_OPT_{name}")


def test_autocast() -> None:
    torch.manual_seed(0)
    eager = Model(bias=True, shift=True)
    ours, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    model = ORTModule(ours, outputs=["loss"])
    tokens, labels = batch()
    for runner in (eager, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = runner(tokens, labels)["loss"]
        assert loss.dtype == torch.float32
        loss.backward()
    exact(tokens, labels)["loss"].backward()
    assert fused_count(model) == 1
    check_gradients(ours, eager, exact, relative=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_with_a_scaled_loss(dtype: torch.dtype) -> None:
    """The unit gradients of many rows are below the least float16; scaled they are not."""
    torch.manual_seed(0)
    eager = Model().to(dtype)
    ours, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    model = ORTModule(ours, outputs=["loss"])
    tokens, labels = batch(64, 64)
    for runner in (eager, model, exact):
        (runner(tokens, labels)["loss"] * 1024).backward()
    check_gradients(ours, eager, exact, relative=2e-2)


class Columns(nn.Module):
    """A head whose weight has a column for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, CLASSES) / 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.body(x) @ self.weight, labels)


def test_sixteen_bits_and_a_column_for_each_class() -> None:
    torch.manual_seed(0)
    eager = Columns().bfloat16()
    ours, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    model = ORTModule(ours)
    x, labels = torch.randn(300, WIDTH).bfloat16(), torch.randint(0, CLASSES, (300,))
    for runner in (eager, model, exact):
        runner(x.double() if runner is exact else x, labels).backward()
    assert fused_count(model) == 1
    check_gradients(ours, eager, exact, relative=2e-2)


def test_no_label_counts() -> None:
    eager = Model(bias=True)
    ours = copy.deepcopy(eager)
    model = ORTModule(ours, outputs=["loss"])
    tokens, labels = batch()
    labels.fill_(-100)
    for runner in (eager, model):
        loss = runner(tokens, labels)["loss"]
        assert loss.isnan()
        loss.backward()
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, equal_nan=True)


class Rows(nn.Module):
    """A head alone, over rows that have a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x), labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_ignored_labels_are_left_out(dtype: torch.dtype) -> None:
    """Their gradient is 0; one that is not finite makes gradients NaN, as in eager PyTorch."""
    torch.manual_seed(0)
    eager = Rows().to(dtype)
    ours, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    model = ORTModule(ours)
    x, labels = torch.randn(700, WIDTH).to(dtype), torch.randint(0, CLASSES, (700,))
    ignored = torch.arange(700) % 9 > 0
    ignored[:20] = True
    labels[ignored] = -100
    given = [x.to(d, copy=True).requires_grad_() for d in (dtype, dtype, torch.float64)]
    losses = [run(g, labels) for run, g in zip((model, eager, exact), given, strict=True)]
    for loss in losses:
        loss.backward()
    assert fused_count(model) == 1
    relative = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(losses[0].double(), losses[2], rtol=relative, atol=0)
    check_gradients(ours, eager, exact, relative)
    mine, wanted = (g.grad.double() for g in (given[0], given[2]) if g.grad is not None)
    assert mine[ignored].count_nonzero() == 0 and mine[~ignored].any(1).all()
    assert (mine - wanted).abs().max() <= relative * wanted.abs().max()
    x[1] = float("inf")
    for run in (model, eager):
        run.zero_grad()
        run(x, labels).backward()
    assert eager.head.weight.grad.isnan().any() and ours.head.weight.grad.isnan().any()


def test_a_wrong_label_is_an_error() -> None:
    model = ORTModule(Model(), outputs=["loss"])
    tokens, labels = batch()
    labels[0, 0] = CLASSES
    with pytest.raises(Exception, match="labels must lie in"):
        model(tokens, labels)


@pytest.mark.parametrize("frozen", ["head.weight", "body.weight"])
def test_frozen_parameters(frozen: str) -> None:
    torch.manual_seed(0)
    eager = Model()
    eager.get_parameter(frozen).requires_grad_(False)
    ours, exact = copy.deepcopy(eager), copy.deepcopy(eager).double()
    model = ORTModule(ours, outputs=["loss"])
    tokens, labels = batch()
    for runner in (eager, model, exact):
        runner(tokens, labels)["loss"].backward()
    check_gradients(ours, eager, exact)


def test_scores_that_are_returned_are_kept() -> None:
    model = ORTModule(Model())
    tokens, labels = batch()
    result = model(tokens, labels)
    assert result["scores"].shape == (6, 50, CLASSES)
    result["loss"].backward()
    assert fused_count(model) == 0
    (scores,) = model._compiler.pieces[0].compiled.memory()["returned_scores"]
    assert scores["bytes"] == result["scores"].nbytes and scores["module"] == "head"
    assert any(
        'outputs=["loss"]' in line
        for line in table_lines(training_piece(model._compiler), MemoryRequest())
    )


def test_scores_are_never_whole() -> None:
    """A thirty-second of the scores, and the gradients that are handed over anyway."""
    layer = LinearCrossEntropy(8, 4096, bias=False)
    rows = torch.randn(4096, 8, requires_grad=True)
    for _ in range(2):
        layer(rows, torch.randint(0, 4096, (4096,))).backward()
    report = last_run_report(layer.__dict__["_runner"])
    gradients = layer.weight.nbytes + rows.nbytes
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
    assert report["planned_peak_bytes"] - gradients < 4096 * 4096 * 4 / 20


def test_evaluation_makes_no_gradients() -> None:
    layer = LinearCrossEntropy(64, 4096).eval()
    rows = torch.randn(128, 64)
    with torch.no_grad():
        loss = layer(rows, torch.zeros(128, dtype=torch.long))
    want = F.cross_entropy(layer.scores(rows), torch.zeros(128, dtype=torch.long))
    torch.testing.assert_close(loss, want)
    assert last_run_report(layer.__dict__["_runner"])["measured_peak_bytes"] < 3 * 64 * 4096 * 4


# ---- outputs= -----------------------------------------------------------------------------------


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(), x * 2


@pytest.mark.parametrize("outputs", [[0], "0"])
def test_outputs_by_position_and_in_evaluation(outputs: Any) -> None:
    model = ORTModule(Pair(), outputs=outputs)
    total, doubled = model(torch.ones(3, requires_grad=True))
    assert total == 3 and doubled is None
    model.eval()
    assert model(torch.ones(3))[1].tolist() == [2, 2, 2]


def test_outputs_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_OUTPUTS", "loss")
    tokens, labels = batch()
    model = ORTModule(Model())
    assert model(tokens, labels)["scores"] is None
    both = ORTModule(Model(), outputs=["loss", "scores"])
    assert both(tokens, labels)["scores"] is not None


@pytest.mark.parametrize("outputs", [[], [1.5], [True], True, 1.5])
def test_outputs_that_name_nothing(outputs: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^\[outputs\]"):
        ORTModule(Pair(), outputs=outputs)


def test_an_unknown_output_is_an_error() -> None:
    tokens, labels = batch()
    with pytest.raises(ValueError, match="must be one of loss, scores, but found 'logits'"):
        ORTModule(Model(), outputs=["logits"])(tokens, labels)


def test_outputs_survive_copies() -> None:
    tokens, labels = batch()
    model = ORTModule(Model(), outputs=["loss"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other(tokens, labels)["scores"] is None


@dataclass
class Result:
    loss: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Frozen:
    loss: Tensor
    scores: Tensor

    def __post_init__(self) -> None:
        assert self.scores.dim() == 2


class Fixed:
    def __init__(self, loss: Tensor, scores: Tensor) -> None:
        self.loss, self.scores = loss, scores


class Returns(nn.Module):
    def __init__(self, kind: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.kind, self.fc = kind, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        scores = self.fc(x)
        return self.kind(scores.sum(), scores)


@pytest.mark.parametrize("kind", [Result, Frozen])
def test_fields_of_a_dataclass(kind: type[Any]) -> None:
    x, module = torch.ones(3, 4), Returns(kind)
    model = ORTModule(module, outputs=["loss"])
    found = model(x)
    assert type(found) is kind and found.scores is None
    torch.testing.assert_close(found.loss, module(x).loss)
    assert last_run_report(model)["compiled"]
    assert model.eval()(x).scores is not None
    with pytest.raises(ValueError, match="must be one of loss, scores, but found 'logits'"):
        ORTModule(module.train(), outputs=["logits"])(x)


def test_outputs_that_nothing_can_be_chosen_from() -> None:
    model = ORTModule(Returns(Fixed), outputs=["loss"])
    with pytest.raises(
        TypeError, match=r"must return a dict, a tuple or a dataclass .* found Fixed"
    ):
        model(torch.ones(3, 4))
    alone = ORTModule(Returns(lambda loss, scores: loss), outputs=["loss"])
    assert alone(torch.ones(3, 4)).dim() == 0


# ---- the layer ----------------------------------------------------------------------------------


def test_the_layer_is_a_linear_layer_with_a_loss() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, CLASSES)
    layer = LinearCrossEntropy.from_linear(linear, label_smoothing=0.1)
    assert layer.weight is linear.weight and set(layer.state_dict()) == {"weight", "bias"}
    rows = torch.randn(3, 40, WIDTH, requires_grad=True)
    labels = torch.randint(0, CLASSES, (3, 40))
    loss = layer(rows, labels)
    loss.backward()
    mine = [rows.grad, linear.weight.grad, linear.bias.grad]
    rows.grad = linear.weight.grad = linear.bias.grad = None
    want = F.cross_entropy(linear(rows).flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    want.backward()
    torch.testing.assert_close(loss, want)
    for ours, theirs in zip(mine, [rows.grad, linear.weight.grad, linear.bias.grad], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_layer_inside_a_module() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, WIDTH)
            self.criterion = LinearCrossEntropy(WIDTH, CLASSES)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return self.criterion(self.body(x).tanh(), labels)

    model = ORTModule(Whole())
    model(torch.randn(70, 8), torch.randint(0, CLASSES, (70,))).backward()
    assert fused_count(model) == 1 and last_run_report(model)["compiled"]


def test_an_unreduced_loss_of_the_layer() -> None:
    layer = LinearCrossEntropy(WIDTH, CLASSES, reduction="none")
    rows, labels = torch.randn(4, 5, WIDTH), torch.randint(0, CLASSES, (4, 5))
    want = F.cross_entropy(layer.scores(rows).flatten(0, 1), labels.flatten(), reduction="none")
    torch.testing.assert_close(layer(rows, labels), want.reshape(4, 5))
    assert pickle.loads(pickle.dumps(layer)).weight.shape == layer.weight.shape


def test_the_layer_does_not_obey_what_is_asked_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing in it to recompute, and its one output has no name."""
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_BUDGET", "activations:60%")
    monkeypatch.setenv("ORTMODULE_OUTPUTS", "scores")
    layer = LinearCrossEntropy(WIDTH, CLASSES)
    rows, labels = torch.randn(70, WIDTH), torch.randint(0, CLASSES, (70,))
    torch.testing.assert_close(layer(rows, labels), F.cross_entropy(layer.scores(rows), labels))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="target must have input's shape"):
        LinearCrossEntropy(4, 2000)(torch.randn(3, 4), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="reduction must be"):
        LinearCrossEntropy(4, 2000, reduction="avg")
