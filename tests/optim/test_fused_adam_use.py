"""FusedAdam as a torch optimizer: groups, schedulers, state, scaling, closures, refusals."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import ortmodule_py
from ortmodule_py.optim import AdamWMode, FusedAdam
from tests.optim.reference import largest_difference, make_params, set_grads

TORCH = {"adam_w_mode": AdamWMode.ADAMW_TORCH, "lr": 1e-2, "eps": 1e-8, "weight_decay": 0.1}
HYPER = {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.1}


def train(optimizer: Any, params: list[Tensor], steps: range) -> None:
    for step in steps:
        set_grads(step, params)
        optimizer.step()


def test_defaults_are_the_originals() -> None:
    group = FusedAdam(make_params()).param_groups[0]
    del group["params"]
    group.pop("differentiable", None)  # torch's own
    assert group == {
        "lr": 1e-3,
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "adam_w_mode": AdamWMode.ADAMW_TRANSFORMERS,
        "weight_decay": 0.0,
    }
    assert [mode.value for mode in AdamWMode] == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": -1.0},
        {"lr": "1e-3"},
        {"lr": None},
        {"lr": torch.ones(2)},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"betas": (0.9,)},
        {"betas": ("0.9", "0.99")},
        {"betas": (0.9, 0.9, 0.9)},
        {"eps": -1e-8},
        {"eps": "1e-8"},
        {"weight_decay": -0.1},
        {"weight_decay": float("nan")},
        {"adam_w_mode": 3},
        {"adam_w_mode": "adamw"},
        {"amsgrad": True},
    ],
    ids=str,
)
def test_arguments_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^\[FusedAdam\] {next(iter(wrong))} must"):
        FusedAdam(make_params(), **wrong)


@pytest.mark.parametrize("name", ["amsgrad", "maximize", "differentiable"])
@pytest.mark.parametrize("how", ["constructor", "add_param_group"])
def test_other_algorithms_are_refused_in_groups(name: str, how: str) -> None:
    params = make_params()
    with pytest.raises(ValueError, match=rf"^\[FusedAdam\] {name} must be False, but found True"):
        if how == "constructor":
            FusedAdam([{"params": params[:1]}, {"params": params[1:], name: True}])
        else:
            FusedAdam(params[:1]).add_param_group({"params": params[1:], name: True})
    FusedAdam([{"params": params, name: False}])


@pytest.mark.parametrize("name", ["set_grad_none", "state_in_param_dtype"])
def test_arguments_of_all_groups_are_refused_in_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^\[FusedAdam\] {name} must be the constructor's"):
        FusedAdam([{"params": make_params(), name: True}])


def test_groups_of_torch_are_taken() -> None:
    params = make_params()
    theirs = torch.optim.AdamW(params, **HYPER)
    assert FusedAdam(theirs.param_groups).param_groups[0]["lr"] == 1e-2


def test_groups_and_schedulers() -> None:
    a, b = make_params(), make_params()
    groups = [({"lr": 0.1, "weight_decay": 0.0}, 0, 4), ({"betas": (0.5, 0.9)}, 4, 10)]
    ours = FusedAdam([g | {"params": a[i:j]} for g, i, j in groups], **TORCH)
    theirs = torch.optim.AdamW([g | {"params": b[i:j]} for g, i, j in groups], **HYPER)
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 30) for o in (ours, theirs)]
    for step in range(30):
        set_grads(step, a, b)
        for optimizer in (ours, theirs):
            optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert largest_difference(a, b) <= 2e-6
    assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"] != 0.1


def test_modes_may_differ_between_groups() -> None:
    a, b = make_params(), make_params()
    mode = {"adam_w_mode": AdamWMode.ADAM_L2_REGULARIZATION, "params": a[5:]}
    ours = FusedAdam([{"params": a[:5]}, mode], **TORCH)
    theirs = [torch.optim.AdamW(b[:5], **HYPER), torch.optim.Adam(b[5:], **HYPER)]
    for step in range(10):
        set_grads(step, a, b)
        for optimizer in (ours, *theirs):
            optimizer.step()
    assert largest_difference(a, b) <= 2e-6


def test_lr_may_be_a_tensor() -> None:
    a, b = make_params(), make_params()
    lr = torch.tensor(0.5)
    ours, theirs = FusedAdam(a, lr=lr), FusedAdam(b, lr=0.25)
    lr.fill_(0.25)
    for optimizer, params in ((ours, a), (theirs, b)):
        train(optimizer, params, range(2))
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_parameters_without_gradients_stay() -> None:
    params = make_params()
    before = [p.detach().clone() for p in params]
    optimizer = FusedAdam(params, **TORCH)
    optimizer.step()
    assert not optimizer.state
    params[3].grad = torch.ones_like(params[3])
    optimizer.step()
    changed = [not torch.equal(p, q) for p, q in zip(params, before, strict=True)]
    assert changed == [i == 3 for i in range(len(params))]
    assert list(optimizer.state) == [params[3]]


def test_each_parameter_counts_its_own_steps() -> None:
    a, b = make_params(), make_params()
    ours, theirs = FusedAdam(a, **TORCH), torch.optim.AdamW(b, **HYPER)
    for step in range(6):
        set_grads(step, a, b)
        if step < 4:
            a[5].grad = b[5].grad = None
        ours.step()
        theirs.step()
    assert ours.state[a[5]]["step"] == 2
    assert ours.state[a[4]]["step"] == 6
    assert largest_difference(a, b) <= 2e-6


@pytest.mark.parametrize("set_grad_none", [True, False])
@pytest.mark.parametrize("argument", [None, True, False])
def test_zero_grad(set_grad_none: bool, argument: bool | None) -> None:
    params = make_params()
    optimizer = FusedAdam(params, set_grad_none=set_grad_none)
    set_grads(0, params)
    if argument is None:
        optimizer.zero_grad()
    else:
        optimizer.zero_grad(set_to_none=argument)
    if set_grad_none if argument is None else argument:
        assert all(p.grad is None for p in params)
    else:
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in params)


def test_closure() -> None:
    model = nn.Linear(3, 1)
    optimizer = FusedAdam(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        far = model(torch.ones(2, 3)) - 10  # from 0, so that a step helps
        loss = far.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        first = optimizer.step(closure)
    assert optimizer.step(closure).item() < first.item()


def test_steps_inside_compiled_code() -> None:
    a, b = make_params(), make_params()
    optimizers = FusedAdam(a), FusedAdam(b)
    set_grads(0, a, b)
    compiled = torch.compile(lambda: optimizers[0].step(), backend="eager")
    for _ in range(2):
        compiled()
        optimizers[1].step()
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def test_hooks_run() -> None:
    params = make_params()
    optimizer, calls = FusedAdam(params), []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    optimizer.step()
    assert calls == ["pre", "post"]


# ---- what is refused -----------------------------------------------------------------------------
def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = FusedAdam(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ortmodule_py.ORTModuleError, match=r"^\[FusedAdam\].*dense.*SparseAdam"):
        optimizer.step()


def test_gradients_of_another_type_are_refused() -> None:
    param = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = FusedAdam([param])
    if hasattr(param, "grad_dtype"):  # since torch 2.10
        param.grad_dtype = torch.float32
        param.grad = torch.ones(3)
        with pytest.raises(ortmodule_py.ORTModuleError, match=r"BFloat16.*but found Float"):
            optimizer.step()
        assert optimizer.state[param]["step"] == 0


def test_other_devices_are_refused() -> None:
    param = nn.Parameter(torch.ones(3, device="meta"))
    param.grad = torch.ones(3, device="meta")
    with pytest.raises(ortmodule_py.ORTModuleError, match="on the CPU or on CUDA devices"):
        FusedAdam([param]).step()


def test_tensor_subclasses_are_refused() -> None:
    param = nn.Parameter(TwoTensor(torch.ones(3), torch.ones(3)))
    param.sum().backward()
    with pytest.raises(ortmodule_py.ORTModuleError, match="plain tensors"):
        FusedAdam([param]).step()


def test_state_of_another_shape_is_refused() -> None:
    param = nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    optimizer = FusedAdam([param])
    optimizer.step()
    for wrong in (torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(3, device="meta")):
        optimizer.state[param]["exp_avg_sq"] = wrong
        with pytest.raises(ortmodule_py.ORTModuleError, match=r"moments must have .* but found"):
            optimizer.step()
    state = {name: torch.ones(3, dtype=torch.bfloat16) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[param].update(state)
    with pytest.raises(ortmodule_py.ORTModuleError, match="its type or Float, but found BFloat16"):
        optimizer.step()


def test_moments_may_lie_anywhere() -> None:
    a, b = (nn.Parameter(torch.ones(4, 3)) for _ in range(2))
    optimizers = FusedAdam([a]), FusedAdam([b])
    for optimizer, param in zip(optimizers, (a, b), strict=True):
        param.grad = torch.arange(12.0).reshape(4, 3)
        optimizer.step()
    state = optimizers[0].state[a]
    state["exp_avg"] = torch.stack([state["exp_avg"]] * 2, -1)[..., 0]
    state["exp_avg_sq"] = state["exp_avg_sq"].t().contiguous().t()
    for optimizer in optimizers:
        optimizer.step()
    assert torch.equal(a, b)
    assert torch.equal(state["exp_avg"], optimizers[1].state[b]["exp_avg"])


# ---- state ---------------------------------------------------------------------------------------
def copied(optimizer: torch.optim.Optimizer, how: str) -> dict[str, Any]:
    """A state that went through a file, as plain data."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=how == "weights_only")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["weights_only", "pickle"])
def test_training_goes_on_from_a_state(dtype: torch.dtype, how: str) -> None:
    a = make_params(dtype)
    first = FusedAdam(a, **TORCH)
    train(first, a, range(5))
    b = [nn.Parameter(p.detach().clone()) for p in a]
    second = FusedAdam(b)
    second.load_state_dict(copied(first, how))
    assert second.param_groups[0]["adam_w_mode"] == AdamWMode.ADAMW_TORCH
    assert {s["exp_avg"].dtype for s in second.state.values()} == {torch.float32}
    train(first, a, range(5, 10))
    train(second, b, range(5, 10))
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "fused", "old"])
def test_states_of_torch_are_loaded(kind: str) -> None:
    a = make_params()
    torch_class = torch.optim.Adam if kind == "Adam" else torch.optim.AdamW
    theirs = torch_class(a, fused=kind == "fused", **HYPER)
    train(theirs, a, range(5))
    b = [nn.Parameter(p.detach().clone()) for p in a]
    mode = AdamWMode.ADAM_L2_REGULARIZATION if kind == "Adam" else AdamWMode.ADAMW_TORCH
    ours = FusedAdam(b, adam_w_mode=mode)
    state = copied(theirs, "weights_only")
    if kind == "old":  # before torch 1.12 steps were numbers
        for values in state["state"].values():
            values["step"] = int(values["step"])
    ours.load_state_dict(state)
    assert ours.param_groups[0]["adam_w_mode"] == mode
    assert ours.param_groups[0]["lr"] == 1e-2
    train(ours, b, range(5, 10))
    train(theirs, a, range(5, 10))
    assert largest_difference(b, a) <= 2e-6


@pytest.mark.parametrize("fused", [False, True])
def test_torch_loads_our_state(fused: bool) -> None:
    a = make_params()
    ours = FusedAdam(a, **TORCH)
    train(ours, a, range(5))
    b = [nn.Parameter(p.detach().clone()) for p in a]
    theirs = torch.optim.AdamW(b, fused=fused)
    theirs.load_state_dict(copied(ours, "weights_only"))
    train(ours, a, range(5, 10))
    train(theirs, b, range(5, 10))
    assert largest_difference(a, b) <= 2e-6


def test_a_state_of_the_original_counts_by_group() -> None:
    a, b = make_params(), make_params()
    first, second = FusedAdam(a), FusedAdam(b)
    train(first, a, range(3))
    state = first.state_dict()
    for values in state["state"].values():
        del values["step"]
    state["param_groups"][0]["step"] = 3
    second.load_state_dict(state)
    assert all(values["step"] == 3 for values in second.state.values())


def test_exact_moments_survive_hooks_that_change_the_state() -> None:
    a = make_params(torch.bfloat16)
    first = FusedAdam(a)
    train(first, a, range(3))
    second = FusedAdam(make_params(torch.bfloat16))

    def renumber(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        groups = [g | {"params": [100 + i for i in g["params"]]} for g in state["param_groups"]]
        return {
            "state": {100 + i: v for i, v in state["state"].items()},
            "param_groups": groups,
        }

    second.register_load_state_dict_pre_hook(renumber)
    second.load_state_dict(first.state_dict())
    for p, q in zip(first.state.values(), second.state.values(), strict=True):
        assert torch.equal(p["exp_avg_sq"], q["exp_avg_sq"])


@pytest.mark.parametrize("name", ["amsgrad", "maximize", "differentiable"])
def test_states_of_other_algorithms_are_refused(name: str) -> None:
    a = make_params()
    theirs = torch.optim.AdamW(a, **{name: True})
    with pytest.raises(ValueError, match=rf"^\[FusedAdam\].*{name}=False"):
        FusedAdam(make_params()).load_state_dict(theirs.state_dict())


def test_a_state_that_a_hook_makes_whole_is_loaded() -> None:
    params = make_params()
    first, second = FusedAdam(params), FusedAdam(make_params())
    train(first, params, range(2))
    saved = copy.deepcopy(first.state_dict())
    for state in saved["state"].values():
        state["second"] = state.pop("exp_avg_sq")

    def rename(_: Any, loaded: dict[str, Any]) -> None:
        for state in loaded["state"].values():
            state["exp_avg_sq"] = state.pop("second")

    second.register_load_state_dict_pre_hook(rename)
    second.load_state_dict(saved)
    for p, q in zip(first.state.values(), second.state.values(), strict=True):
        assert torch.equal(p["exp_avg_sq"], q["exp_avg_sq"])


def test_a_state_without_moments_is_refused_and_nothing_is_lost() -> None:
    params, theirs = make_params(), make_params()
    optimizer, sgd = FusedAdam(params), torch.optim.SGD(theirs, lr=0.1, momentum=0.9)
    train(optimizer, params, range(2))
    train(sgd, theirs, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"^\[FusedAdam\].*exp_avg_sq, but found momentum_buffer"):
        optimizer.load_state_dict(sgd.state_dict())
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_of_the_optimizer(how: str) -> None:
    params = make_params(torch.float16)
    optimizer = FusedAdam(params, set_grad_none=False, state_in_param_dtype=True)
    train(optimizer, params, range(2))
    pair = (params, optimizer)
    params2, other = pickle.loads(pickle.dumps(pair)) if how == "pickle" else copy.deepcopy(pair)
    assert other.set_grad_none is False and other.state_in_param_dtype is True
    train(optimizer, params, range(2, 4))
    train(other, params2, range(2, 4))
    assert all(torch.equal(p, q) for p, q in zip(params, params2, strict=True))


# ---- GradScaler ----------------------------------------------------------------------------------
@pytest.mark.parametrize("unscale_first", [False, True])
def test_grad_scaler(unscale_first: bool) -> None:
    a, b = make_params(), make_params()
    scaled, plain = FusedAdam(a, **TORCH), FusedAdam(b, **TORCH)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for step in range(6):
        set_grads(step, a, b)
        scale = scaler.get_scale()
        scaler.scale(torch.ones(()))
        for p in a:
            p.grad.mul_(scale)
        if step == 3:
            a[5].grad[1, 2] = float("inf")
        if unscale_first:
            scaler.unscale_(scaled)
        before = [s["step"].clone() for s in scaled.state.values()]
        scaler.step(scaled)
        scaler.update()
        if step == 3:
            assert before == [s["step"] for s in scaled.state.values()]
            assert scaler.get_scale() == scale / 2
        else:
            plain.step()
            pairs = zip(a, b, strict=True)
            assert all(torch.equal(p.grad, q.grad) for p, q in pairs)  # unscaled in place
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
    assert not hasattr(scaled, "found_inf")


def test_grad_scaler_takes_float16_parameters() -> None:
    param = nn.Parameter(torch.ones(8, dtype=torch.float16))
    optimizer = FusedAdam([param])
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale((param * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.state[param]["step"] == 3
    assert float(optimizer.state[param]["exp_avg"][0]) == pytest.approx(2 * (1 - 0.9**3))


def test_trains_an_ortmodule() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
    engine = ortmodule_py.ORTModule(copy.deepcopy(plain))
    x = torch.randn(32, 6)
    losses = []
    for model in (plain, engine):
        optimizer = FusedAdam(model.parameters(), lr=1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[1] < 5.0
