"""FP16_Optimizer: masters, loss scale, clipping and state, around any optimizer."""

from __future__ import annotations

import copy
import doctest
import io
import logging
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py.optim import FP16_Optimizer, FusedAdam, LossScale, fp16_optimizer, loss_scale

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "fused_adam": lambda params: FusedAdam(params, lr=0.01, weight_decay=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01),
}
LOW = [torch.float16, torch.bfloat16]


class Model(nn.Module):
    """Two tied layers and a norm that stays in float32."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.to(dtype)
        self.norm.float()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden = self.norm(hidden.float()).to(hidden.dtype)
        return self.second(hidden).float()


def batch(step: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(step)).to(dtype)


def train(model: nn.Module, optimizer: FP16_Optimizer, steps: range, dtype: torch.dtype) -> float:
    for step in steps:
        optimizer.zero_grad()
        loss = (model(batch(step, dtype)) - 1).square().mean()
        optimizer.backward(loss)
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masters_train_in_float32(name: str, dtype: torch.dtype) -> None:
    """The model's gradients, unscaled, move float32 copies exactly as the optimizer alone would."""
    model = Model(dtype)
    wide = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    plain = OPTIMIZERS[name](wide)
    optimizer = FP16_Optimizer(OPTIMIZERS[name](model.parameters()))
    scale = optimizer.loss_scale
    assert scale == (2.0**16 if dtype == torch.float16 else 1.0)
    for step in range(10):
        optimizer.zero_grad()
        optimizer.backward((model(batch(step, dtype)) - 1).square().mean() * 2.0**-8)
        for p, q in zip(model.parameters(), wide, strict=True):
            q.grad = p.grad.float() / scale
        optimizer.step()
        plain.step()
        assert not optimizer.overflow
    for p, master, q in zip(model.parameters(), optimizer.master_params(), wide, strict=True):
        assert master.dtype == torch.float32
        assert torch.equal(master, q)
        assert torch.equal(p, master.to(p.dtype))


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_small_updates_are_not_lost(dtype: torch.dtype) -> None:
    weights = [nn.Parameter(torch.ones(4, dtype=dtype)) for _ in range(2)]
    optimizer = FP16_Optimizer(torch.optim.SGD([weights[0]], lr=1e-4), loss_scale=1.0)
    plain = torch.optim.SGD([weights[1]], lr=1e-4)
    for _ in range(200):
        optimizer.zero_grad()
        optimizer.backward(weights[0].sum())
        optimizer.step()
        weights[1].grad = torch.ones(4, dtype=dtype)
        plain.step()
    assert torch.equal(weights[1], torch.ones(4, dtype=dtype))  # lost: less than half a rounding
    assert weights[0][0].item() == pytest.approx(0.98, rel=2e-3)


def test_small_gradients_do_not_vanish() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = FP16_Optimizer(torch.optim.SGD([weight], lr=1.0))
    optimizer.backward((weight.float() * 1e-8).sum())  # below half of float16's least number
    optimizer.update_master_grads()
    master = next(optimizer.master_params())
    torch.testing.assert_close(master.grad, torch.full((4,), 1e-8), rtol=1e-3, atol=0)


# ---- loss scale ----------------------------------------------------------------------------------
def test_overflow_skips_the_step(caplog: pytest.LogCaptureFixture) -> None:
    model = Model(torch.float16)
    optimizer = FP16_Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), init_scale=256.0)
    train(model, optimizer, range(2), torch.float16)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    optimizer.zero_grad()
    with caplog.at_level(logging.WARNING):
        optimizer.backward(model(batch(0, torch.float16)).square().mean() * 1e6)
        optimizer.step()
    assert optimizer.overflow and optimizer.skipped_steps == 1
    assert [r.getMessage() for r in caplog.records] == [
        "FP16_Optimizer: gradients are not finite, step skipped, loss scale 256 -> 128"
    ]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name])
    own, saved = optimizer.state_dict(), before[1]
    torch.testing.assert_close(own["state"], saved["state"], rtol=0, atol=0)
    masters = [s["fp16_optimizer"]["masters"] for s in (own, saved)]
    torch.testing.assert_close(*masters, rtol=0, atol=0)
    train(model, optimizer, range(1), torch.float16)
    assert not optimizer.overflow and optimizer.skipped_steps == 1


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [*LOW, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("where", [0, 76, 149])
def test_any_bad_element_is_found(bad: float, dtype: torch.dtype, where: int) -> None:
    weights = [nn.Parameter(torch.ones(n, dtype=dtype)) for n in (100, 50)]
    optimizer = FP16_Optimizer(torch.optim.SGD(weights, lr=0.1), loss_scale=8.0)
    optimizer.backward(sum(w.sum() for w in weights))
    weights[where // 100].grad[where % 100] = bad
    optimizer.step()
    assert optimizer.overflow
    assert all(torch.equal(w, torch.ones_like(w)) for w in weights)


def test_scale_grows_and_has_a_floor(caplog: pytest.LogCaptureFixture) -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = FP16_Optimizer(
        torch.optim.SGD([weight], lr=0.0), init_scale=4.0, growth_interval=3, min_scale=2.0
    )
    scales = []
    for factor in [1.0] * 7 + [1e6] * 4:
        optimizer.zero_grad()
        optimizer.backward((weight.float() * factor).sum())
        optimizer.step()
        scales.append(optimizer.loss_scale)
    assert scales == [4, 4, 8, 8, 8, 16, 16, 8, 4, 2, 2]
    assert "stays at 2" in caplog.messages[-1]


def test_loss_scale_arguments() -> None:
    assert LossScale(dynamic=False, scale=3.0).update(overflow=True) is None
    scale = LossScale(scale=2.0**127, growth_interval=1)
    scale.update(overflow=False)
    assert scale.scale == 2.0**127  # twice that is no float32
    for wrong in (
        {"scale": 0.0},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"min_scale": 0},
    ):
        with pytest.raises(ValueError, match=rf"^\[LossScale\] {next(iter(wrong))} must"):
            LossScale(**wrong)
    weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
    sgd = torch.optim.SGD([weight], lr=0.1)
    assert FP16_Optimizer(sgd, loss_scale=128).loss_scale == 128.0
    with pytest.raises(ValueError, match='"dynamic" or a number'):
        FP16_Optimizer(sgd, loss_scale="static")


def test_gradients_accumulate() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = FP16_Optimizer(torch.optim.SGD([weight], lr=0.5), loss_scale=64.0)
    for _ in range(3):
        optimizer.backward(weight.float().sum() / 4, update_master_grads=True)
    optimizer.step()
    assert torch.equal(weight, torch.full((4,), 1 - 0.5 * 0.75, dtype=torch.float16))


@pytest.mark.parametrize(
    "grad",
    [
        torch._neg_view(torch.arange(4.0).bfloat16()),
        torch._neg_view(torch.arange(4.0)),
        torch.complex(torch.arange(4.0), torch.ones(4)).conj(),
        torch._efficientzerotensor(4, dtype=torch.bfloat16),
        torch.ones(1, dtype=torch.bfloat16).expand(4),
    ],
    ids=["negative", "negative float32", "conjugate", "zeros", "expanded"],
)
def test_gradients_whose_memory_holds_something_else(grad: Tensor) -> None:
    param = nn.Parameter(torch.ones(4, dtype=grad.dtype))
    optimizer = FP16_Optimizer(torch.optim.SGD([param], lr=0.1), loss_scale=8.0)
    optimizer.scale(torch.ones(()))
    param.grad = grad
    optimizer.update_master_grads()
    (master,) = optimizer.master_params()
    assert torch.equal(master.grad, grad.to(master.dtype) / 8)


def test_unscaled_losses_are_refused() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = FP16_Optimizer(torch.optim.SGD([weight], lr=0.1))
    weight.float().sum().backward()
    with pytest.raises(RuntimeError, match=r"^\[FP16_Optimizer\].*optimizer.backward\(loss\)"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.scale(weight.float().sum() * 0.125).backward()
    optimizer.step()
    assert weight[0].item() == pytest.approx(1 - 0.1 * 0.125, rel=1e-3)


def test_a_float16_parameter_makes_an_open_scale_dynamic() -> None:
    def weight(dtype: torch.dtype) -> nn.Parameter:
        return nn.Parameter(torch.ones(4, dtype=dtype))

    for given, expected in ((None, 8.0), (1.0, 1.0), (2.0, 2.0)):
        inner = torch.optim.SGD([weight(torch.bfloat16)], lr=0.1)
        optimizer = FP16_Optimizer(inner, loss_scale=given, init_scale=8.0)
        assert optimizer.loss_scale == (given or 1.0)
        optimizer.add_param_group({"params": weight(torch.bfloat16)})
        assert optimizer.loss_scale == (given or 1.0)
        optimizer = copy.deepcopy(optimizer)
        optimizer.add_param_group({"params": weight(torch.float16)})
        assert optimizer.loss_scale == expected
    model = nn.Linear(2, 2).bfloat16()
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model.half()
    optimizer.backward(model(torch.ones(1, 2).half()).sum())
    assert optimizer.loss_scale == 2.0**16
    optimizer.load_state_dict(
        FP16_Optimizer(torch.optim.SGD(nn.Linear(2, 2).bfloat16().parameters())).state_dict()
    )
    assert optimizer.loss_scale == 2.0**16  # a state from bfloat16 does not take it away


def test_gradients_of_several_scales_accumulate() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    sgd = torch.optim.SGD([weight], lr=0.0)
    optimizer = FP16_Optimizer(sgd, init_scale=4.0, growth_interval=1)
    for _ in range(3):
        optimizer.backward(weight.float().sum() / 4)
        optimizer.step()
    assert optimizer.loss_scale == 32.0
    (master,) = optimizer.master_params()
    assert torch.equal(master.grad, torch.full((4,), 0.75))


# ---- clipping ------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_clipping_scales_the_gradients(norm_type: float) -> None:
    model = Model(torch.float16)
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), init_scale=256.0)
    optimizer.backward(model(batch(0, torch.float16)).square().sum() * 0.01)
    grads = torch.cat([p.grad.double().flatten() for p in model.parameters()]) / 256
    norm = float(torch.linalg.vector_norm(grads, norm_type))
    found = optimizer.clip_master_grads(norm / 4, norm_type)
    assert found == pytest.approx(norm, rel=1e-5)
    clipped = torch.cat([p.grad.flatten() for p in optimizer.master_params()])
    torch.testing.assert_close(clipped.double(), grads / 4, rtol=1e-4, atol=1e-9)
    before = next(optimizer.master_params()).detach().clone()
    optimizer.step()  # with the clipped gradients, not with new ones
    expected = before - 0.1 * next(optimizer.master_params()).grad
    torch.testing.assert_close(next(optimizer.master_params()).detach(), expected)


def test_clipping_without_finite_gradients() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = FP16_Optimizer(torch.optim.SGD([weight], lr=0.1))
    optimizer.backward(weight.float().sum() * 1e6)
    assert optimizer.clip_master_grads(1.0) == -1.0
    optimizer.step()
    assert torch.equal(weight, torch.ones_like(weight)) and optimizer.overflow


# ---- parameters ----------------------------------------------------------------------------------
def test_shared_parameters_have_one_master() -> None:
    model = Model(torch.float16)
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(list(optimizer.master_params())) == len(list(model.parameters())) == 5
    train(model, optimizer, range(2), torch.float16)
    assert model.first.weight is model.second.weight


def test_float32_parameters_stay_themselves() -> None:
    model = Model(torch.float16)
    address = model.norm.weight.data_ptr()
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.backward(model(batch(0, torch.float16)).square().mean())
    scaled = model.norm.weight.grad.clone()
    optimizer.step()
    assert model.norm.weight.data_ptr() == address
    assert torch.equal(model.norm.weight.grad, scaled)  # the model's gradients stay as they are
    expected = 1 - 0.1 * scaled / 2.0**16
    torch.testing.assert_close(model.norm.weight.detach(), expected)


def test_frozen_parameters_get_masters_when_they_train() -> None:
    model = Model(torch.float16)
    model.first.bias.requires_grad_(False)
    optimizer = FP16_Optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    frozen = model.first.bias.detach().clone()
    train(model, optimizer, range(3), torch.float16)
    assert torch.equal(model.first.bias, frozen)
    model.first.bias.requires_grad_(True)
    train(model, optimizer, range(3), torch.float16)
    assert not torch.equal(model.first.bias, frozen)
    assert {p.dtype for p in optimizer.master_params()} == {torch.float32}
    model.second.bias.requires_grad_(False)
    frozen = model.second.bias.detach().clone()
    train(model, optimizer, range(3), torch.float16)
    assert torch.equal(model.second.bias, frozen)


def test_groups_and_schedulers() -> None:
    model = Model(torch.float16)
    groups = [{"params": model.first.parameters(), "lr": 0.0}, {"params": [model.second.bias]}]
    optimizer = FP16_Optimizer(torch.optim.SGD(groups, lr=0.1))
    optimizer.add_param_group({"params": model.norm.parameters(), "lr": 0.2})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    weight, bias = model.first.weight.detach().clone(), model.second.bias.detach().clone()
    train(model, optimizer, range(1), torch.float16)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.05, 0.1]
    assert torch.equal(model.first.weight, weight) and not torch.equal(model.second.bias, bias)


def test_weights_loaded_later_are_kept() -> None:
    model, other = Model(torch.float16), Model(torch.float16)
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1.0)
    model.load_state_dict(other.state_dict())
    train(model, optimizer, range(2), torch.float16)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool) -> None:
    model = Model(torch.float16)
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, range(1), torch.float16)
    buffers = [p.grad for p in optimizer.master_params()]
    assert all(buffer is not None for buffer in buffers)
    optimizer.zero_grad(set_to_none=set_to_none)
    for p in model.parameters():
        assert p.grad is None if set_to_none else not p.grad.any()
    kept = [p.grad for p in optimizer.master_params()]
    assert all(k is None if set_to_none else k is b for k, b in zip(kept, buffers, strict=True))


# ---- state ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["adamw", "fused_adam", "sgd"])
@pytest.mark.parametrize("order", ["model first", "optimizer first"])
def test_training_goes_on_from_a_state(name: str, order: str) -> None:
    model = Model(torch.float16)
    optimizer = FP16_Optimizer(OPTIMIZERS[name](model.parameters()), growth_interval=2)
    train(model, optimizer, range(5), torch.float16)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    other = Model(torch.float16)
    second = FP16_Optimizer(OPTIMIZERS[name](other.parameters()))
    for step in range(2):
        if (order == "model first") == (step == 0):
            other.load_state_dict(states[0])
        else:
            second.load_state_dict(states[1])
    assert second.loss_scale == optimizer.loss_scale
    train(model, optimizer, range(5, 10), torch.float16)
    train(other, second, range(5, 10), torch.float16)
    for p, q in zip(optimizer.master_params(), second.master_params(), strict=True):
        assert torch.equal(p, q)


def test_states_of_and_for_the_optimizer_alone() -> None:
    model = Model(torch.bfloat16)
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    plain.step()
    other = copy.deepcopy(model)
    wrapped = FP16_Optimizer(torch.optim.AdamW(other.parameters()))
    wrapped.load_state_dict(plain.state_dict())
    master = next(wrapped.master_params())
    assert torch.equal(master, next(other.parameters()).float())
    assert wrapped.state[master]["step"] == 1 and wrapped.param_groups[0]["lr"] == 0.01
    again = torch.optim.AdamW(model.parameters())
    again.load_state_dict(wrapped.state_dict())
    assert again.state[next(model.parameters())]["step"] == 1


def test_state_from_before_is_kept() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    inner = torch.optim.AdamW([weight])
    weight.grad = torch.ones(4, dtype=torch.bfloat16)
    inner.step()
    optimizer = FP16_Optimizer(inner)
    state = optimizer.state[next(optimizer.master_params())]
    assert state["step"] == 1 and state["exp_avg"].dtype == torch.float32


def test_what_was_frozen_follows_the_model() -> None:
    model, other = Model(torch.bfloat16), Model(torch.bfloat16)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    for frozen in (model.first.bias, model.norm.bias):
        frozen.requires_grad_(False)
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    second = FP16_Optimizer(torch.optim.SGD(other.parameters(), lr=0.1))  # where all train
    other.load_state_dict(model.state_dict())
    second.load_state_dict(optimizer.state_dict())
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    for p, master in zip(other.parameters(), second.master_params(), strict=True):
        assert torch.equal(p.float(), master)


@pytest.mark.parametrize("thaw", ["before the state", "after the state"])
def test_what_is_frozen_when_a_state_is_loaded_keeps_it_exactly(thaw: str) -> None:
    model = Model(torch.float16)
    optimizer = FP16_Optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    train(model, optimizer, range(3), torch.float16)
    other = Model(torch.float16).requires_grad_(False)
    second = FP16_Optimizer(torch.optim.AdamW(other.parameters()))
    other.requires_grad_(thaw == "before the state")
    other.load_state_dict(model.state_dict())
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.requires_grad_(True)
    for both in ((model, optimizer), (other, second)):
        train(*both, range(3, 6), torch.float16)
    for p, q in zip(optimizer.master_params(), second.master_params(), strict=True):
        assert torch.equal(p, q)


def test_states_reach_parameters_with_other_memory() -> None:
    model, other = Model(torch.float16), Model(torch.float16)
    optimizers = [FP16_Optimizer(OPTIMIZERS["adamw"](m.parameters())) for m in (model, other)]
    train(model, optimizers[0], range(2), torch.float16)
    other.norm.weight.data = other.norm.weight.data.clone()
    optimizers[1].load_state_dict(optimizers[0].state_dict())
    assert torch.equal(other.norm.weight, model.norm.weight)


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_of_the_optimizer(how: str) -> None:
    model = Model(torch.float16)
    pair = model, FP16_Optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    train(*pair, range(3), torch.float16)
    other = pickle.loads(pickle.dumps(pair)) if how == "pickle" else copy.deepcopy(pair)
    for both in (pair, other):
        train(*both, range(3, 6), torch.float16)
    for p, q in zip(model.parameters(), other[0].parameters(), strict=True):
        assert torch.equal(p, q)


# ---- what is refused -----------------------------------------------------------------------------
def test_closures_are_refused() -> None:
    optimizer = FP16_Optimizer(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    with pytest.raises(ValueError, match=r"^\[FP16_Optimizer\].*closure.*LBFGS"):
        optimizer.step(lambda: 0.0)  # type: ignore[arg-type]


def foreign(module: str, name: str, base: type = object) -> Any:
    return type(name, (base,), {"__module__": module})


@pytest.mark.parametrize(
    ("made", "advice"),
    [
        (("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer"), "DeepSpeed's config"),
        (("accelerate.utils.deepspeed", "DeepSpeedOptimizerWrapper"), "DeepSpeed's config"),
        (("megatron.optimizer", "Float16OptimizerWithFloat16Params"), "Megatron-LM's own --fp16"),
        (("apex.fp16_utils.fp16_optimizer", "FP16_Optimizer"), "leave out amp.initialize"),
    ],
)
def test_optimizers_of_others_are_refused(made: tuple[str, str], advice: str) -> None:
    with pytest.raises(TypeError, match=rf"^\[FP16_Optimizer\].*{made[1]}.*{advice}"):
        FP16_Optimizer(foreign(*made)())


def test_plain_optimizers_of_others_are_taken() -> None:
    params = [nn.Parameter(torch.ones(2, dtype=torch.float16))]
    for module in ("apex.optimizers.fused_sgd", "deepspeed.ops.adam.fused_adam"):
        inner = foreign(module, "Plain", torch.optim.SGD)(params, lr=0.1)
        FP16_Optimizer(inner)
        inner._amp_stash = object()  # what apex.amp.initialize leaves
        with pytest.raises(TypeError, match="apex"):
            FP16_Optimizer(inner)


def test_other_objects_are_refused() -> None:
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    for wrong in (nn.Linear(1, 1), FP16_Optimizer(sgd)):
        with pytest.raises(TypeError, match=r"^\[FP16_Optimizer\] optimizer must be"):
            FP16_Optimizer(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Megatron-LM"):
        FP16_Optimizer(sgd, get_horizontal_model_parallel_rank=lambda: 0)
    with pytest.raises(TypeError, match="but found scale_window"):
        FP16_Optimizer(sgd, scale_window=10)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = FP16_Optimizer(torch.optim.SGD(table.parameters(), lr=0.1))
    optimizer.backward(table(torch.tensor([1, 2])).sum())
    with pytest.raises(RuntimeError, match=r"^\[FP16_Optimizer\] gradients must be dense"):
        optimizer.step()


def test_docstrings() -> None:
    for module in (fp16_optimizer, loss_scale):
        result = doctest.testmod(module)
        assert result.attempted >= 3 and result.failed == 0


def test_a_change_through_data_stays() -> None:
    """As weight clipping, averages that are swapped in, and broadcasts do it."""
    found = []
    for wrap in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 4).bfloat16()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = FP16_Optimizer(optimizer) if wrap else optimizer
        for p in model.parameters():
            p.data.clamp_(-0.01, 0.01)
        loss = model(torch.ones(2, 4).bfloat16()).float().sum()
        optimizer.backward(loss) if wrap else loss.backward()
        optimizer.step()
        found.append(model.weight.detach().clone())
    assert torch.equal(*found) and found[0].abs().max() < 0.011


def test_masters_keep_what_rounding_drops() -> None:
    """A parameter that nobody changed does not reset its master."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=2.0**-10))
    for _ in range(8):  # each step is less than the parameter's spacing
        optimizer.zero_grad()
        optimizer.backward(-model(torch.ones(1, 1).bfloat16()).float().sum())
        optimizer.step()
    assert model.weight.item() == 1 + 2.0**-7


def test_a_parameter_is_in_one_group() -> None:
    model = Model(torch.bfloat16)
    optimizer = FP16_Optimizer(torch.optim.SGD([model.first.weight], lr=0.1))
    with pytest.raises(ValueError, match="must be in one group"):
        optimizer.add_param_group({"params": [model.first.weight]})
    with pytest.raises(ValueError, match="must be in one group"):
        optimizer.add_param_group({"params": [("weight", model.first.weight)]})
    with pytest.raises(TypeError, match="ordered"):
        optimizer.add_param_group({"params": {model.second.bias}})
    optimizer.add_param_group({"params": iter([model.first.bias])})
    assert len(optimizer.param_groups) == 2
