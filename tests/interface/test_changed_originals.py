"""What changes the original through the wrapper: containers that are edited."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule_py import ORTModule
from tests.e2e.semantics import QUIET


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
