"""Which device a piece runs on, and what is said where it cannot."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import ortmodule_py
from ortmodule_py import _C, ORTModule, ORTModuleError
from ortmodule_py.base import devices
from ortmodule_py.base.errors import CannotLower
from tests.ops import harness, scaled_dot_product_attention
from tests.ops.case import Case

CPU_BUILD = not _C.build_info()["cuda"]
cpu_build = pytest.mark.skipif(not CPU_BUILD, reason="this build has CUDA kernels")


@pytest.mark.parametrize(
    ("targets", "capability", "runs"),
    [
        (["80-real"], (8, 0), True),
        (["80-real"], (8, 6), True),  # machine code runs on later minor versions
        (["86-real"], (8, 0), False),
        (["80-real"], (9, 0), False),  # but not on later major ones
        (["80"], (9, 0), True),  # PTX does
        (["80-virtual"], (12, 0), True),
        (["80-virtual"], (7, 5), False),
        (["90a-real"], (9, 0), True),
        (["90a"], (10, 0), False),
        (["75-real", "120"], (10, 3), False),
        (["75-real", "100-real"], (10, 3), True),
        ([], (8, 0), False),
    ],
)
def test_targets(targets: list[str], capability: tuple[int, int], runs: bool) -> None:
    assert devices.runs_on(targets, capability) == runs


def test_the_device_of_a_piece() -> None:
    number, vector = torch.tensor(2.0), torch.ones(3)
    assert devices.piece_device([]) == torch.device("cpu")
    assert devices.piece_device([number, 3]) == torch.device("cpu")
    assert devices.piece_device([vector, number]) == torch.device("cpu")
    with pytest.raises(CannotLower, match="must be on one device, but found meta, cpu"):
        devices.piece_device([torch.ones(3, device="meta"), vector])
    # A number on the CPU goes along with the others: what is wrong here is their device.
    with pytest.raises(CannotLower, match="runs on CPUs and CUDA devices, but found meta"):
        devices.piece_device([number, torch.ones(3, device="meta")])


@cpu_build
def test_a_cpu_build_says_so() -> None:
    reason = devices.unsupported(torch.device("cuda", 0))
    assert reason is not None
    assert "runs on the CPU only, but found a model on cuda:0; install a build with CUDA" in reason
    page = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
    assert f"`{reason.split(';')[0]}`" in page.read_text()


def test_an_old_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"cuda": {"targets": ["75-real", "90"]}}
    monkeypatch.setattr(_C, "build_info", lambda: info)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla P40")
    reason = devices.unsupported.__wrapped__(torch.device("cuda", 0))
    assert reason == (
        "this build of ortmodule_py holds code for 75-real, 90, but found Tesla P40 with compute "
        "capability 6.1; build it with TORCH_CUDA_ARCH_LIST=6.1"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert devices.unsupported.__wrapped__(torch.device("cuda", 0)) is None


class OnAnotherDevice(nn.Module):
    """Claims for its parameter a device that no build knows, and computes on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum()


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "unsupported", lambda device: f"nothing runs on {device}")


def test_construction_warns_and_eager_runs(
    no_device: None, caplog: pytest.LogCaptureFixture
) -> None:
    model = ORTModule(OnAnotherDevice())
    with caplog.at_level(logging.WARNING, logger=model._logger.name):
        model(torch.ones(4, 3)).backward()
    report = ortmodule_py.last_run_report(model)
    assert not report["compiled"]
    assert report["eager_pieces"][0].startswith("nothing runs on cpu")
    assert model.linear.weight.grad is not None


def test_construction_fails_where_eager_is_forbidden(
    no_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.raises(ORTModuleError, match=r"\[device\] nothing runs on cpu"):
        ORTModule(OnAnotherDevice())
    monkeypatch.setenv("ORTMODULE_BYPASS", "1")
    ORTModule(OnAnotherDevice())


def test_a_piece_checks_the_devices_of_its_arguments() -> None:
    model = ORTModule(OnAnotherDevice())
    model(torch.ones(1, 3))  # a size of 1 is no symbol
    (piece,) = model._compiler.pieces
    x = torch.ones(1, 3)
    names = piece.compiled.input_names()
    by_name = {"linear.weight": model.linear.weight, "linear.bias": model.linear.bias}
    order = [by_name.get(name, x) for name in names]
    piece.compiled(*order)
    moved = [
        t if name == "x" else t.detach().to("meta") for name, t in zip(names, order, strict=True)
    ]
    with pytest.raises(
        ORTModuleError, match=r"\[forward\] argument linear.* must be on cpu like .* on meta"
    ):
        piece.compiled(*moved)


def test_every_call_of_torch_is_there_for_both_devices() -> None:
    kernels = [kernel for op in _C.ops() for kernel in op["kernels"]]
    on = {
        device: {
            k["name"] for k in kernels if k["device"] == device and k["name"].endswith("_aten")
        }
        for device in ("cpu", "cuda")
    }
    assert on["cuda"] >= {"matmul_aten", "conv_aten", "conv_grad_aten", "batch_norm_aten"}
    assert on["cuda"] == on["cpu"]


_DROPPING = [case for case in scaled_dot_product_attention.cases() if "-dropout" in case.name]


@pytest.mark.slow
@pytest.mark.parametrize("case", _DROPPING, ids=lambda case: case.name)
def test_attention_with_dropout_for_cuda(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph made for a GPU leaves it to torch, with torch's gradients, that of a mask among them; run
    on the CPU."""
    monkeypatch.setattr(harness, "device_kind", lambda: "cuda")
    arguments = harness.with_leaves(case, harness.Arguments.of(case, harness.SIZE))
    compiled = harness.compile_fixed(case, arguments)
    assert case.contains not in compiled.piece.text("joint")
    harness.check_run(case, compiled, arguments, harness.SIZE)
