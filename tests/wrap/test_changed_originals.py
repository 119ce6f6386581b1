"""What changes the original through the wrapper: containers that are edited, parametrizations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET


class Holder(nn.Module):
    """A module around a wrapper, which loads its state."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part


def _layers() -> list[nn.Module]:
    return [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)]


def _delete(part: Any) -> None:
    del part[1]


def _add(part: Any) -> None:
    part += nn.Sequential(*_layers())


EDITS: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], object]]] = {
    "del of Sequential": (lambda: nn.Sequential(*_layers()), _delete),
    "insert": (lambda: nn.Sequential(*_layers()), lambda part: part.insert(0, nn.Linear(4, 4))),
    "append": (lambda: nn.Sequential(*_layers()), lambda part: part.append(nn.Linear(4, 4))),
    "extend": (lambda: nn.Sequential(*_layers()), lambda part: part.extend(_layers())),
    "+= of Sequential": (lambda: nn.Sequential(*_layers()), _add),
    "del of ModuleList": (lambda: nn.ModuleList(_layers()), _delete),
    "+= of ModuleList": (lambda: nn.ModuleList(_layers()), _add),
    "pop of ModuleDict": (
        lambda: nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}),
        lambda part: part.pop("a"),
    ),
    "append to ParameterList": (
        lambda: nn.ParameterList([torch.ones(4), torch.ones(4)]),
        lambda part: part.append(torch.ones(4)),
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_module_around_an_edited_container_loads_its_state(edit: str) -> None:
    make, change = EDITS[edit]
    plain = Holder(make())
    outer = Holder(ORTModule(copy.deepcopy(plain.part), QUIET))
    for holder in (plain, outer):
        change(holder.part)
    state = {name: torch.randn_like(value) for name, value in plain.state_dict().items()}
    assert list(outer.state_dict()) == list(state)
    outer.load_state_dict(state)
    for name, value in outer.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_containers() -> None:
    layers = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    model = ORTModule(layers, QUIET)
    assert model[0] is layers[0] and len(model) == 2 and model[-1] is layers[1]
    assert list(model) == list(layers) and bool(model)
    single = ORTModule(nn.Linear(2, 2), QUIET)
    assert bool(single)
    with pytest.raises(TypeError):
        len(single)


def test_containers_change() -> None:
    """Layers are put in, taken out and added as people inject adapters, and the next call runs them."""
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), QUIET)
    x = torch.randn(3, 4)
    model(x)
    model[0] = nn.Sequential(model[0], nn.Linear(4, 4))
    torch.testing.assert_close(model(x), model.module(x))
    del model[1]
    same = model
    model += nn.Sequential(nn.Linear(2, 5))
    assert model is same and len(model) == 3
    torch.testing.assert_close(model(x), model.module(x))
    assert model(x).shape == (3, 5)
    named = ORTModule(nn.ModuleDict({"a": nn.Linear(2, 2)}), QUIET)
    named["b"] = nn.Linear(2, 2)
    assert list(named.module) == ["a", "b"]
    with pytest.raises(TypeError, match="item assignment"):
        ORTModule(nn.Linear(2, 2), QUIET)[0] = nn.ReLU()


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


@pytest.mark.parametrize("called_before", [False, True])
def test_parametrizations_of_the_wrapper_are_the_original_s(called_before: bool) -> None:
    plain = nn.Linear(4, 4)
    model = ORTModule(copy.deepcopy(plain), QUIET)
    x = torch.randn(2, 4)
    if called_before:
        model(x)
    for module in (plain, model):
        parametrize.register_parametrization(module, "weight", Symmetric())
        parametrize.register_parametrization(module, "bias", nn.Tanh())
    assert list(model.state_dict()) == list(plain.state_dict())
    assert parametrize.is_parametrized(model, "weight") and isinstance(model, ORTModule)
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied(x), plain(x))
    for module in (plain, model):
        module(x).square().sum().backward()
    for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, msg=name)
    assert last_run_report(model)["compiled"]

    want = model(x)
    for name in ("weight", "bias"):
        parametrize.remove_parametrizations(model, name)
    assert list(model.state_dict()) == ["weight", "bias"] and type(model.module) is nn.Linear
    assert model.__class__ is type(model) and issubclass(type(model), ORTModule)
    torch.testing.assert_close(model(x), want)


def test_a_parametrized_original_gets_another_parametrization() -> None:
    model = ORTModule(parametrizations.weight_norm(nn.Linear(4, 4)), QUIET)
    parametrize.register_parametrization(model, "bias", nn.Tanh())
    x = torch.randn(2, 4)
    torch.testing.assert_close(model(x), model.module(x))
    parametrize.remove_parametrizations(model, "weight")
    torch.testing.assert_close(model(x), model.module(x))
    assert {"weight", "parametrizations.bias.original"} == set(model.state_dict())


def test_another_change_of_its_class_is_refused() -> None:
    model = ORTModule(nn.Linear(4, 4), QUIET)
    mixed = type("Mixed", (Holder, type(model)), {})
    with pytest.raises(TypeError, match="set to Mixed; do this to the original module"):
        model.__class__ = mixed
    assert type(model.module) is nn.Linear and model.__class__ is type(model)


def test_fully_shard_of_the_wrapper_shards_the_original(tmp_path: Path) -> None:
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model, other = (ORTModule(nn.Linear(4, 4), QUIET) for _ in range(2))
    names = list(model.state_dict())
    meeting = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        assert fully_shard(model) is model
        fully_shard(other)
        assert isinstance(model, FSDPModule) and isinstance(model.module, FSDPModule)
        assert type(model.module) is type(other.module), "Dynamo guards on it"
        assert list(model.state_dict()) == names
        with pytest.raises(AssertionError, match="already been applied"):
            fully_shard(model.module)
        x = torch.randn(2, 4)
        # The hooks are the original's, so that it gathers its parameters alone, too.
        torch.testing.assert_close(model(x), model.module(x))
        model(x).sum().backward()
        report = last_run_report(model)
        assert report["compiled"] and report["training"]["parameter_share"] == 1.0
        assert [unit["name"] for unit in report["sharding"]["units"]] == [""]
        assert model.weight.grad is not None
    finally:
        dist.destroy_process_group()
