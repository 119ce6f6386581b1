"""Contexts that choose the kernels of attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.semantics import Calls, as_in_eager, assert_whole

CHOICES: dict[str, Any] = {
    "named": lambda: torch.backends.cuda.sdp_kernel(enable_flash=False, enable_math=True),
    "by position": lambda: torch.backends.cuda.sdp_kernel(True, True, False),
    "of torch.nn": lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]),
}


@pytest.mark.filterwarnings("ignore:.*sdp_kernel:FutureWarning")
@pytest.mark.parametrize("choice", CHOICES)
def test_attention_in_a_context_that_chooses_kernels(choice: str) -> None:
    def attended(self: Any, x: Tensor) -> Tensor:
        q = self.fc(x)
        with CHOICES[choice]():
            y = F.scaled_dot_product_attention(q, q, x, is_causal=True)
        return y + x

    def step(model: Any) -> list[Tensor]:
        results = [model(torch.randn(rows, 2, 5, 4)) for rows in (2, 3, 4)]
        sum(result.square().sum() for result in results).backward()
        return results

    assert_whole(as_in_eager(Calls(attended), step))
