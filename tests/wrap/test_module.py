"""The wrapper's face: keys, attributes, modes, what is reported and what goes wrong."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.note = "kept"

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).relu()


class Printing(nn.Module):
    """Dynamo must break the graph at the call that it may not trace."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        torch._dynamo.graph_break()
        return self.b(x)


def test_state_dict_and_attributes_are_the_originals() -> None:
    original = Net()
    model = ORTModule(original)
    assert list(model.state_dict()) == list(original.state_dict())
    assert model.module is original and model.note == "kept"
    model.note = "changed"
    assert original.note == "changed"
    assert [p is q for p, q in zip(model.parameters(), original.parameters(), strict=True)]
    model.load_state_dict(Net().state_dict())
    model.eval()
    assert not original.training and not model.training


def test_copies_and_pickles() -> None:
    model = ORTModule(Net())
    x = torch.randn(3, 8)
    want = model(x)
    torch.testing.assert_close(copy.deepcopy(model)(x), want)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), want)


class _Named(ORTModule):
    def name(self) -> str:
        return "mine"


def test_copies_of_a_subclass() -> None:
    model = _Named(nn.Linear(3, 2))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(twin, _Named) and twin.name() == "mine"
        x = torch.randn(4, 3)
        assert torch.equal(twin(x), model(x))
        assert twin.weight is not model.weight


def test_eval_and_no_grad() -> None:
    model = ORTModule(Net())
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert not model(x).requires_grad
    model.eval()
    assert model(x).requires_grad
    torch.testing.assert_close(model(x), model.module(x))


def test_graph_breaks_are_counted_with_their_line() -> None:
    model = ORTModule(Printing())
    model(torch.randn(2, 4)).sum().backward()
    report = last_run_report(model)
    assert len(report["graph_breaks"]) == 1 and "test_module.py" in report["graph_breaks"][0]
    assert report["compiled"] and report["captures"] == 2


def test_fullgraph_makes_a_break_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FULLGRAPH", "1")
    with pytest.raises(Exception, match=r"graph_break|Graph break"):
        ORTModule(Printing())(torch.randn(2, 4))


def test_bypass_runs_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_BYPASS", "1")
    model = ORTModule(Net())
    model(torch.randn(3, 8)).sum().backward()
    assert last_run_report(model)["captures"] == 0


def test_batched_backward_is_a_clear_error() -> None:
    model = ORTModule(nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="one backward at a time"):
        torch.autograd.functional.jacobian(model, torch.randn(4, 3), vectorize=True)


def test_change_of_a_saved_input_between_forward_and_backward() -> None:
    model = ORTModule(Net())
    x = torch.randn(3, 8)
    loss = model(x).sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_backend_alone() -> None:
    net = Net()
    x = torch.randn(3, 8)
    compiled = torch.compile(net, backend="ortmodule")
    torch.testing.assert_close(compiled(x), net(x))


@pytest.mark.parametrize("bad", [3, None])
def test_no_module_is_an_error(bad: object) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ORTModule(bad)  # type: ignore[arg-type]


def test_backward_may_outlive_the_module() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    model = ORTModule(Net())
    loss = model(x).sum()
    del model
    torch._dynamo.reset()
    gc.collect()
    loss.backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_of_16_bit_values(affine: bool) -> None:
    """Its statistics are 16-bit as well unless something per channel is wider."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)
            self.norm = nn.InstanceNorm2d(3, affine=affine)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.fc(x))

    torch.manual_seed(0)
    module = Normed()
    model = ORTModule(copy.deepcopy(module))
    x = torch.randn(2, 3, 4, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, eager = model(x), module(x)
    torch.testing.assert_close(ours, eager, rtol=2e-2, atol=2e-2)
    ours.float().square().sum().backward()
    assert last_run_report(model)["compiled"]
    assert all(p.grad is not None for p in model.parameters())
