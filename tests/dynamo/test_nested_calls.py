"""Modules inside of each other, deeper than Python's recursion limit lets Dynamo go."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py.dynamo import nested_calls
from ortmodule_py.dynamo.nested_calls import room_for_nested_calls
from tests.semantics import as_in_eager, assert_whole

LIMIT = 1000
"""Python's default."""


@pytest.fixture
def limit() -> Iterator[int]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(LIMIT)
    yield LIMIT
    sys.setrecursionlimit(before)


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.inner(x))


def nested(depth: int, hooks: bool) -> nn.Module:
    module: nn.Module = nn.Linear(4, 4)
    for _ in range(depth):
        if hooks:
            module.register_forward_hook(lambda module, args, result: result * 0.5)
        module = Around(module)
    return module  # without a hook: Python calls that of the outermost module


@pytest.mark.parametrize(("depth", "hooks"), [(40, False), (15, True)])
def test_deeply_nested_modules(limit: int, depth: int, hooks: bool) -> None:
    def step(model: Any) -> Tensor:
        result: Tensor = model(torch.randn(3, 4, requires_grad=True))
        result.sum().backward()
        return result

    assert_whole(as_in_eager(nested(depth, hooks), step), captures=1)
    assert sys.getrecursionlimit() == limit


def test_room_below_any_depth(limit: int) -> None:
    def at(depth: int) -> int:
        if depth:
            return at(depth - 1)
        with room_for_nested_calls, room_for_nested_calls:
            return sys.getrecursionlimit()

    assert at(500) - at(0) == 500
    assert sys.getrecursionlimit() == limit


def test_a_small_stack_has_less_room(limit: int) -> None:
    before = threading.stack_size(256 * 1024)
    try:
        with room_for_nested_calls:
            assert sys.getrecursionlimit() == limit  # Python's own limit is higher
    finally:
        threading.stack_size(before)
    with room_for_nested_calls:
        assert sys.getrecursionlimit() > nested_calls._ROOM


def test_threads_share_the_limit(limit: int) -> None:
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with room_for_nested_calls:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    with room_for_nested_calls:
        pass
    assert sys.getrecursionlimit() > nested_calls._ROOM  # the other thread still captures
    leave.set()
    thread.join()
    assert sys.getrecursionlimit() == limit
