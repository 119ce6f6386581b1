"""Blocks of libraries that are not installed here, as those libraries write them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LoraLinear(nn.Module):
    """As peft writes it: a frozen layer and a trained product of two small ones."""

    def __init__(self, dora: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.lora_a = nn.ModuleDict({"default": nn.Linear(4, 2, bias=False)})
        self.lora_b = nn.ModuleDict({"default": nn.Linear(2, 4, bias=False)})
        self.magnitude = nn.Parameter(torch.ones(4)) if dora else None
        self.active = ["default"]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x)
        for name in self.active:
            a, b = self.lora_a[name], self.lora_b[name]
            if self.magnitude is None:
                result = result + b(F.dropout(a(x.to(a.weight.dtype)), 0.0)) * 0.5
                continue
            weight = self.base.weight
            if type(weight).__module__.startswith("bitsandbytes"):
                raise NotImplementedError  # a branch of the library that Dynamo has to fold away
            both = weight + 0.5 * (b.weight @ a.weight).detach()
            norm = torch.linalg.norm(both, dim=1).to(weight.dtype).detach()
            scale = (self.magnitude / norm).view(1, -1)
            result = result + (scale - 1) * F.linear(x, weight) + scale * b(a(x)) * 0.5
        return result


class LohaLinear(nn.Module):
    """As peft writes it, within its context: products of small matrices, dropped as a whole, and a check of them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.w1, self.w2 = (
            nn.ParameterList([torch.rand(4, 2), torch.rand(2, 4)]) for _ in range(2)
        )
        self.module_dropout = {"default": 0.0}

    @contextlib.contextmanager
    def _hooks(self) -> Iterator[None]:
        yield
        return

    def forward(self, x: Tensor) -> Tensor:
        with self._hooks():
            result: Tensor = self.base(x)
            for name in ("default", "other"):
                if name not in self.module_dropout:
                    continue
                if self.training and self.w1[0][0, 0].isinf().any():
                    raise RuntimeError("resumed from a file that lacks values")
                dropout = self.module_dropout[name]
                if (not self.training) or (self.training and torch.rand(1) > dropout):
                    delta = (self.w1[0] @ self.w1[1]) * (self.w2[0] @ self.w2[1])
                    result = result + F.linear(x, delta)
        return result


class Lit(nn.Module):
    """A LightningModule: its own methods call it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).tanh()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return self(batch).sum()


class UNetBlock(nn.Module):
    """The parts of a UNet of diffusers: time embedding, group norm, attention, down and up."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(8, 8)
        self.norm, self.conv = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.down, self.up = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(4, device=x.device) * -math.log(1e4) / 4)
        angles = t[:, None].float() * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        h = self.conv(F.silu(self.norm(x))) + time[:, :, None, None]
        low = self.down(h)
        flat = low.flatten(2).transpose(1, 2)
        q, k, v = (part.unsqueeze(1) for part in self.qkv(flat).chunk(3, -1))
        flat = flat + self.out(F.scaled_dot_product_attention(q, k, v).squeeze(1))
        low = flat.transpose(1, 2).reshape(low.shape)
        return self.up(torch.cat([h, F.interpolate(low, scale_factor=2.0, mode="nearest")], 1))


class Convolution(nn.Module):
    """A GCNConv of torch_geometric, with the number of edges as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        degree = torch.zeros(x.shape[0]).scatter_add_(0, target, torch.ones(target.shape[0]))
        scale = degree.clamp(min=1).rsqrt()
        messages = self.lin(x)[source] * (scale[source] * scale[target])[:, None]
        return torch.zeros_like(x).index_add_(0, target, messages).relu()


@torch.library.custom_op("ortmodule_docs::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    """A custom operator."""
    return x * 3


tripled.register_fake(torch.empty_like)
tripled.register_autograd(lambda ctx, gradient: gradient * 3)


@torch.library.custom_op("ortmodule_docs::count", mutates_args=("counter",))
def count(counter: Tensor) -> None:
    """A custom operator that changes its argument."""
    counter.add_(1)
