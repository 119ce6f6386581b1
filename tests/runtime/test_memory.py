"""What the engine allocates is what the plan says, seen by an allocator that counts the process."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report, testing

testing.install_counting_allocator()


class Mlp(nn.Module):
    """Dense layers with dropout, layer norm and a loss: every node has an own kernel."""

    def __init__(self, width: int = 128, layers: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.dropout(F.gelu(layer(norm(x))), 0.1, self.training)
        return F.cross_entropy(self.head(x), target)


@pytest.fixture(scope="module")
def trained() -> tuple[ORTModule, Tensor, Tensor]:
    torch.manual_seed(0)
    model = ORTModule(Mlp())
    x, target = torch.randn(256, 128), torch.randint(10, (256,))
    for _ in range(2):
        model(x, target).backward()
        model.zero_grad()
    return model, x, target


def _facts(model: ORTModule) -> Any:
    return model._compiler.pieces[0].compiled.facts()


def test_planned_peak_is_the_counted_peak(trained: tuple[ORTModule, Tensor, Tensor]) -> None:
    model, x, target = trained
    model.zero_grad()
    gc.collect()
    with testing.measure_peak() as peak:
        loss = model(x, target)
        loss.backward()
    report = last_run_report(model)
    assert report["prediction_exact"]
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
    # autograd's own gradient of the loss: one float.
    counted = peak.peak_bytes - peak.start_bytes
    assert 0 <= counted - report["planned_peak_bytes"] <= 4 * report["captures"]


class Convolutions(nn.Module):
    """oneDNN reorders operands and results into memory of its own while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = x + F.relu(norm(convolution(x)))
        return x.mean()


def test_scratch_of_convolutions_is_counted_once() -> None:
    model, x = ORTModule(Convolutions()), torch.randn(8, 32, 24, 24)
    model(x).backward()
    model.zero_grad()
    with testing.measure_peak() as peak:
        model(x).backward()
    counted = peak.peak_bytes - peak.start_bytes
    # The counting allocator's headers, of 64 bytes each, are taken for scratch.
    assert abs(counted - last_run_report(model)["planned_peak_bytes"]) <= 512


def test_a_step_allocates_segments_outputs_and_gradients_only(
    trained: tuple[ORTModule, Tensor, Tensor],
) -> None:
    model, x, target = trained
    model.zero_grad()
    with testing.trace_allocations() as trace:
        model(x, target).backward()
    allocated = sorted(size for size in trace if size > 4)
    assert allocated == sorted(size for size in _facts(model)["buffer_bytes"] if size > 4)


def test_everything_is_given_back(trained: tuple[ORTModule, Tensor, Tensor]) -> None:
    model, x, target = trained
    for _ in range(2):
        model.zero_grad()
        gc.collect()
        before = testing.cpu_memory_stats().current_bytes
        model(x, target).backward()
        model.zero_grad()
        gc.collect()
        assert testing.cpu_memory_stats().current_bytes == before


def test_gradients_are_sole_references_with_the_parameters_strides(
    trained: tuple[ORTModule, Tensor, Tensor],
) -> None:
    model, x, target = trained
    model.zero_grad()
    model(x, target).backward()
    seen = set()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.stride() == p.stride(), name
        storage = p.grad.untyped_storage()
        assert storage.nbytes() == p.grad.nbytes, name
        assert storage.data_ptr() not in seen, name
        seen.add(storage.data_ptr())


def test_large_models_hand_gradients_over_in_ranges() -> None:
    torch.manual_seed(0)
    model = ORTModule(Mlp(width=768, layers=8))
    order: list[str] = []
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    model(torch.randn(8, 768), torch.randint(10, (8,))).backward()
    assert _facts(model)["ranges"] > 1
    assert sorted(order) == sorted(name for name, _ in model.named_parameters())
    assert order.index("head.weight") < order.index("layers.0.weight")


def test_gradients_do_not_wait_where_recomputation_leaves_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layers whose gradients are as large as what they save, added to existing gradients."""

    def run(level: str) -> tuple[int, int]:
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        torch.manual_seed(0)
        model = ORTModule(Mlp(width=64, layers=24))
        x, target = torch.randn(32, 64), torch.randint(10, (32,))
        for _ in range(2):
            model(x, target).backward()
        with testing.measure_peak() as peak:
            model(x, target).backward()
        return _facts(model)["ranges"], peak.peak_above_start

    ranges, peak_bytes = run("0")
    assert ranges == 1
    more_ranges, less_bytes = run("1")
    assert more_ranges > 4
    assert less_bytes < 0.6 * peak_bytes


class Summed(nn.Module):
    """Nothing reads what Relu returns but a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


_AFTER_RELU = {
    "dropout": (
        nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 8)),
        (64, 32),
    ),
    "overlapping_windows": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 4, 3)
        ),
        (4, 3, 16, 16),
    ),
    "sum": (Summed(), (64, 32)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    zip(_AFTER_RELU, [torch.float32, torch.bfloat16, torch.bfloat16], strict=True),
)
def test_relu_is_not_kept_for_its_sign(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, sizes = _AFTER_RELU[name]
    x = torch.randn(sizes, dtype=dtype)

    def run(disabled: str) -> tuple[list[Tensor], int]:
        monkeypatch.setenv("ORTMODULE_DISABLE_PASSES", disabled)
        model = ORTModule(copy.deepcopy(module).to(dtype))
        torch.manual_seed(1)
        model(x).square().sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return grads, _facts(model)["saved_bytes"]

    grads, saved_bytes = run("")
    plain, plain_bytes = run("read_relu_sign_later,keep_relu_sign")
    assert len(grads) == len(list(module.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(grads, plain, strict=True))
    assert saved_bytes < 0.8 * plain_bytes


def test_a_max_pool_keeps_a_byte_per_window() -> None:
    pool = ORTModule(nn.MaxPool2d(2))
    x = torch.randn(4, 8, 16, 16, requires_grad=True)
    pool(x).sum().backward()
    assert _facts(pool)["saved_bytes"] == 4 * 8 * 8 * 8


def test_a_max_pool_that_is_run_again_for_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for config in ("", "MaxPool+:1:-1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
        pool = ORTModule(nn.MaxPool2d(2))
        x = torch.arange(256.0).reshape(1, 4, 8, 8).remainder(7).requires_grad_()
        pool(x).square().sum().backward()
        found.append((x.grad, _facts(pool)["saved_bytes"]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[1][1] < found[0][1]


def test_tiny_gradients_share_a_node() -> None:
    """Each node of autograd takes as long as a layer of such a model; what it would save is little."""
    torch.manual_seed(0)
    model = ORTModule(Mlp(width=64, layers=60))
    model(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    assert _facts(model)["ranges"] <= 8


class DrawnKeys(nn.Module):
    """Each query reads a few keys that are drawn for it, by an index into expanded keys, as in Informer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor, drawn: Tensor) -> Tensor:
        rows, length, width = x.shape
        keys = self.fc(x).unsqueeze(1).expand(rows, length, length, width)
        return keys[:, torch.arange(length).unsqueeze(1), drawn, :].sum(2)


def test_expanded_keys_that_an_index_reads_are_not_made() -> None:
    model = ORTModule(DrawnKeys())
    rows, length, width = 4, 64, 8
    model(torch.randn(rows, length, width), torch.randint(length, (length, 2))).sum().backward()
    assert last_run_report(model)["planned_peak_bytes"] < 4 * rows * length * length * width / 4


class Shared(nn.Module):
    """A recurrence of its own: each of its steps has a gradient of the one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = x[0]
        for row in x:
            h = torch.tanh(self.fc(h) + row)
        return h.square().sum()


def test_gradients_of_a_shared_weight_are_added_as_they_come() -> None:
    """Not kept until the last step: the sum and the newest one are there at a time."""
    model = ORTModule(Shared())
    for _ in range(2):
        model(torch.ones(20, 2, 64)).backward()
    report = last_run_report(model)
    weight = 4 * 64 * 64
    assert report["planned_peak_bytes"] < report["saved_bytes"] + 3 * weight
