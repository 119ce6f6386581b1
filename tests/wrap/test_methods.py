"""Methods of the original that are called through the wrapper: they run on the engine."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
import threading
import types
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET, as_in_eager, assert_compiled


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y

    def doubled(self, x: Tensor) -> Tensor:
        y: Tensor = self(x)
        return y * 2


class Base(nn.Module):
    def training_step(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """One step."""
        y: Tensor = self(x).sum()
        return y * scale


class Net(Base):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = Layer(), nn.Linear(4, 2)
        self.__secret = 3.0

    def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
        y: Tensor = self.last(self.encode(x).tanh()) + shift
        return y

    def encode(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y

    def training_step(self, x: Tensor, scale: float = 2.0) -> Tensor:
        assert isinstance(self, Net) and not isinstance(self, ORTModule)
        return super().training_step(x, scale) * self.__secret

    def both(self, x: Tensor) -> Tensor:
        return self.training_step(x) + self.training_step(x + 1) + self.layer.doubled(x).sum()

    def by_forward(self, x: Tensor) -> Tensor:
        assert list(inspect.signature(self.forward).parameters) == ["x", "shift"]
        assert inspect.ismethod(Base.training_step.__get__(self)) and self.forward.__self__ is self
        return self.forward(x, shift=1.0).sum()

    def fails(self, x: Tensor) -> Tensor:
        raise ValueError(float(self(x).sum()))

    def each(self, xs: Tensor) -> Generator[Tensor, Any, str]:
        for x in xs:
            given = yield self(x).sum()
            if given is not None:
                yield given
        return "done"

    async def later(self, x: Tensor) -> Tensor:
        y: Tensor = self(x).sum()
        return y

    def copied(self, x: Tensor) -> tuple[Tensor, Any, Any]:
        y: Tensor = self(x).sum()
        return y, copy.deepcopy(self), pickle.loads(pickle.dumps(self))

    @property
    def bound(self) -> str:
        return "property"

    @staticmethod
    def static(x: int) -> int:
        return x + 1

    @classmethod
    def made(cls) -> type:
        return cls


@pytest.fixture
def model() -> ORTModule:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return ORTModule(Net(), QUIET)


def _runs(model: ORTModule, call: Callable[[], Any]) -> int:
    """How many pieces ran meanwhile."""
    before = model._compiler.runs
    call()
    return int(model._compiler.runs - before)


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("first", ["direct", "method"])
def test_a_step_is_as_in_eager_in_one_capture(first: str) -> None:
    def step(model: Any) -> Any:
        calls: list[int] = []
        model.register_forward_hook(lambda *_: calls.append(1))
        results = [model(X)] if first == "direct" else []
        results += [model.training_step(X), model.both(X), model.training_step(X, scale=3.0)]
        sum(r.sum() for r in [*results, model(X)]).backward()
        return results, calls

    assert_compiled(as_in_eager(Net(), step))


def test_the_engine_runs_methods(model: ORTModule) -> None:
    assert _runs(model, lambda: model.training_step(X)) == 1
    assert _runs(model, lambda: model.by_forward(X)) == 1
    assert _runs(model, lambda: model.both(X)) == 2
    torch._dynamo.reset()
    assert _runs(model, lambda: model.training_step(X)) == 1
    assert _runs(model, lambda: model.module.training_step(X)) == 0
    with torch.no_grad():
        assert _runs(model, lambda: model.training_step(X)) == 0
    with torch.inference_mode():
        assert _runs(model, lambda: model.by_forward(X)) == 0
    assert last_run_report(model)["compiled"]


def test_hooks_fire_as_in_eager() -> None:
    """Those of the wrapper and of the original, once for each call; `forward` has none."""

    def step(model: Any) -> Any:
        calls: list[str] = []
        inner = model.module if isinstance(model, ORTModule) else model
        model.register_forward_pre_hook(lambda *_: calls.append("outer"))
        before = model.by_forward(X)
        inner.register_forward_hook(lambda module, args, result: calls.append("inner"))
        return before, model.by_forward(X), model.both(X), model(X), calls

    as_in_eager(Net(), step)


def test_nothing_is_left_behind(model: ORTModule) -> None:
    model(X)
    before = set(vars(model.module))
    model.both(X)
    with pytest.raises(ValueError):
        model.fails(X)
    assert set(vars(model.module)) == before and model.module._compiled_call_impl is None
    assert _runs(model, lambda: model.module(X)) == 0


@pytest.mark.parametrize("variable", ["ORTMODULE_BYPASS", "ORTMODULE_VERIFY_EVERY", ""])
def test_no_recursion(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Where the wrapper runs the original itself."""
    if variable:
        monkeypatch.setenv(variable, "1")

    class Broken(Net):
        def forward(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
            torch._dynamo.graph_break()
            for _ in range(2):
                torch._dynamo.graph_break()  # leaves the whole function to eager
                x = self.encode(x)
            return super().forward(x, shift=shift)

    for kind in (Net, Broken):
        as_in_eager(kind(), lambda m: [m.both(X), m.by_forward(X), m.training_step(X)])


def test_no_recursion_in_transforms(model: ORTModule) -> None:
    x = X.clone().requires_grad_()
    found = [torch.func.grad(m.training_step)(x) for m in (model, model.module)]
    torch.testing.assert_close(found[0], found[1])
    with torch.nn.modules.module.register_module_forward_hook(lambda *_: None):
        torch.testing.assert_close(model.training_step(X), model.module.training_step(X))


def test_chosen_outputs() -> None:
    class Named(Base):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> dict[str, Any]:
            y = self.fc(x)
            return {"loss": y.sum(), "scores": y}

        def step(self, x: Tensor) -> Any:
            return self(x)

    model = ORTModule(Named(), QUIET, outputs=["loss"])
    assert model.step(X)["scores"] is None and model.module.step(X)["scores"] is not None


def test_threads(model: ORTModule) -> None:
    """Each is within its own method: the others' calls of the original stay eager."""
    model(X).sum().backward()
    start, failures, eager = threading.Barrier(3), list[BaseException](), Net()
    eager.load_state_dict(model.state_dict())
    want = eager.training_step(X)

    def work(step: Callable[[Tensor], Tensor]) -> None:
        try:
            start.wait()
            for _ in range(40):
                torch.testing.assert_close(step(X), want)
        except BaseException as error:
            failures.append(error)

    steps = (model.training_step, model.training_step, model.module.training_step)
    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    before = model._compiler.runs
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert model._compiler.runs - before == 80 and last_run_report(model)["captures"] == 1


def test_generators_and_coroutines_run_in_eager() -> None:
    """They run in parts, between which other code of the thread runs."""

    def step(model: Any) -> Any:
        steps = model.each(torch.stack([X, X + 1]))
        found = [next(steps), steps.send(X), next(steps), asyncio.run(model.later(X))]
        with pytest.raises(StopIteration, match="done"):
            next(steps)
        sum(value.sum() for value in found).backward()
        return found

    as_in_eager(Net(), step)
    model = ORTModule(Net(), QUIET)
    assert _runs(model, lambda: step(model)) == 0
    assert inspect.isgeneratorfunction(model.each) and inspect.iscoroutinefunction(model.later)


def test_what_is_no_method_of_the_users(model: ORTModule) -> None:
    module: Any = model.module
    assert model.bound == "property" and model.static is Net.static
    assert model.made == module.made and model.made() is Net
    module.step = lambda x: x
    assert model.step is module.step
    assert model.layer.doubled == module.layer.doubled


def test_it_looks_like_a_method(model: ORTModule) -> None:
    step: Any = model.training_step
    assert isinstance(step, types.MethodType) and step.__self__ is model.module
    assert step == model.training_step and step.__doc__ == Net.training_step.__doc__
    assert inspect.signature(step) == inspect.signature(model.module.training_step)
    assert step.__name__ == "training_step" and step.__func__.__wrapped__ is Net.training_step
    model.module.extra = types.MethodType(lambda self, x: self(x).sum(), model.module)
    assert _runs(model, lambda: model.extra(X)) == 1


def test_copies(model: ORTModule) -> None:
    """Of the wrapper, of a method, and of the original while a method runs."""
    torch._dynamo.reset()
    result, *copies = model.copied(X)
    for made in copies:
        assert made._compiled_call_impl is None and made(X).sum() == model.module(X).sum()
        assert inspect.ismethod(made.forward) and made.forward.__self__ is made
        assert _runs(model, lambda made=made: made.training_step(X)) == 0
        torch.testing.assert_close(ORTModule(made, QUIET).training_step(X) / 6, result)
    other = copy.deepcopy(model)
    assert _runs(other, lambda: other.training_step(X)) == 1
    assert _runs(model, lambda: pickle.loads(pickle.dumps(model)).training_step(X)) == 0
    torch.testing.assert_close(copy.deepcopy(model.training_step)(X), model.training_step(X))


def test_an_own_call_stays_eager() -> None:
    class Called(Net):
        def __call__(self, x: Tensor) -> Any:
            return super().__call__(x * 2)

    assert "pieces_run" in as_in_eager(Called(), lambda m: [m.both(X), m(X), m.by_forward(X)])


class Agent(nn.Module):
    """Has methods over its networks, and no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        self.heads = nn.ModuleList([nn.Linear(4, 2)])

    def get_value(self, x: Tensor) -> Tensor:
        y: Tensor = self.critic(x)
        return y

    def get_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.heads[0](x), self.critic(x).detach()

    def loss(self, value: Tensor, *, target: Tensor) -> Tensor:
        return (value - target).square().mean()


def test_methods_that_call_submodules_run_in_eager() -> None:
    def step(agent: Any) -> Any:
        value, (action, _detached) = agent.get_value(X), agent.get_both(X)
        loss = agent.loss(value, target=X) + action.sum()
        loss.backward()
        return loss

    report = as_in_eager(Agent(), step)
    assert report["captures"] == 0 and not report["eager_pieces"]


@pytest.mark.parametrize("around", [False, True])
def test_wrapped_submodules_run_on_the_engine(around: bool) -> None:
    def step(agent: Any) -> Any:
        agent.get_value(X).sum().backward()
        agent.get_both(X)[0].sum().backward()
        return agent.loss(agent.get_value(X), target=X)

    torch._dynamo.reset()
    module: Any = Agent()
    want, agent = copy.deepcopy(module), ORTModule(module, QUIET) if around else module
    agent.critic = ORTModule(agent.critic, QUIET)
    agent.heads[0] = ORTModule(agent.heads[0], QUIET)
    assert _runs(agent.critic, lambda: torch.testing.assert_close(step(agent), step(want))) == 3
    assert _runs(agent.heads[0], lambda: agent.get_both(X)) == 1
    for got, parameter in zip(agent.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(got.grad, parameter.grad)
    assert last_run_report(agent.critic)["compiled"]
    assert not around or not last_run_report(agent)["eager_pieces"]


class Trains(Net):
    """Its `train` is no mode but a loop, as in scripts that never leave training."""

    def train(self, x: Any = True, y: Any = None, *, epochs: int = 1) -> Any:  # type: ignore[override]
        if isinstance(x, bool):
            return super().train(x)
        losses = []
        for _ in range(epochs):
            loss = (self(x) - y).square().sum()
            loss.backward()
            losses.append(loss.detach())
        return losses

    def eval(self, x: Tensor | None = None) -> Any:
        super().eval()
        return self if x is None else self(x).argmax(1)


def test_a_train_of_its_own(model: ORTModule) -> None:
    """Gets what it is given, gives what it gives, and calls the engine."""
    y = torch.randn(3, 2)

    def step(model: Any) -> Any:
        assert model.train(False) is model and not model.training
        assert model.train() is model and model.training
        return model.train(X, y, epochs=3), model.eval(X), model.eval() is model

    assert_compiled(as_in_eager(Trains(), step), captures=2)
    own = ORTModule(Trains(), QUIET)
    assert _runs(own, lambda: own.train(x=X, y=y, epochs=3)) == 3
    assert list(inspect.signature(own.train).parameters) == ["x", "y", "epochs"]
    assert model.train(mode=False) is model and not model.module.training
    with pytest.raises(TypeError):
        model.train(X, y)  # type: ignore[call-arg]


def test_within_the_users_own_compilation(model: ORTModule) -> None:
    compiled = torch.compile(model.training_step, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), model.module.training_step(X))


def test_lifetime() -> None:
    model = ORTModule(Net(), QUIET)
    step = model.training_step
    step(X)
    dead = weakref.ref(model), weakref.ref(model.module)
    del model
    assert dead[0]() is not None
    step(X)
    del step
    gc.collect()
    assert [ref() for ref in dead] == [None, None]


class Trained(Layer):
    """Has the methods of a LightningModule, whose Trainer takes no other class."""

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return self(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def test_a_trainer_that_asks_for_the_class_of_the_original_takes_the_wrapper() -> None:
    model: Any = ORTModule(Trained(), QUIET)
    assert isinstance(model, Trained) and issubclass(type(model), ORTModule)
    model.training_step(torch.ones(2, 4), 0).backward()
    model.configure_optimizers().step()
    assert_compiled(last_run_report(model))
    assert isinstance(copy.deepcopy(model), Trained)
    assert isinstance(pickle.loads(pickle.dumps(model)), Trained)
