"""Whatever is recomputed: the same loss, gradients and buffers, bit by bit, and the planned peak."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule, explain, last_run_report
from ortmodule_py.compile.step_budget import reserved_bytes
from ortmodule_py.testing import install_counting_allocator, measure_peak
from tests.small_models import MODELS, make

QUICK = ("mlp",)
LAYERS = 4


def names() -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "ERROR")


def step(model: Any, batch: dict[str, Tensor], seed: int = 11) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and buffers, and all gradients, of one step."""
    torch.manual_seed(seed)
    model.zero_grad()
    loss = model(**batch)
    loss.backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [loss.detach(), *(b.clone() for b in model.buffers())], grads


def assert_same(a: tuple[list[Tensor], list[Tensor]], b: tuple[list[Tensor], list[Tensor]]) -> None:
    for left, right in zip(a, b, strict=True):
        assert len(left) == len(right)
        assert all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


Ran = tuple[tuple[list[Tensor], list[Tensor]], dict[str, Any], Any]


def run(name: str, budget: str | None = None, layers: int = LAYERS) -> Ran:
    """What one step gives, its report, and the compiled piece."""
    module, batch = make(name, layers)
    model = ORTModule(module, memory_budget=budget)
    result = step(model, batch)
    return result, last_run_report(model), model._compiler.pieces[0].compiled


@functools.cache
def run_plain(name: str, layers: int = LAYERS) -> Ran:
    """`run` with nothing recomputed, once for all tests."""
    with pytest.MonkeyPatch.context() as environment:
        for variable in ("LEVEL", "CONFIG", "BUDGET"):
            environment.delenv(f"ORTMODULE_MEMORY_OPT_{variable}", raising=False)
        return run(name, layers=layers)


@pytest.mark.parametrize("name", names())
def test_layers_are_found_and_levels_change_no_bit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers too: statistics of batches are updated once, whatever runs again."""
    layers = 6 if name == "t5" else LAYERS  # two of its encoder are not found
    plain, report, unchanged = run_plain(name, layers=layers)
    found = [group["count"] for group in unchanged.memory()["layers"]]
    assert found == MODELS[name].layers(layers)
    for level in ("1", "2"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        result, other, piece = run(name, layers=layers)
        assert piece.memory()["recomputed_values"] or name == "mlp"
        assert_same(plain, result)
        assert other["planned_peak_bytes"] <= report["planned_peak_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "bert", "resnet", "llama"])
def test_rows_change_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row alone: all of one model, and of others the four that save most of those it lacks."""
    plain, _, piece = run_plain(name, layers=1)
    rows = piece.memory()["rows"]
    assert rows
    chosen = list(range(len(rows)))
    if name != "gpt":
        known = {row["cluster_id"] for row in run_plain("gpt", layers=1)[2].memory()["rows"]}
        chosen = [n for n in chosen if rows[n]["cluster_id"] not in known]
        chosen = sorted(chosen, key=lambda n: -rows[n]["saving_bytes"])[:4]
    for number in chosen:
        row = rows[number]
        config = f"{row['cluster_id']}:{row['strategy']}:-1"
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
        result, report, applied = run(name, layers=1)
        assert_same(plain, result)
        on = [r["cluster_id"] for r in applied.memory()["rows"] if r["applied"]]
        assert on == [row["cluster_id"]]
        if report["prediction_exact"]:
            assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
        assert report["planned_peak_bytes"] == piece.row_figures(number)["peak_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_budgets_are_kept_and_monotone(name: str) -> None:
    plain, report, _ = run_plain(name)
    unlimited = report["planned_peak_bytes"]
    last_peak, last_time, minimum = 0, float("inf"), 0
    for percent in (100, 75, 50):
        budget = f"activations:{unlimited * percent // 100}"
        try:
            result, other, piece = run(name, budget)
        except RuntimeError as error:
            assert "use a smaller batch or a budget of at least" in str(error)
            break
        assert_same(plain, result)
        facts = piece.memory()
        peak, time = other["planned_peak_bytes"], facts["after"]["time_us"]
        assert peak <= unlimited * percent // 100
        assert minimum in (0, facts["minimum_bytes"]), "the minimum does not depend on the budget"
        minimum = facts["minimum_bytes"]
        if last_peak:
            assert peak <= last_peak
            assert time >= last_time
        last_peak, last_time = peak, time
    assert minimum


@pytest.mark.slow
def test_request_count_takes_the_first_occurrences(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, piece = run_plain("gpt")
    row = next(r for r in piece.memory()["rows"] if r["cluster_id"] == "BiasGelu+")
    assert row["frequency"] >= 3
    for count in (0, 2):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", f"BiasGelu+:1:{count}")
        _, _, applied = run("gpt")
        chosen = [s for s in applied.memory()["stashes"] if s["op"] == "BiasGelu"]
        assert [s["chosen"] for s in chosen] == [1] * count + [0] * (len(chosen) - count)


@pytest.mark.slow
def test_forwards_in_flight_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two forwards, no_grad and another shape between, backward in reverse: dropout included."""
    module, batch = make("gpt", layers=2)
    _, other = make("gpt", layers=2, batch=3)

    def gradients(**options: str) -> list[Tensor]:
        model = ORTModule(copy.deepcopy(module), **options)
        torch.manual_seed(5)
        first = model(**batch)
        with torch.no_grad():
            model(**batch)
        second = model(**other)
        second.backward()
        first.backward()
        return [p.grad for p in model.parameters()]

    plain = gradients()
    found = [gradients(memory_budget="activations:70%")]
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    found.append(gradients())
    for optimized in found:
        assert all(torch.equal(a, b) for a, b in zip(plain, optimized, strict=True))


def test_retained_graph_runs_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward that may run again must leave saved values as they were."""
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    module, batch = make("gpt", layers=2)
    model = ORTModule(module)
    torch.manual_seed(5)
    loss = model(**batch)
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss.backward(retain_graph=True)
    again = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    last = [p.grad.clone() for p in model.parameters()]
    for grads in (again, last):
        assert all(torch.equal(a, b) for a, b in zip(first, grads, strict=True))


@pytest.mark.slow
def test_a_larger_shape_is_fitted_or_warned_about(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "WARNING")
    module, batch = make("gpt", batch=4)
    peak = run_plain("gpt")[1]["planned_peak_bytes"]
    model = ORTModule(module, memory_budget=f"activations:{int(peak * 3)}")
    step(model, batch)
    capfd.readouterr()
    step(model, make("gpt", batch=64)[1])
    assert "It runs above the budget" in capfd.readouterr().err
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_STRICT", "1")
    strict = ORTModule(make("gpt")[0], memory_budget=f"activations:{int(peak * 3)}")
    step(strict, batch)
    with pytest.raises(RuntimeError, match="use a smaller batch or a budget of at least"):
        step(strict, make("gpt", batch=64)[1])
    step(strict, batch)


@pytest.mark.slow
def test_batch_norm_statistics_are_updated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    module, batch = make("resnet")
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    for _ in range(3):
        model(**batch).backward()
        eager(**batch).backward()
    assert model._compiler.pieces[0].compiled.memory()["recomputed_values"]
    for (name, mine), theirs in zip(module.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, images: Tensor) -> Tensor:
        return F.gelu(self.second(F.gelu(self.first(images)))).square().mean()


def module_that_grows() -> tuple[Any, dict[str, Tensor], dict[str, Tensor], str]:
    """A module, a batch of one, a larger one, which is a capture of its own, and too small a budget."""
    module, batch = Convolutions(), {"images": torch.randn(1, 3, 16, 16)}
    plain = ORTModule(copy.deepcopy(module))
    step(plain, batch)
    budget = f"activations:{2 * last_run_report(plain)['planned_peak_bytes']}"
    return module, batch, {"images": torch.randn(16, 3, 16, 16)}, budget


@pytest.mark.slow
def test_a_larger_shape_that_is_captured_anew_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "WARNING")
    module, batch, large, budget = module_that_grows()
    model = ORTModule(copy.deepcopy(module), memory_budget=budget)
    step(model, batch)
    capfd.readouterr()
    step(model, large)
    assert last_run_report(model)["captures"] == 2
    assert "It runs above the budget" in capfd.readouterr().err
    with pytest.raises(RuntimeError, match="use a smaller batch or a budget of at least"):
        step(ORTModule(copy.deepcopy(module), memory_budget=budget), large)
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_STRICT", "1")
    strict = ORTModule(copy.deepcopy(module), memory_budget=budget)
    step(strict, batch)
    with pytest.raises(RuntimeError, match="use a smaller batch or a budget of at least"):
        step(strict, large)


@pytest.mark.slow
def test_the_backend_of_torch_compile_warns_in_mid_training_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "WARNING")
    module, batch, large, budget = module_that_grows()
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_BUDGET", budget)
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="use a smaller batch or a budget of at least"):
        step(torch.compile(copy.deepcopy(module), backend="ortmodule"), large)
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(module), backend="ortmodule")
    step(compiled, batch)
    capfd.readouterr()
    step(compiled, large)
    assert "It runs above the budget" in capfd.readouterr().err


@pytest.mark.slow
def test_a_percentage_holds_for_each_shape() -> None:
    module = make("gpt", layers=2)[0]
    plain, part = ORTModule(copy.deepcopy(module)), 0.8
    model = ORTModule(module, memory_budget=f"activations:{part:.0%}")
    for size in (8, 16, 5):
        batch = make("gpt", batch=size)[1]
        step(plain, batch)
        step(model, batch)
        peak = last_run_report(plain)["planned_peak_bytes"]
        assert last_run_report(model)["planned_peak_bytes"] <= part * peak


class Plain(nn.Module):
    """Nothing worth recomputing: one layer, whose values are needed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).tanh().sum()


def test_a_model_that_gains_nothing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    model = ORTModule(Plain())
    model(torch.randn(4, 8)).backward()
    facts = model._compiler.pieces[0].compiled.memory()
    assert facts["recomputed_values"] == 0
    assert any("nothing is recomputed" in warning for warning in facts["warnings"])


class Forbidding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x))).square().mean()


def test_a_row_that_the_configuration_forbids_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(256, 16)
    plain = ORTModule(Forbidding())
    plain(x).backward()
    rows = plain._compiler.pieces[0].compiled.memory()["rows"]
    row = max(rows, key=lambda r: r["saving_bytes"])
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", f"{row['cluster_id']}:0:-1")
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    model = ORTModule(Forbidding(), memory_budget="activations:100%")
    model(x).backward()
    shown = model._compiler.pieces[0].compiled.memory()["rows"]
    reasons = {r["cluster_id"]: r["reason"] for r in shown}
    assert reasons[row["cluster_id"]] == "the configuration forbids it"
    assert explain(model).rows


class Scores(nn.Module):
    """A large table, and attention whose scores grow with the square of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4000, 32)
        self.maps = nn.ModuleList(nn.Linear(32, 96) for _ in range(4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for layer in self.maps:
            q, k, v = layer(x).chunk(3, -1)
            x = x + (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return x.square().mean()


@pytest.mark.slow
def test_a_level_is_chosen_anew_for_a_much_larger_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    saved = []
    for first in (4, 256):
        model = ORTModule(Scores())
        for length in (first, 256):
            model(torch.randint(4000, (2, length))).backward()
        saved.append(last_run_report(model)["saved_bytes"])
    assert saved[0] == saved[1]


@pytest.mark.slow
def test_gradients_of_earlier_steps_count_in_a_budget_for_all_bytes() -> None:
    install_counting_allocator()
    layers = [m for _ in range(6) for m in (nn.Linear(512, 512), nn.GELU())]
    module = nn.Sequential(*layers)
    x = torch.randn(1024, 512)
    plain = ORTModule(copy.deepcopy(module))
    plain(x).sum().backward()
    held = reserved_bytes(module, torch.device("cpu"))
    budget = held + last_run_report(plain)["planned_peak_bytes"]
    model = ORTModule(module, memory_budget=str(budget))
    for step_number in range(3):
        gradients = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
        with measure_peak() as measured:
            model(x).sum().backward()
        assert measured.peak_above_start + gradients <= budget - held + (1 << 16), step_number


def _dropped(x: Tensor) -> Tensor:
    """Stochastic depth: whole samples of a branch, as image models write it."""
    kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.8)
    return x * kept.div_(0.8)


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + _dropped(self.attention(y, y, y, need_weights=False)[0])
        return x + _dropped(self.mlp(self.norms[1](x)))


class ConvNextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)))
        return x + _dropped(y.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("block", "shape"), [(TransformerBlock, (8, 16, 32)), (ConvNextBlock, (8, 16, 8, 8))]
)
def test_stochastic_depth_is_drawn_again(
    block: type[nn.Module], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(*(block() for _ in range(3))), torch.randn(shape)
    found, saved = [], []
    for level in ("0", "1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        torch._dynamo.reset()
        model = ORTModule(copy.deepcopy(module))
        torch.manual_seed(11)
        model(x).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
        report = last_run_report(model)
        assert report["compiled"] and report["captures"] == 1, report["eager_pieces"]
        saved.append(report["saved_bytes"])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert saved[1] < 0.5 * saved[0]
