"""The CUDA kernels of the optimizers, compiled for the host, against those of the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ortmodule_py
from ortmodule_py.optim import FP16_Optimizer, FusedAdam
from tests.optim.reference import SHAPES, make_params, set_grads

pytestmark = pytest.mark.skipif(
    not ortmodule_py.build_info()["cuda_emulation"],
    reason="this build does not hold the CUDA kernels compiled for the host",
)
# More tensors than a launch takes, and tensors of several chunks.
MANY = [*SHAPES, *((i % 5,) for i in range(130)), (40001,), (16384,), (16385,)]
ULP = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def emulated(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer._emulate_cuda = True
    return optimizer


@pytest.mark.parametrize("dtype", ULP, ids=str)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_steps_are_those_of_the_cpu(dtype: torch.dtype, mode: int) -> None:
    a, b = make_params(dtype, MANY), make_params(dtype, MANY)
    hyper = {"lr": 1e-2, "weight_decay": 0.1, "adam_w_mode": mode}
    optimizers = emulated(FusedAdam(a, **hyper)), FusedAdam(b, **hyper)
    for step in range(3):
        set_grads(step, a, b)
        for optimizer in optimizers:
            optimizer.step()
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=ULP[dtype], atol=ULP[dtype])
        states = [optimizer.state[x] for optimizer, x in zip(optimizers, (p, q), strict=True)]
        assert states[0]["step"] == 3
        torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-8)


def test_moments_in_the_parameters_type() -> None:
    a, b = make_params(torch.bfloat16, MANY), make_params(torch.bfloat16, MANY)
    optimizers = [FusedAdam(params, state_in_param_dtype=True) for params in (a, b)]
    emulated(optimizers[0])
    set_grads(0, a, b)
    for optimizer in optimizers:
        optimizer.step()
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=8e-3, atol=8e-3)


def test_scale_and_flag_are_read_by_the_kernel() -> None:
    a, b = make_params(shapes=MANY), make_params(shapes=MANY)
    scaled, plain = emulated(FusedAdam(a)), FusedAdam(b)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        set_grads(step, a, b)
        scaler.scale(torch.ones(()))
        for p in a:
            p.grad.mul_(scaler.get_scale())
        if step == 2:
            a[5].grad[0, 0] = float("nan")
        else:
            plain.step()
        scaler.step(scaled)
        scaler.update()
    assert {int(state["step"]) for state in scaled.state.values()} == {3}
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_gradients_are_unscaled(dtype: torch.dtype, bad: float | None) -> None:
    params = make_params(dtype, MANY)
    optimizer = emulated(FP16_Optimizer(torch.optim.SGD(params, lr=0.1), loss_scale=8.0))
    optimizer.scale(torch.ones(()))
    set_grads(0, params)
    if bad is not None:
        params[-3].grad[40000] = bad
    optimizer.update_master_grads()
    assert optimizer.overflow == (bad is not None)
    for p, master in zip(params, optimizer.master_params(), strict=True):
        assert torch.equal(master.grad.nan_to_num(), (p.grad.float() / 8).nan_to_num())


def test_strides_do_not_matter() -> None:
    a, b = (nn.Parameter(torch.arange(60.0).reshape(3, 4, 5).transpose(0, 2)) for _ in range(2))
    for param in (a, b):
        param.grad = torch.arange(60.0).reshape(5, 4, 3) - 30
    emulated(FusedAdam([a])).step()
    FusedAdam([b]).step()
    torch.testing.assert_close(a, b)
