"""Saved activations in memory of the host: whole steps on the emulated device, whose copies happen as late
or as early as the plan permits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule_py import _C, ORTModule, explain, last_run_report
from ortmodule_py.base import gpu_checks, offload
from ortmodule_py.report.plan_table import training_piece
from tests import small_models
from tests.devices.emulated import EMULATED, emulated
from tools import offload_plans

# The first two run with every change.
MODELS = ("gpt", "mlp", "gpt_fused", "bert", "llama", "t5", "vit", "resnet")
Step = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As late as the plan permits; tests may change that."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1" if EMULATED else "0")
    monkeypatch.setenv("ORTMODULE_OFFLOAD", "1")
    yield
    _C.emulate_copies("late")


def gradients(model: nn.Module, batch: Any, **options: bool) -> Step:
    torch.manual_seed(3)
    model.zero_grad(set_to_none=True)
    model(**batch).backward(**options)
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_equal(found: Step, exact: Step) -> None:
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():
        assert torch.equal(found[name], gradient), name


def config_of_all(module: nn.Module, batch: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of everything that can be on the host."""
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "None+:3:0")
    listed = ORTModule(copy.deepcopy(module))
    listed(**batch)
    rows = training_piece(listed._compiler).memory()["rows"]
    return ",".join(dict.fromkeys(f"{r['cluster_id']}:3:-1" for r in rows if r["strategy"] == 3))


def offloading(module: nn.Module, batch: Any, monkeypatch: pytest.MonkeyPatch) -> ORTModule:
    config = config_of_all(module, batch, monkeypatch)
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
    model = ORTModule(copy.deepcopy(module))
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_CONFIG")
    return model


@emulated
@pytest.mark.parametrize(
    ("name", "time"),
    [
        *((name, "late") for name in MODELS[:2]),
        *(pytest.param(name, "late", marks=pytest.mark.slow) for name in MODELS[2:]),
        *(pytest.param(name, "early", marks=pytest.mark.slow) for name in ("gpt", "resnet")),
    ],
)
def test_all_bits_are_those_of_the_device(
    name: str, time: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _C.emulate_copies(time)
    module, batch = small_models.make(name)
    kept, moved = ORTModule(copy.deepcopy(module)), offloading(module, batch, monkeypatch)
    for _ in range(2):
        assert_equal(gradients(moved, batch), gradients(kept, batch))
    before, after = last_run_report(kept), last_run_report(moved)
    assert after["measured_peak_bytes"] == after["planned_peak_bytes"]
    assert after["host_bytes"] > 0.5 * before["saved_bytes"]
    assert after["saved_bytes"] < 0.5 * before["saved_bytes"]


@emulated
def test_runs_in_flight_and_kept_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = small_models.make("gpt")
    other = {k: v.flip(0) for k, v in batch.items()}
    found = []
    for model in (ORTModule(copy.deepcopy(module)), offloading(module, batch, monkeypatch)):
        torch.manual_seed(3)
        first, second = model(**batch), model(**other)
        first.backward(retain_graph=True)
        second.backward()
        first.backward()
        some = list(model.parameters())[::3]
        part = torch.autograd.grad(model(**batch), some)
        found.append([*(p.grad for p in model.parameters()), *part])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@emulated
def test_gradients_of_gradients_read_what_is_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1))

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = copy.deepcopy(module)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).sum()

    base = Sum()
    batch = {"x": torch.randn(5, 8, requires_grad=True)}
    found = []
    for model in (ORTModule(copy.deepcopy(base)), offloading(base, batch, monkeypatch)):
        torch.manual_seed(4)
        x = batch["x"].detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(x=x), x, create_graph=True)
        slope.square().sum().backward()
        found.append([x.grad, *(p.grad for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def peaks_of(module: nn.Module, batch: Any) -> tuple[int, int]:
    model = ORTModule(copy.deepcopy(module), memory_budget="activations:100%")
    gradients(model, batch)
    facts = training_piece(model._compiler).memory()
    return facts["before"]["peak_bytes"], facts["minimum_bytes"]


@emulated
@pytest.mark.slow
def test_budgets_use_the_host_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = small_models.make("gpt", layers=6, length=64)
    exact = gradients(ORTModule(copy.deepcopy(module)), batch)
    peak, least = peaks_of(module, batch)
    times: dict[str, list[float]] = {"0": [], "1": []}
    for part in (0.75, 0.5, 0.25):
        budget = int(least + part * (peak - least))
        for setting, found in times.items():
            monkeypatch.setenv("ORTMODULE_OFFLOAD", setting)
            model = ORTModule(copy.deepcopy(module), memory_budget=f"activations:{budget}")
            if setting == "0" and budget < least:
                continue
            assert_equal(gradients(model, batch), exact)
            report = last_run_report(model)
            assert report["measured_peak_bytes"] == report["planned_peak_bytes"]
            assert setting == "1" or report["host_bytes"] == 0
            found.append(explain(model).step_time_change)
    assert all(
        with_host <= without + 1e-9 for without, with_host in zip(*times.values(), strict=False)
    )
    assert any(with_host < without for without, with_host in zip(*times.values(), strict=False))


@emulated
@pytest.mark.slow
def test_the_budget_of_the_host_is_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module, batch = small_models.make("gpt")
    config = config_of_all(module, batch, monkeypatch)
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
    monkeypatch.setenv("ORTMODULE_OFFLOAD_BUDGET", "64KiB")
    model = ORTModule(copy.deepcopy(module))
    gradients(model, batch)
    assert 0 < last_run_report(model)["host_bytes"] <= 64 << 10
    assert "ORTMODULE_OFFLOAD_BUDGET allows 65536" in capfd.readouterr().err
    # A longer batch has the same decisions, as far as the budget goes.
    longer = {k: torch.cat([v, v]) for k, v in batch.items()}
    gradients(model, longer)
    assert last_run_report(model)["host_bytes"] <= 64 << 10
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_CONFIG")
    budget = f"activations:{sum(peaks_of(module, batch)) // 2}"
    model = ORTModule(module, memory_budget=budget)
    gradients(model, batch)
    assert last_run_report(model)["host_bytes"] <= 64 << 10


@emulated
def test_what_keeps_nothing_on_the_host_says_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module, batch = small_models.make("mlp")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "Relu+:3:-1")
    for name, value, why in (
        ("ORTMODULE_CUDA_EMULATION", "0", "it runs on the CPU"),
        ("ORTMODULE_OFFLOAD", "0", "ORTMODULE_OFFLOAD=0"),
        ("ORTMODULE_OFFLOAD", "auto", "has not passed on this GPU"),
        ("ORTMODULE_CUDA_GRAPH", "1", "replays steps on the GPU alone"),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            capfd.readouterr()
            model = ORTModule(copy.deepcopy(module))
            gradients(model, batch)
            assert why in capfd.readouterr().err
            assert last_run_report(model)["host_bytes"] == 0


@emulated
def test_explain_names_what_is_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = small_models.make("gpt")
    model = offloading(module, batch, monkeypatch)
    text = str(explain(model, **batch))
    assert "offload" in text and "of the host" in text


def test_auto_follows_the_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "GPU 5")

    def refused() -> str:
        gpu_checks.is_checked.cache_clear()
        return offload.why_not("cuda", "auto", in_parts=False, cuda_graph=False)

    assert "has not passed" in refused()
    gpu_checks.note_check("another", True)
    assert "has not passed" in refused()
    gpu_checks.note_check(offload.FEATURE, True)
    assert refused() == ""
    gpu_checks.note_check(offload.FEATURE, False)
    assert "has not passed" in refused()
    gpu_checks.is_checked.cache_clear()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ORTMODULE_OFFLOAD", "yes", "auto, 0 or 1, but found 'yes'"),
        ("ORTMODULE_OFFLOAD_BUDGET", "50%", "'64GiB' and below 2\\^63, but found '50%'"),
        ("ORTMODULE_OFFLOAD_BUDGET", "99999999999GiB", "below 2\\^63"),
        ("ORTMODULE_MEMORY_OPT_CONFIG", "Relu+:4:-1", "2 \\(compromise\\) or 3 \\(offload\\)"),
    ],
)
def test_other_values_are_errors(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ORTModule(nn.Linear(2, 2))


@emulated
def test_the_table_of_plans_takes_two_models_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []
    monkeypatch.setattr(offload_plans, "_report", lambda name, *_: named.append(name))
    monkeypatch.setattr("sys.argv", ["offload_plans"])
    offload_plans.main()
    assert named == ["gpt2-medium", "llama-1b"]
