"""FusedAdam's numbers: torch's Adam and AdamW and Hugging Face's AdamW, over many steps."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from ortmodule_py.optim import AdamWMode, FusedAdam, fused_adam
from tests.optim.reference import (
    SHAPES,
    TransformersAdamW,
    largest_difference,
    make_params,
    set_grads,
)

STEPS = 120
# Over STEPS steps, of the largest element; what the order of roundings may make.
TOLERANCE = {torch.float32: 1e-6, torch.float64: 2e-15}
HYPER = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def run(ours: Any, theirs: Any, a: list[Tensor], b: list[Tensor], steps: int = STEPS) -> float:
    for step in range(steps):
        set_grads(step, a, b)
        ours.step()
        theirs.step()
    return largest_difference(a, b)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_of_torch(dtype: torch.dtype, foreach: bool, weight_decay: float) -> None:
    a, b = make_params(dtype), make_params(dtype)
    hyper = HYPER | {"weight_decay": weight_decay}
    ours = FusedAdam(a, adam_w_mode=AdamWMode.ADAMW_TORCH, **hyper)
    assert run(ours, torch.optim.AdamW(b, foreach=foreach, **hyper), a, b) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_of_torch(dtype: torch.dtype, weight_decay: float) -> None:
    a, b = make_params(dtype), make_params(dtype)
    hyper = HYPER | {"weight_decay": weight_decay}
    ours = FusedAdam(a, adam_w_mode=AdamWMode.ADAM_L2_REGULARIZATION, **hyper)
    assert run(ours, torch.optim.Adam(b, **hyper), a, b) <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bias_correction", [False, True])
def test_adamw_of_transformers(dtype: torch.dtype, bias_correction: bool) -> None:
    a, b = make_params(dtype), make_params(dtype)
    ours = FusedAdam(a, bias_correction=bias_correction, **HYPER)  # the default mode
    theirs = TransformersAdamW(b, correct_bias=bias_correction, **HYPER)
    assert run(ours, theirs, a, b) <= TOLERANCE[dtype]


def test_fused_of_torch_differs_by_roundings() -> None:
    a, b = make_params(), make_params()
    ours = FusedAdam(a, adam_w_mode=AdamWMode.ADAMW_TORCH, **HYPER)
    assert run(ours, torch.optim.AdamW(b, fused=True, **HYPER), a, b) <= 1e-6


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(0, 40), max_size=3),
    mode=st.sampled_from([0, 2]),
    lr=st.floats(1e-6, 1.0),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.9999)),
    eps=st.floats(1e-10, 1e-2),
    weight_decay=st.floats(0, 0.5),
)
def test_any_arguments(
    shape: list[int], mode: int, lr: float, betas: Any, eps: float, weight_decay: float
) -> None:
    a, b = (make_params(torch.float64, [tuple(shape), (7,)]) for _ in range(2))
    hyper = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    theirs = (torch.optim.Adam if mode == 0 else torch.optim.AdamW)(b, **hyper)
    assert run(FusedAdam(a, adam_w_mode=mode, **hyper), theirs, a, b, steps=5) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    shapes = [*SHAPES, (70001,), (257, 513)] + [(5,)] * 50
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            params = make_params(dtype, shapes)
            optimizer = FusedAdam(params, **HYPER)
            for step in range(3):
                set_grads(step, params)
                optimizer.step()
        finally:
            torch.set_num_threads(before)
        results.append(torch.cat([p.detach().flatten() for p in params]))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


# ---- types ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_parameters_have_float32_moments(dtype: torch.dtype) -> None:
    a, wide = make_params(dtype), make_params(torch.float32)
    ours = FusedAdam(a, adam_w_mode=AdamWMode.ADAMW_TORCH, **HYPER)
    theirs = torch.optim.AdamW(wide, **HYPER)
    for step in range(STEPS):
        set_grads(step, a)
        for p, q in zip(a, wide, strict=True):  # the same step in float32, rounded afterwards
            q.data.copy_(p.detach())
            q.grad = p.grad.float()
        ours.step()
        theirs.step()
        ulp = torch.finfo(dtype).eps
        for p, q in zip(a, wide, strict=True):
            torch.testing.assert_close(p, q.to(dtype), rtol=ulp, atol=1e-7)
    for p, q in zip(a, wide, strict=True):
        for name in ("exp_avg", "exp_avg_sq"):
            assert ours.state[p][name].dtype == torch.float32
            torch.testing.assert_close(
                ours.state[p][name], theirs.state[q][name], rtol=1e-5, atol=1e-9
            )


def test_moments_in_the_parameters_type() -> None:
    a, b = make_params(torch.bfloat16), make_params(torch.bfloat16)
    ours = FusedAdam(a, adam_w_mode=2, state_in_param_dtype=True, **HYPER)
    theirs = torch.optim.AdamW(b, fused=True, **HYPER)
    assert run(ours, theirs, a, b, steps=10) <= 2e-2
    assert {ours.state[p]["exp_avg"].dtype for p in a} == {torch.bfloat16}


def test_why_moments_are_float32() -> None:
    fallen = {}
    for own in (False, True):
        param = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
        optimizer = FusedAdam([param], state_in_param_dtype=own)
        for grad in [1.0] + 1000 * [1e-4]:
            param.grad = torch.full_like(param, grad)
            optimizer.step()
        fallen[own] = float(optimizer.state[param]["exp_avg_sq"][0]) / 1e-3
    assert fallen[False] == pytest.approx(0.999**1000, rel=1e-3)
    assert fallen[True] > 0.9  # 0.1 % is less than a rounding


def test_complex_parameters() -> None:
    a = [torch.nn.Parameter(torch.randn(5, 7, dtype=torch.complex64))]
    b = [torch.nn.Parameter(a[0].detach().clone())]
    ours = FusedAdam(a, adam_w_mode=2, **HYPER)
    theirs = torch.optim.AdamW(b, **HYPER)
    for _ in range(5):
        a[0].grad = torch.randn_like(a[0])
        b[0].grad = a[0].grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(a[0], b[0], rtol=1e-6, atol=1e-6)


def test_types_may_be_mixed() -> None:
    params = [p for dtype in TOLERANCE for p in make_params(dtype)] + make_params(torch.bfloat16)
    expected = [p.detach().clone() for p in params]
    optimizer = FusedAdam(params, **HYPER)
    set_grads(0, params)
    optimizer.step()
    alone = [torch.nn.Parameter(p) for p in expected]
    set_grads(0, alone)
    for p in alone:
        FusedAdam([p], **HYPER).step()
    assert all(torch.equal(p, q) for p, q in zip(params, alone, strict=True))


# ---- where elements lie --------------------------------------------------------------------------
def strided(kind: str) -> Tensor:
    base = torch.arange(240.0).reshape(2, 3, 8, 5)
    if kind == "transposed":
        return base.clone().transpose(1, 3)
    if kind == "channels_last":
        return base.clone().contiguous(memory_format=torch.channels_last)
    if kind == "slice":
        return base.clone()[:, :, ::2, 1:4]
    return base.clone()


@pytest.mark.parametrize("param_kind", ["plain", "transposed", "channels_last", "slice"])
@pytest.mark.parametrize("grad_kind", ["same", "contiguous", "expanded", "slice"])
def test_any_strides(param_kind: str, grad_kind: str) -> None:
    values = strided(param_kind)
    a = torch.nn.Parameter(values)
    b = torch.nn.Parameter(values.detach().clone(memory_format=torch.contiguous_format))
    strides = a.stride()
    ours, theirs = FusedAdam([a], adam_w_mode=2, **HYPER), torch.optim.AdamW([b], **HYPER)
    for _ in range(3):
        grad = torch.randn(a.shape)
        if grad_kind == "same":
            a.grad = torch.empty_like(a).copy_(grad)
        elif grad_kind == "expanded":
            grad = torch.randn(a.shape[-1]).expand(a.shape)
            a.grad = grad
        elif grad_kind == "slice":
            a.grad = torch.stack([grad, grad], -1)[..., 0]
        else:
            a.grad = grad
        b.grad = grad.contiguous()
        ours.step()
        theirs.step()
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-6, atol=1e-6)
    assert a.stride() == strides


def complex_ramp() -> Tensor:
    return torch.complex(torch.arange(6.0), -2 * torch.arange(6.0))


LAZY = {
    "conjugate": lambda: complex_ramp().conj(),
    "negative": lambda: torch._neg_view(torch.arange(6.0)),
    "both": lambda: torch._neg_view(complex_ramp().conj()),
    "zeros": lambda: torch._efficientzerotensor(6),
}


@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_whose_memory_holds_something_else(kind: str, scaled: bool) -> None:
    grads = [LAZY[kind](), LAZY[kind]().clone().resolve_conj().resolve_neg()]
    params = [torch.nn.Parameter(torch.ones_like(grads[1])) for _ in grads]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
        optimizer = FusedAdam([param], **HYPER)
        if scaled:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
        optimizer.step()
    assert torch.equal(*params)
    assert torch.equal(*grads)
    assert torch.equal(grads[1], LAZY[kind]() / 4 if scaled else LAZY[kind]())


def test_gradients_from_a_conjugate() -> None:
    w = torch.randn(1000, dtype=torch.complex64)
    a, b = (torch.nn.Parameter(torch.ones_like(w)) for _ in range(2))
    ours, theirs = FusedAdam([a], adam_w_mode=2, **HYPER), torch.optim.AdamW([b], **HYPER)
    for _ in range(3):
        for param, optimizer in ((a, ours), (b, theirs)):
            optimizer.zero_grad()
            (param.conj() * w).real.sum().backward()
        assert a.grad.is_conj()
        b.grad = b.grad.resolve_conj()  # torch's takes no others
        ours.step()
        theirs.step()
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_parameters_whose_memory_holds_something_else() -> None:
    a = torch.nn.Parameter(torch.full((5,), 1 + 2j).conj())
    b = torch.nn.Parameter(torch.full((5,), 1 - 2j))
    for param in (a, b):
        param.grad = torch.full((5,), 2 - 1j)
        FusedAdam([param], **HYPER).step()
    assert a.is_conj() and torch.equal(a, b)


def test_steps_are_seen_as_changes_in_place() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    loss = (param * param).sum()
    param.grad = torch.ones(4)
    FusedAdam([param]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_infinities_and_nan_spread_no_further() -> None:
    a, b = make_params(shapes=[(64,)]), make_params(shapes=[(64,)])
    ours, theirs = FusedAdam(a, adam_w_mode=2, **HYPER), torch.optim.AdamW(b, **HYPER)
    for bad in (float("nan"), float("inf"), 1.0):
        for p in (a[0], b[0]):
            p.grad = torch.ones(64)
            p.grad[7] = bad
        ours.step()
        theirs.step()
    assert torch.equal(a[0].isfinite(), b[0].isfinite())
    assert int(a[0].isfinite().sum()) == 63


@pytest.mark.parametrize("mode", AdamWMode)
@pytest.mark.parametrize("dtype", [*TOLERANCE, torch.bfloat16], ids=str)
def test_infinite_parameters_stay(mode: AdamWMode, dtype: torch.dtype) -> None:
    """A mask of -inf that is a parameter, where nothing decays it."""
    values = torch.ones(67, dtype=dtype)
    values[::5] = -torch.inf
    values[1::5] = torch.inf
    for hyper in ({"weight_decay": 0.0}, {"weight_decay": 0.1, "lr": 0.0}):
        if mode == AdamWMode.ADAM_L2_REGULARIZATION and hyper["weight_decay"]:
            continue  # there the decay makes the gradient infinite
        param = torch.nn.Parameter(values.clone())
        param.grad = torch.ones_like(param)
        FusedAdam([param], **HYPER | hyper, adam_w_mode=mode).step()
        infinite = values.isinf()
        assert torch.equal(param[infinite], values[infinite])
        assert param[~infinite].isfinite().all()


def test_docstring() -> None:
    assert doctest.testmod(fused_adam).attempted > 3
    assert doctest.testmod(fused_adam).failed == 0
