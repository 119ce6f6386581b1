"""Changes in place that autograd does not see: under `no_grad`, or of `.data`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.semantics import as_in_eager, assert_compiled, assert_whole


class Layers(nn.Module):
    """Layers that train and a buffer; `function` is its forward."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.follows = copy.deepcopy(self.fc)
        self.words = nn.Embedding(6, 4, max_norm=0.7)
        self.bag = nn.EmbeddingBag(6, 4, max_norm=1.0, norm_type=1.0)
        self.register_buffer("average", torch.zeros(4, 4))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def _step(model: Any) -> list[Tensor]:
    """Three steps of training, with another number of rows in the last one."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = []
    for rows in (3, 3, 5):
        y = model(torch.linspace(-1, 1, rows * 4).view(rows, 4))
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
        results += [y, *(p.detach().clone() for p in model.parameters())]
    return results


# ---- parameters that train -------------------------------------------------------------------------


def _normalized(self: Any, x: Tensor) -> Tensor:
    """The last layer of a cosine classifier."""
    with torch.no_grad():
        self.out.weight.copy_(functional.normalize(self.out.weight, dim=1))
    y: Tensor = self.out(self.fc(x).tanh())
    return y


def _clipped(self: Any, x: Tensor) -> Tensor:
    """The critic of a Wasserstein GAN."""
    for parameter in self.out.parameters():
        parameter.data.clamp_(-0.2, 0.2)
    y: Tensor = self.out(self.fc(x).tanh())
    return y


def _in_parts(self: Any, x: Tensor) -> Tensor:
    before = self.out.weight.view(-1)[:4]
    with torch.no_grad():
        self.out.weight[0].zero_()
        self.out.weight[:, 1] = self.out.weight.mean(1)
    self.out.bias.data[:2] *= 0.5
    y: Tensor = self.out(self.fc(x).tanh()) * before
    return y


def _followed(self: Any, x: Tensor) -> Tensor:
    """The target of BYOL, whose author forgot `requires_grad_(False)`."""
    with torch.no_grad():
        for own, followed in zip(self.follows.parameters(), self.fc.parameters(), strict=True):
            own.data.mul_(0.9).add_(followed.data, alpha=0.1)
        target = self.follows(x)
    y: Tensor = self.out(self.fc(x).tanh()) - target
    return y


def _in_equal_layers(self: Any, x: Tensor) -> Tensor:
    for layer in (self.fc, self.out, self.follows):
        layer.weight.data.mul_(0.9)
        x = layer(x).tanh()
    return x


def _bounded(self: Any, x: Tensor) -> Tensor:
    """Tables whose rows have a greatest norm; the first one is read twice, and without the bound."""
    index = torch.arange(len(x) * 2).view(-1, 2) % 5
    found = self.words(index).sum(1) * self.words(index[:, 0] + 1)
    y: Tensor = (found + self.bag(index)) @ self.words.weight.T[:, :4] + self.fc(x)
    return y


TRAINED = [_normalized, _clipped, _in_parts, _followed, _in_equal_layers, _bounded]


@pytest.mark.parametrize("level", ["0", "2"])
@pytest.mark.parametrize("forward", TRAINED)
def test_a_parameter_keeps_its_gradient(
    forward: Callable[..., Tensor], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    assert_whole(as_in_eager(Layers(forward), _step), captures=2)


def _saved_before(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x) @ self.out.weight * self.average[0]
    torch._dynamo.graph_break()
    self.out.weight.data.mul_(0.5)
    self.average.data.add_(1)
    y: Tensor = self.out(h)
    return y


def test_what_an_earlier_piece_has_saved_may_be_read() -> None:
    """Autograd does not count changes of `.data`."""
    assert_compiled(as_in_eager(Layers(_saved_before), _step), captures=4)


# ---- values ----------------------------------------------------------------------------------------


def _margins(self: Any, x: Tensor) -> Tensor:
    """The margin of ArcFace, as insightface has it."""
    logits = functional.linear(
        functional.normalize(self.fc(x)), functional.normalize(self.out.weight)
    )
    logits = logits.clamp(-0.99, 0.99)
    target = logits[:, 1]
    with torch.no_grad():
        target_angle = target.arccos() + 0.5
        logits.arccos_()
        logits[:, 1] = target_angle
        logits.cos_()
    return logits * 8 + target[:, None]


def _between_seen_changes(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x) * 1
    h.mul_(2)
    with torch.no_grad():
        h.add_(1)
    h.mul_(3)
    part = h.view(-1)
    with torch.no_grad():
        part.clamp_(-1, 1)
    y: Tensor = self.out(h) * part.sum()
    return y


def _part_of_zeros(self: Any, x: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    with torch.no_grad():
        h.add_(1)
    h[:, :2] = self.fc(x)[:, :2]
    with torch.no_grad():
        h.mul_(0.5)
    y: Tensor = self.out(h)
    return y


@pytest.mark.parametrize("level", ["0", "2"])
@pytest.mark.parametrize("forward", [_margins, _between_seen_changes, _part_of_zeros])
def test_a_value_keeps_its_gradient(
    forward: Callable[..., Tensor], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    assert_whole(as_in_eager(Layers(forward), _step), captures=2)


def _behind_a_break(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    torch._dynamo.graph_break()
    with torch.no_grad():
        h.mul_(2)
        size = h.norm()
    h[:, 1] = self.out(h * 1)[:, 0] / size
    y: Tensor = self.out(h)
    return y


def test_a_value_of_an_earlier_piece_keeps_its_gradient() -> None:
    assert_compiled(as_in_eager(Layers(_behind_a_break), _step), captures=4)


def _masked_scores(self: Any, x: Tensor) -> Tensor:
    """The attention of Tacotron 2."""
    h = self.fc(x).tanh()
    scores = (h @ self.out.weight).unsqueeze(0)
    masked = scores.squeeze(0)
    masked.data.masked_fill_(torch.ones(4, 4).triu(2)[:1].bool(), -float("inf"))
    y: Tensor = masked.softmax(-1) @ h.t() + scores.clamp(min=-1).sum(0)[:, :1]
    return y


def _clipped_values(self: Any, x: Tensor) -> Tensor:
    """Straight-through clipping: the gradient is that of the value."""
    h = self.out(self.fc(x).tanh())
    h.data.clamp_(-0.1, 0.1)
    return h * h + (h + 1).tanh()


@pytest.mark.parametrize("forward", [_masked_scores, _clipped_values])
def test_data_of_values_that_no_backward_has_read(forward: Callable[..., Tensor]) -> None:
    assert_whole(as_in_eager(Layers(forward), _step), captures=2)


def _read_before(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    y = h.tanh() * h
    h.data.mul_(0.5)
    z: Tensor = self.out(y) + h
    return z


# ---- buffers ---------------------------------------------------------------------------------------


def _codes(self: Any, x: Tensor) -> Tensor:
    """Moving averages of a codebook, as ports of Sonnet's VQ-VAE have it: of values that train."""
    h = self.fc(x).tanh()
    self.average.data.mul_(0.9).add_(h.t() @ h, alpha=0.1)
    y: Tensor = self.out(h @ self.average)
    return y


def _copied(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x).tanh()
    self.average.detach().copy_(h.t() @ h)
    y: Tensor = self.out(h @ self.average)
    return y


@pytest.mark.parametrize("forward", [_codes, _copied])
def test_a_buffer_gets_no_gradient(forward: Callable[..., Tensor]) -> None:
    assert_whole(as_in_eager(Layers(forward), _step), captures=2)


# ---- what stays ------------------------------------------------------------------------------------


def _behind_its_use(self: Any, x: Tensor) -> Tensor:
    """Backward reads the new data in eager PyTorch."""
    y: Tensor = self.out(self.fc(x).tanh())
    self.out.weight.data.clamp_(-0.1, 0.1)
    return y


def _data_of_a_value(self: Any, x: Tensor) -> Tensor:
    """The gradient of `tanh` reads its result: the new data in eager PyTorch."""
    h = self.fc(x).tanh()
    h.data.mul_(2)
    y: Tensor = self.out(h)
    return y


def _read_with_its_gradient(self: Any, x: Tensor) -> Tensor:
    """The changed `.data` has a gradient in eager PyTorch, the buffer has none."""
    h = self.fc(x).tanh()
    data = self.average.data
    data.add_(h.t() @ h)
    y: Tensor = self.out(h) + data.sum()
    return y


def _by_a_gradient(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x).tanh()
    self.out.weight.data.add_(h.t() @ h * 0.01)
    y: Tensor = self.out(h)
    return y


LEFT = [_behind_its_use, _data_of_a_value, _read_before, _read_with_its_gradient, _by_a_gradient]


@pytest.mark.parametrize("forward", LEFT)
def test_what_backward_would_see_is_left_to_eager(forward: Callable[..., Tensor]) -> None:
    assert not as_in_eager(Layers(forward), _step)["compiled"]
