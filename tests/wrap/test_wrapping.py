"""An ORTModule inside other modules, and methods of the original that it must not hide."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ortmodule_py import LogLevel, ORTModule, last_run_report
from tests.semantics import QUIET


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.encoder(x))
        return y


def test_a_module_around_it_loads_its_state() -> None:
    source, outer = Outer(), Outer()
    source(torch.randn(8, 4))  # statistics
    outer.encoder = ORTModule(outer.encoder, QUIET)
    assert list(outer.state_dict()) == list(source.state_dict())
    called: list[str] = []
    outer.encoder.register_load_state_dict_post_hook(lambda module, keys: called.append("post"))
    outer.load_state_dict(source.state_dict())
    for name, value in source.state_dict().items():
        torch.testing.assert_close(outer.state_dict()[name], value, msg=name)
    assert called == ["post"]
    missing = {k: v for k, v in source.state_dict().items() if k != "encoder.0.weight"}
    assert outer.load_state_dict(missing, strict=False).missing_keys == ["encoder.0.weight"]
    source.eval(), outer.eval()
    x = torch.randn(3, 4)
    torch.testing.assert_close(outer(x), source(x))


def test_functional_calls_of_a_single_layer() -> None:
    model = ORTModule(nn.Linear(4, 2), QUIET)
    given = {"weight": torch.ones(2, 4), "bias": torch.ones(2)}
    result = torch.func.functional_call(model, given, torch.ones(3, 4))
    torch.testing.assert_close(result, torch.full((3, 2), 5.0))
    assert model.weight is model.module.weight and not torch.equal(model.weight, given["weight"])


@pytest.mark.parametrize("captured_before", [True, False])
def test_forward_mode_gradients(captured_before: bool) -> None:
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    x, tangent = torch.randn(3, 4), torch.randn(3, 4)
    if captured_before:
        model(x)
    found = []
    for runner in (model, model.module):
        with forward_ad.dual_level():
            found.append(forward_ad.unpack_dual(runner(forward_ad.make_dual(x, tangent))))
    torch.testing.assert_close(found[0].primal, found[1].primal)
    torch.testing.assert_close(found[0].tangent, found[1].tangent)
    model(x).sum().backward()
    assert last_run_report(model)["compiled"]


def test_a_transform_of_functions_leaves_other_calls_compiled() -> None:
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    x = torch.randn(3, 4)
    given = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(model, parameters, (row[None],)).sum()
        return result

    for _ in range(2):
        found = torch.func.vmap(torch.func.grad(loss), (None, 0))(given, x)
        model.zero_grad()
        model(x).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name].sum(0), parameter.grad)
        report = last_run_report(model)
        assert report["compiled"] and report["captures"] == 1, report


@pytest.mark.parametrize("called_before", [False, True])
def test_traces_of_torchscript(called_before: bool) -> None:
    """As TensorBoard's graphs and older exporters make them."""
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    x = torch.randn(3, 4)
    if called_before:
        model(x)
    traced = torch.jit.trace(model, x)
    x = torch.randn(2, 4)
    torch.testing.assert_close(traced(x), model(x))
    assert last_run_report(model)["compiled"] and set(dict(traced.named_parameters())) == {
        "0.weight",
        "0.bias",
    }


def test_exporters_take_the_original() -> None:
    """Of a wrapper, and of one inside of another module."""
    model, x = ORTModule(nn.Linear(4, 2), QUIET), torch.randn(3, 4)
    for module in (model, nn.Sequential(model)):
        want = module(x)
        for strict in (False, True):
            exported = torch.export.export(module, (x,), strict=strict)
            torch.testing.assert_close(exported.module()(x), want)
        scripted = torch.jit.script(module)
        torch.testing.assert_close(scripted(x), want)
        assert set(scripted.state_dict()) == set(exported.state_dict) == set(module.state_dict())
    assert not last_run_report(model)["eager_pieces"]


def test_compile_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = ORTModule(nn.Linear(4, 2))
    model._logger.addHandler(caplog.handler)
    model.compile(backend="eager")
    assert "compile() has no effect" in caplog.text
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), model.module(x))
    assert model.module._compiled_call_impl is None
    assert last_run_report(model)["captures"] == 1


def test_a_scripted_module_is_refused() -> None:
    scripted = torch.jit.script(nn.Linear(4, 2))
    with pytest.raises(TypeError, match="but found a RecursiveScriptModule; pass the original"):
        ORTModule(scripted)


def test_data_parallel_is_refused_around_and_inside() -> None:
    with pytest.raises(NotImplementedError, match="DataParallel is not supported; use Distributed"):
        ORTModule(nn.DataParallel(nn.Linear(4, 2)))
    with pytest.raises(NotImplementedError, match="DataParallel is not supported; use Distributed"):
        ORTModule(nn.Linear(4, 2))._replicate_for_data_parallel()


@pytest.mark.parametrize("given", ["debug", {}, LogLevel.INFO, 0])
def test_debug_options_of_another_type_are_refused(given: Any) -> None:
    rule = (
        rf"^\[ORTModule\] debug_options must be a DebugOptions, but found {type(given).__name__};"
    )
    with pytest.raises(TypeError, match=rule):
        ORTModule(nn.Linear(4, 2), given)


class Own(nn.Module):
    """Does more than `nn.Module` where it is moved, frozen and put into evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.grid = torch.zeros(4)
        self.merged = self.frozen = False

    def eval(self) -> Any:
        self.merged = True
        return super().eval()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.grid = self.grid.to(*args, **kwargs)
        return super().to(*args, **kwargs)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        self.frozen = not requires_grad
        return super().requires_grad_(requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x) + self.grid
        return y


@pytest.mark.parametrize("module", [nn.Linear(4, 4), Own()], ids=["plain", "own"])
def test_methods_that_give_the_module_back(module: nn.Module) -> None:
    model = ORTModule(copy.deepcopy(module), QUIET)
    assert model.eval().requires_grad_(False).to(torch.float64).requires_grad_() is model
    assert not model.training and not model.module.training
    assert model.half().float().double() is model
    if isinstance(module, Own):
        assert model.merged and not model.frozen and model.grid.dtype == torch.float64
    x = torch.ones(2, 4, dtype=torch.float64)
    torch.testing.assert_close(model(x), model.module(x))
    assert model.train().training and model.module.training
    restored = copy.deepcopy(model)
    assert restored.eval() is restored


def test_the_mode_is_one_state() -> None:
    model = ORTModule(nn.Dropout(0.5), QUIET)
    x = torch.ones(64)
    for training in (False, True):
        model.training = training
        assert model.module.training is training and torch.equal(model(x), x) is not training
        model.module.train(not training)
        assert model.training is not training and torch.equal(model(x), x) is training


class Moved(nn.Module):
    """Its own `_apply` takes no more than the function."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def _apply(self, fn: Any) -> Any:  # type: ignore[override]
        return super()._apply(fn)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y


def test_a_module_that_moves_itself() -> None:
    model = ORTModule(Moved(), QUIET)
    assert model.double() is model and model.fc.weight.dtype == torch.float64


def test_lazy_parameters_are_moved_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_PRINT_MEMORY_STATS", "1")
    model = ORTModule(nn.Sequential(nn.LazyLinear(3)), QUIET)
    assert model.half().to(torch.float64) is model
    assert model(torch.ones(2, 5, dtype=torch.float64)).shape == (2, 3)
    assert model.float()(torch.ones(2, 5)).dtype == torch.float32


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[Any, Tensor]:
        h = self.fc(x)
        return {"loss": h.sum(), 7: h}


def test_chosen_outputs_with_hooks_on_arguments() -> None:
    module = Named()
    module.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model = ORTModule(module, QUIET, outputs=["loss"])
    x = torch.ones(2, 4)
    result = model(x)
    assert list(result) == ["loss", 7] and result[7] is None
    torch.testing.assert_close(result["loss"], module(x)["loss"])


def _keeps_count(module: nn.Module, seen: list[int]) -> None:
    module.register_forward_hook(lambda m, args, out: seen.append(len(args)))


def test_chosen_outputs_with_hooks_on_results() -> None:
    module, seen = Named(), list[int]()
    _keeps_count(module, seen)
    ORTModule(module, QUIET, outputs=["loss"])(torch.ones(2, 4))
    assert seen == [1]


def test_chosen_outputs_of_a_forward_that_is_replaced() -> None:
    module = Named()
    model = ORTModule(module, QUIET, outputs=["loss"])
    module.forward = lambda hidden: {"loss": module.fc(hidden).sum() * 3}  # type: ignore[method-assign]
    x = torch.ones(2, 4)
    torch.testing.assert_close(model(x)["loss"], module.fc(x).sum() * 3)


class KeepsOutputs(nn.Module):
    """Attributes that bear names of the wrapper's own state."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self._outputs: list[Tensor] = []
        self._settings = 1.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.fc(x) * self._settings
        return y, y + 1


def test_attributes_that_are_set_under_names_of_the_wrapper() -> None:
    model = ORTModule(KeepsOutputs(), QUIET)
    model._outputs, model._settings = [], 2.0
    x = torch.ones(2, 4)
    y, z = model(x)
    torch.testing.assert_close(y, model.module.fc(x) * 2.0)
    torch.testing.assert_close(z, y + 1)
    assert model.module._settings == 2.0


def test_arguments_that_hold_themselves() -> None:
    model = ORTModule(Takes(), QUIET)
    ring: list[Any] = [torch.ones(2, 4)]
    ring.append(ring)
    torch.testing.assert_close(model(ring), model.module.fc(ring[0]))


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, items: list[Any]) -> Tensor:
        y: Tensor = self.fc(items[0])
        return y


def test_a_nested_tensor_runs_in_eager() -> None:
    model = ORTModule(nn.Linear(4, 4), QUIET)
    batch = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    for got, want in zip(model(batch).unbind(), model.module(batch).unbind(), strict=True):
        torch.testing.assert_close(got, want)


def test_torch_compile_may_be_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import of Lightning does: its wrapper copies the arguments into the original."""
    torch_compile = torch.compile

    @functools.wraps(torch_compile)
    def keeping(module: Any, **options: Any) -> Any:
        compiled: Any = torch_compile(module, **options)
        compiled._compile_kwargs = copy.deepcopy(options)
        return compiled

    monkeypatch.setattr(torch, "compile", keeping)
    model = ORTModule(nn.Linear(4, 4), QUIET)
    model(torch.ones(2, 4)).sum().backward()
    assert last_run_report(model)["compiled"] and "_compile_kwargs" not in vars(model.module)
    copy.deepcopy(model)(torch.ones(2, 4))
