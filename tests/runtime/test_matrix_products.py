"""Products of matrices large enough to be blocked for the caches."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from ortmodule_py.nn import LinearCrossEntropy


class Layers(nn.Module):
    """A bias or none, weights both ways round, and a factor that is folded into the product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(900, 1057)
        self.second = nn.Linear(1057, 920, bias=False)
        self.third = nn.Parameter(torch.randn(920, 1330) * 0.03)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(torch.tanh(self.first(x)))
        return (hidden @ self.third) * 0.37


def _gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = module(x)
    y.backward(torch.ones_like(y).tril())
    gradients = [p.grad for p in module.parameters()]
    return [t for t in (y.detach(), x.grad, *gradients) if t is not None]


def _assert_near(got: list[Tensor], want: list[Tensor]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b).abs().max() <= 2e-5 * b.abs().max()


ROWS = (64, 1024, 1100, 2305)


@pytest.mark.slow
def test_products_of_blocks_and_rests_and_the_same_bits_again() -> None:
    torch.manual_seed(0)
    module = Layers()
    model, wide = ORTModule(copy.deepcopy(module)), copy.deepcopy(module).double()
    before = torch.get_num_threads()
    try:
        for rows in ROWS:
            x = torch.randn(rows, 900)
            wide.zero_grad()
            want, results = _gradients(wide, x.double()), []
            for threads in (1, 2, 2):
                torch.set_num_threads(threads)
                model.zero_grad()
                results.append(_gradients(model, x))
            for got in results:
                _assert_near(got, want)
            for a, b in zip(*results[1:], strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


def test_a_large_loss_head() -> None:
    torch.manual_seed(0)
    head = LinearCrossEntropy(256, 3001)
    x, target = torch.randn(700, 256), torch.randint(3001, (700,))
    got = []
    for module, dtype in ((ORTModule(copy.deepcopy(head)), torch.float32), (head, torch.float64)):
        given = x.to(dtype, copy=True).requires_grad_()
        loss = module.to(dtype)(given, target)
        loss.backward()
        got.append([loss.detach(), given.grad, *(p.grad for p in module.parameters())])
    _assert_near(got[0], got[1])
