"""What a wrapper has beside its original: hooks and a replaced forward; trainers replace it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from tests.semantics import QUIET

_called: list[str] = []


def _before(module: nn.Module, args: Any) -> None:
    _called.append("before")


def _after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
    _called.append("after")
    return result * 2


def _backward(module: nn.Module, inputs: Any, outputs: Any) -> None:
    _called.append("backward")


def _saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), _saved]


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle", "save"])
def test_copies_keep_hooks(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = ORTModule(nn.Linear(4, 2), QUIET)
    model.register_forward_pre_hook(_before)
    model.register_forward_hook(_after, with_kwargs=True)
    model.register_full_backward_hook(_backward)
    twin = copied(model)
    x = torch.ones(3, 4)
    _called.clear()
    result = twin(x)
    result.sum().backward()
    assert _called == ["before", "after", "backward"]
    torch.testing.assert_close(result, 2 * model.module(x))


def _twice(self: Any, x: Tensor) -> Tensor:
    result: Tensor = 2 * self.module(x)
    return result


def test_forward_may_be_replaced() -> None:
    """As Accelerate does, which puts a function around it."""
    model = ORTModule(nn.Linear(4, 4), QUIET)
    x, before = torch.ones(3, 4), model.forward
    model.forward = MethodType(lambda self, x: before(x) + 1, model)
    torch.testing.assert_close(model(x), model.module(x) + 1)


def test_copies_keep_a_replaced_forward() -> None:
    model = ORTModule(nn.Linear(4, 2), QUIET)
    model.forward = MethodType(_twice, model)
    twin = copy.deepcopy(model)
    x = torch.ones(3, 4)
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.fill_(1)
        assert torch.equal(twin(x), torch.full((3, 2), 2.0))
        torch.testing.assert_close(model(x), 2 * model.module(x))


def test_an_averaged_model_keeps_hooks() -> None:
    model = ORTModule(nn.Linear(4, 2), QUIET)
    model.register_forward_pre_hook(_before)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    _called.clear()
    averaged(torch.ones(3, 4))
    assert _called == ["before"]


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle", "save"])
def test_its_forward_may_be_put_aside(copied: Callable[[nn.Module], Any]) -> None:
    """As trainers do that wrap it and put it back later."""
    model = ORTModule(nn.Linear(4, 2), QUIET)
    model._original_forward = model.forward
    assert "_original_forward" in model.__dict__ and not hasattr(model.module, "_original_forward")
    twin = copied(model)
    x = torch.ones(3, 4)
    assert torch.equal(twin._original_forward(x), twin(x))
    with torch.no_grad():
        twin.weight.zero_()
    assert not torch.equal(twin._original_forward(x), model._original_forward(x))
    model.forward = MethodType(model.forward.__func__, model)
    assert torch.equal(model(x), model.module(x))
    del model._original_forward
    assert not hasattr(model, "_original_forward")


def test_accelerate_gives_the_forward_back() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = ORTModule(nn.Linear(4, 2), QUIET)
    # Another test of this process may have chosen a precision.
    accelerate.state.AcceleratorState._reset_state(True)
    trainer = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    try:
        prepared = trainer.prepare(model)
        x = torch.ones(3, 4)
        with torch.no_grad():
            seen = prepared.module.register_forward_hook(
                lambda *given: _called.append(str(given[2].dtype))
            )
            _called.clear()
            assert prepared(x).dtype == torch.float32 and _called == ["torch.bfloat16"]
            seen.remove()
            plain = trainer.unwrap_model(prepared, keep_fp32_wrapper=False)
            assert "_original_forward" not in plain.__dict__
            torch.testing.assert_close(plain(x), model.module(x))
            torch.testing.assert_close(_saved(plain)(x), model.module(x))
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
