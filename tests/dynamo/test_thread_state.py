"""What a forward enters is left behind an exception, be it in the capture or in an eager piece."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET, Calls


def _state() -> dict[str, Any]:
    autocasts = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    try:
        level = torch._C._enter_dual_level()
        torch._C._exit_dual_level(level=level)
    except RuntimeError:
        level = None
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocasts": autocasts,
        "autocast": torch.is_autocast_enabled("cpu"),
        "attention": torch.nn.attention._cur_sdpa_kernel_backends(),
        "transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "dual level": level,
        "dual level in Python": forward_ad._current_level,
        "hooks on saved tensors": torch._C._autograd._saved_tensors_hooks_is_enabled(),
    }


@pytest.fixture(autouse=True)
def _left_as_it_was() -> Iterator[None]:
    torch._dynamo.reset()
    before = _state()
    yield
    gc.collect()  # what a failed capture left may not change the state when it is freed
    assert _state() == before


def _clamped(self: Any, h: Tensor) -> Tensor:
    """Its second line is refused by the capture: the gradient of `tanh` reads its result."""
    h = h.tanh()
    h.data.clamp_(-0.5, 0.5)
    result: Tensor = self.out(h).float()
    return result


def _within_autocast(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return _clamped(self, self.fc(x))


def _tangents(self: Any, x: Tensor) -> Tensor:
    found: Tensor = torch.func.jvp(
        lambda z: self.fc(z).tanh() + self.out(z).detach_(), (x,), (torch.ones_like(x),)
    )[1]
    return found


def _jacobians(self: Any, x: Tensor) -> Tensor:
    """Dynamo itself fails on it."""

    def inner(z: Tensor) -> Tensor:
        normalized = functional.layer_norm(z * 2, (4,))
        return self.fc(z).tanh() + normalized * self.out(z).softmax(-1)

    found: Tensor = torch.func.vmap(torch.func.jacfwd(inner))(x)
    return found


@pytest.mark.parametrize(
    "forward",
    [
        _within_autocast,
        _tangents,
        _jacobians,
    ],
)
def test_a_capture_that_fails_within_a_region(forward: Callable[..., Tensor]) -> None:
    """A cache of cast weights that outlived the step would give the first loss for ever."""
    torch.manual_seed(0)
    module = Calls(forward, out=nn.Linear(4, 4))
    model = ORTModule(copy.deepcopy(module), QUIET)
    losses = []
    for runner in (module, model):
        optimizer = torch.optim.SGD(runner.parameters(), lr=0.05)
        losses.append([])
        for _ in range(4):
            loss = runner(torch.arange(8.0).reshape(2, 4) / 8).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-2, atol=1e-4)
    assert losses[1][0] > losses[1][-1]
    assert last_run_report(model)["eager_pieces"]


class Embeds(nn.Module):
    """One piece that eager PyTorch runs, and that fails in the midst of a region."""

    def __init__(self, region: Callable[[], Any]) -> None:
        super().__init__()
        self.fc, self.embedding = nn.Linear(4, 4), nn.Embedding(4, 4)
        self.region = region

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        with self.region():
            embedded = self.embedding(indices)
        return functional.rrelu(self.fc(x) + embedded.clone().float(), training=True)


REGIONS: dict[str, Callable[[], Any]] = {
    "gradients": torch.enable_grad,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
}


@pytest.mark.parametrize(
    ("region", "gradients"),
    [
        ("gradients", False),
        ("no gradients", True),
        ("inference", True),
        ("inference", False),
        ("autocast", True),
        ("attention", False),
    ],
)
def test_an_eager_piece_that_fails_within_a_region(region: str, gradients: bool) -> None:
    model = ORTModule(Embeds(REGIONS[region]), QUIET)
    x = torch.ones(2, 4)
    with torch.set_grad_enabled(gradients):
        for indices in ([0, 1], [0, 9], [0, 1]):
            if max(indices) < 4:
                model(x, torch.tensor(indices))
            else:
                with pytest.raises(IndexError):
                    model(x, torch.tensor(indices))
            assert torch.is_grad_enabled() == gradients
            assert not torch.is_autocast_enabled("cpu")
    assert last_run_report(model)["eager_pieces"]


class EmbedsWithin(Embeds):
    """Inference mode in a region without gradients: its end alone would turn them off once more."""

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        with torch.no_grad(), torch.inference_mode():
            embedded = self.embedding(indices)
        return functional.rrelu(self.fc(x) + embedded.clone(), training=True)


def test_regions_within_regions_are_left_in_order() -> None:
    model = ORTModule(EmbedsWithin(torch.no_grad), QUIET)
    x = torch.ones(2, 4)
    model(x, torch.tensor([0, 1]))
    with pytest.raises(IndexError) as raised:
        model(x, torch.tensor([0, 9]))
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    del raised
    assert torch.is_grad_enabled()
