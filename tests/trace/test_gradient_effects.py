"""What acts on gradients inside of a forward without being an operator of a functional graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.autograd import forward_ad
from torch.nn import functional

from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import Calls, as_in_eager, assert_compiled


class Sign(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return w.sign()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def _step(runner: nn.Module) -> list[Tensor]:
    x = torch.linspace(-1.0, 1.0, 8).reshape(2, 4)
    results = []
    for _ in range(2):
        results.append(runner(x))
        results[-1].square().sum().backward()
    return results


def _report(forward: Callable[[Any, Tensor], Tensor]) -> dict[str, Any]:
    torch.manual_seed(0)
    return as_in_eager(Calls(forward, out=nn.Linear(4, 4)), _step)


def _assert_left(report: dict[str, Any], reason: str) -> None:
    assert not report["compiled"]
    assert any(reason in piece for piece in report["eager_pieces"]), report["eager_pieces"]


# ---- torch.func ---------------------------------------------------------------------------------


def _vmap(self: Any, x: Tensor) -> Tensor:
    mapped: Tensor = torch.func.vmap(lambda z: self.out(self.fc(z).tanh()))(x)
    return mapped


@pytest.mark.slow
def test_a_transform_without_gradients_is_compiled() -> None:
    assert_compiled(_report(_vmap), 2)


def _through_operators(self: Any, z: Tensor) -> Tensor:
    result: Tensor = self.out(self.fc(z).tanh())
    return result


def _through_composites(self: Any, z: Tensor) -> Tensor:
    """Some of them are one operator of the engine."""
    normalized = functional.layer_norm(z * 2, (4,))
    return self.fc(z).tanh() + normalized * self.out(z).softmax(-1)


def _through_parts(self: Any, z: Tensor) -> Tensor:
    similar = functional.cosine_similarity(self.fc(z), self.out(z), dim=-1)
    return self.fc(z).tanh() + similar[..., None]


Inner = Callable[[Any, Tensor], Tensor]


def _jvp(self: Any, x: Tensor, inner: Inner) -> Tensor:
    along = torch.arange(8.0).reshape(2, 4)
    tangent: Tensor = torch.func.jvp(lambda z: inner(self, z), (x,), (along,))[1]
    return tangent


def _jacobians(self: Any, x: Tensor, inner: Inner) -> Tensor:
    found: Tensor = torch.func.vmap(torch.func.jacfwd(lambda z: inner(self, z)))(x)
    return found


def _dual_level(self: Any, x: Tensor, inner: Inner) -> Tensor:
    with forward_ad.dual_level():
        dual = inner(self, forward_ad.make_dual(x, torch.arange(8.0).reshape(2, 4)))
        tangent: Tensor = forward_ad.unpack_dual(dual).tangent
    return tangent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transform", "inner"),
    [
        (_jvp, _through_operators),
        (_jvp, _through_composites),
        (_jvp, _through_parts),
        (_jacobians, _through_operators),
        (_jacobians, _through_parts),
        (_dual_level, _through_operators),
        (_dual_level, _through_parts),
    ],
)
def test_gradients_of_forward_mode_are_compiled(
    transform: Callable[..., Tensor], inner: Inner
) -> None:
    assert_compiled(_report(lambda self, x: transform(self, x, inner)), 2)


class OwnRules(torch.autograd.Function):
    """The sign, with gradients, tangents and batching rule that its operators do not have."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # after `vjp`, a tensor of the transform that has ended
        return grads[0] * (3 + x * x)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[0] * 5

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return OwnRules.apply(x) * 7, in_dims[0]


def _ruled(z: Tensor) -> Tensor:
    ruled: Tensor = OwnRules.apply(z)
    return ruled * z


def _pulled_back(z: Tensor) -> Tensor:
    y, pull = torch.func.vjp(_ruled, z)
    gradient: Tensor = pull(torch.ones_like(y))[0]
    return y + gradient


_of_rows = torch.func.vmap(torch.func.grad(lambda z: _ruled(z).sum()))
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "grad": lambda z: torch.func.grad(lambda z: _ruled(z).sum())(z),
    "vjp": _pulled_back,
    "jvp": lambda z: torch.func.jvp(_ruled, (z,), (torch.ones_like(z),))[1],
    "jacrev": lambda z: torch.func.jacrev(_ruled)(z).sum(0),
    "jacfwd": lambda z: torch.func.jacfwd(_ruled)(z).sum(0),
    "hessian": lambda z: torch.func.hessian(lambda z: _ruled(z).sum())(z).sum(0),
    "vmap": lambda z: torch.func.vmap(_ruled)(z),
    "vmap of grad": lambda z: _of_rows(z),
}


def _then_layers(transform: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.out(transform(self.fc(x)))
        return result

    return forward


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_function_under_a_transform_keeps_its_rules(transform: str) -> None:
    """The transform and all that it calls run in Python; the layers around it are compiled."""
    if transform in ("vjp", "jacrev") and running_torch() < (2, 13):
        pytest.skip("before 2.13 torch cannot resume a function inside of vjp")
    report = _report(_then_layers(TRANSFORMS[transform]))
    pieces, breaks = report["eager_pieces"], report["graph_breaks"]
    assert len(pieces) == 1 and report["captures"] >= 2, report
    for reason in (pieces[0], breaks[0]):
        assert "OwnRules, under a transform" in reason and "test_gradient_effects.py:" in reason


def test_a_function_of_integers_under_vmap_is_captured() -> None:
    """As masks of transformers that are made of functions of positions: torch makes the rule of forward."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.arange(len(x)) % 3 > 1
        rows = torch.arange(len(x))
        with TransformGetItemToIndex():
            mask = torch.vmap(lambda i: torch.vmap(lambda j: (i >= j) & ~hidden[j])(rows))(rows)
        result: Tensor = self.out(mask.float() @ self.fc(x))
        return result

    assert_compiled(_report(forward), 1)


def _pulled_back_behind_a_break(self: Any, x: Tensor) -> Tensor:
    y, pull = torch.func.vjp(lambda z: torch.tanh(self.out(z)), self.fc(x))
    print(end="")
    gradient: Tensor = pull(y)[0]
    return gradient + pull(torch.ones_like(y))[0]


@pytest.mark.skipif(running_torch() < (2, 13), reason="torch cannot resume a function with vjp")
def test_what_vjp_returns_is_called_behind_a_graph_break() -> None:
    report = _report(_pulled_back_behind_a_break)
    assert any("called behind a graph break" in piece for piece in report["eager_pieces"]), report


def test_a_function_under_a_transform_where_the_graph_must_be_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORTMODULE_FULLGRAPH", "1")
    with pytest.raises(
        Exception, match=r"OwnRules, under a transform[\s\S]*test_gradient_effects.py"
    ):
        _report(_then_layers(TRANSFORMS["grad"]))


# ---- in place -----------------------------------------------------------------------------------


def _detached_by_method(self: Any, x: Tensor) -> Tensor:
    h = x
    for step in range(4):
        h = self.fc(h).tanh()
        h = h.detach_() if step == 1 else h
    return h


def _detached_by_function(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    with torch.no_grad():
        before = h * 2
    torch.detach_(h)
    result: Tensor = self.out(h) + self.fc(x) * before
    return result


@pytest.mark.parametrize("forward", [_detached_by_method, _detached_by_function])
def test_a_gradient_that_is_ended_in_place(forward: Callable[..., Tensor]) -> None:
    _assert_left(_report(forward), "detach_()")


def _new_data(self: Any, x: Tensor) -> Tensor:
    """Backward reads the new data, as it does in eager PyTorch."""
    result: Tensor = self.out(self.fc(x))
    self.out.weight.data = self.out.weight.data.sign()
    return result


def _turned(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)[:, :2]
    with torch.no_grad():
        h.t_()
    result: Tensor = self.out(x).square().sum() + h
    return result


@pytest.mark.parametrize("forward", [_new_data, _turned])
def test_another_storage_or_shape_where_gradients_are_off(forward: Callable[..., Tensor]) -> None:
    # Since torch 2.14 an assignment to `.data` is a change of the input itself.
    _assert_left(_report(forward), "sizes, strides or storage of")


# ---- inference mode -----------------------------------------------------------------------------


def _target(self: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        target = self.fc(x)
    return functional.mse_loss(self.fc(x * 2), target.clone())


def _gradients_within_inference(self: Any, x: Tensor) -> Tensor:
    with torch.inference_mode(), torch.enable_grad():
        target = self.fc(x)
    return functional.mse_loss(self.fc(x * 2), target.clone())


def _inference_ends_within(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        with torch.inference_mode(False):
            target = self.fc(x)
        without = self.out(x)
    return functional.mse_loss(self.out(x * 2), target) + without.sum()


@pytest.mark.parametrize("forward", [_target, _gradients_within_inference, _inference_ends_within])
def test_inference_mode_within_a_forward(forward: Callable[..., Tensor]) -> None:
    assert_compiled(_report(forward))


def test_gradients_that_only_the_end_of_inference_mode_turns_on() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.inference_mode(False):
            inside = self.fc(x)
        result: Tensor = inside
        return result

    def step(runner: nn.Module) -> Tensor:
        with torch.no_grad():
            result: Tensor = runner(torch.ones(2, 4))
        result.square().sum().backward()
        return result

    assert_compiled(as_in_eager(Calls(forward), step))


# ---- functions that stand in the graph whole ----------------------------------------------------


@torch.compiler.allow_in_graph
def _own_backward(w: Tensor) -> Tensor:
    result: Tensor = Sign.apply(w)
    return result


@torch._dynamo.nonstrict_trace  # type: ignore[attr-defined, untyped-decorator, unused-ignore]
def _not_looked_into(w: Tensor) -> Tensor:
    result: Tensor = Sign.apply(w)
    return result


@torch.compiler.allow_in_graph
def _no_gradient(w: Tensor) -> Tensor:
    with torch.no_grad():
        return w * 2


@torch.compiler.allow_in_graph
def _inference(w: Tensor) -> Tensor:
    with torch.inference_mode():
        twice = w * 2
    return twice.clone()


@torch.compiler.allow_in_graph
def _asks(w: Tensor) -> Tensor:
    return w * (2 if torch.is_grad_enabled() else 3)


@torch.compiler.allow_in_graph
def _asks_a_tensor(w: Tensor) -> Tensor:
    return w * (2 if w.requires_grad else 3)


@torch.compiler.allow_in_graph
def _with_a_hook(w: Tensor) -> Tensor:
    y = w * 1
    y.register_hook(lambda grad: grad * 3)
    return y


class WholeSign(Sign):
    """Stands in the graph whole, as a class."""


torch.compiler.allow_in_graph(WholeSign)


@pytest.mark.parametrize(
    "whole",
    [
        _own_backward,
        _not_looked_into,
        _no_gradient,
        _inference,
        _asks,
        _asks_a_tensor,
        _with_a_hook,
        WholeSign.apply,
    ],
)
def test_a_whole_function_that_acts_on_gradients(whole: Callable[..., Tensor]) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return functional.linear(x, whole(self.fc.weight)) + self.out(x)

    apply = torch.autograd.Function.__dict__["apply"]
    _assert_left(_report(forward), "under allow_in_graph")
    assert torch.autograd.Function.__dict__["apply"] is apply


@torch.compiler.allow_in_graph
def _normalized(w: Tensor) -> Tensor:
    return functional.layer_norm(w.reshape(8, 2), (2,)).reshape(4, 4) * w.detach() + w.cos()


def test_a_whole_function_of_mere_operators_is_compiled() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return functional.linear(x, _normalized(self.fc.weight))

    assert_compiled(_report(forward), 2)
