"""Results of operators that run through torch's dispatcher and are views of their operands: what
backward reads of them must not lie in memory that the plan has given to something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import ORTModule


class Scaled(nn.Module):
    """``compute`` of the product of ``x`` with a parameter, and of the other arguments."""

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.compute = compute

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        """The result of ``compute``."""
        return self.compute(x * self.scale, *others)


def _bits(x: Tensor) -> Tensor:
    return x.detach().view(torch.int32).view(torch.float32) * x.sin()


def _pairs(x: Tensor) -> Tensor:
    # Of 2 * (n // 2) rows: the same number, but not by what the sizes' expressions say.
    pairs = x.view(x.shape[0] // 2, 2, *x.shape[1:]).mean(1).repeat_interleave(2, 0)
    return x * pairs.sin().expand_as(x)


def _check(compute: Callable[..., Tensor], batches: list[list[Tensor]]) -> None:
    eager = Scaled(compute)
    ours = ORTModule(Scaled(compute))
    for batch in batches:
        results = []
        for model in (eager, ours):
            leaves = [x.clone().requires_grad_() for x in batch]
            y = model(*leaves)
            # What lies in memory that was given back is no longer right.
            junk = [torch.full((size,), 1e20) for size in range(8, 40_000, 997)]
            del junk
            gradients = torch.autograd.grad(y.square().sum(), [*model.parameters(), *leaves])
            results.append([y, *gradients])
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_a_bit_cast_is_kept_for_backward() -> None:
    _check(_bits, [[torch.randn(4, 6)], [torch.randn(4, 6)]])


@pytest.mark.parametrize("rows", [4, 64])
def test_an_expansion_to_the_same_size_is_kept_for_backward(rows: int) -> None:
    _check(_pairs, [[torch.randn(n, 33, 16)] for n in (rows, 2 * rows, rows, rows)])


def test_attention_whose_keys_and_values_have_other_numbers_of_heads() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    batches = [
        [torch.randn(2, heads, 33, 16) for heads in (8 - 4 * (i % 2), 1, 2)] for i in range(20)
    ]
    _check(attend, batches)
