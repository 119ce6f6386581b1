"""What FusedAdam is compared with: torch's optimizers, and Hugging Face's AdamW from its formula."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

SHAPES = ((1,), (3,), (64,), (17, 5), (0,), (33, 65), (2, 3, 4, 5), (1009,), (128, 64), ())


class TransformersAdamW(torch.optim.Optimizer):
    """AdamW as Transformers 4 had it: decay after the update, epsilon beside the raw root."""

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                rate = group["lr"]
                if group["correct_bias"]:
                    rate *= math.sqrt(1 - beta2 ** state["t"]) / (1 - beta1 ** state["t"])
                p.addcdiv_(state["m"], state["v"].sqrt().add_(group["eps"]), value=-rate)
                p.add_(p, alpha=-group["lr"] * group["weight_decay"])


def make_params(
    dtype: torch.dtype = torch.float32, shapes: Any = SHAPES, seed: int = 0
) -> list[Tensor]:
    """Parameters with the same values at every call."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in shapes
    ]


def set_grads(step: int, *lists: list[Tensor]) -> None:
    """Gives every list of parameters the same gradients, of another size at every step."""
    generator = torch.Generator().manual_seed(1000 + step)
    scale = 10.0 ** (step % 5 - 3)
    for params in zip(*lists, strict=True):
        grad = torch.randn(params[0].shape, generator=generator, dtype=torch.float64) * scale
        for param in params:
            param.grad = grad.to(param.dtype)


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference of elements, relative to the largest element."""
    a = torch.cat([p.detach().double().flatten() for p in ours])
    b = torch.cat([p.detach().double().flatten() for p in theirs])
    return float((a - b).abs().max() / b.abs().max())
