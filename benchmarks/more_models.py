"""Further models for memory plans: a decoder as in Llama, a U-Net, and a ConvNet with dense joins."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """x over its root mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """As in Llama: no mean is taken off."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class LlamaBlock(nn.Module):
    """Attention with rotary positions and fewer key heads, then a gated MLP."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        head = width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, key_heads * head, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    @staticmethod
    def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer on `[batch, length, width]`."""
        batch, length, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = (
            f(y).view(batch, length, self.key_heads, -1).transpose(1, 2) for f in (self.k, self.v)
        )
        q, k = self._turned(q, cos, sin), self._turned(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.key_heads, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder without biases and dropout."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, heads // 2) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head_width = width // heads

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the next token."""
        half = self.head_width // 2
        rates = 10_000 ** -(torch.arange(half, device=idx.device) / half)
        angles = torch.arange(idx.shape[1], device=idx.device)[:, None] * rates
        angles = torch.cat((angles, angles), dim=-1)
        x = self.embedding(idx)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _twice(inside: int, outside: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inside, outside):
        layers += [nn.Conv2d(width, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside)]
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Unet(nn.Module):
    """Three sizes down and up again, joined at every size."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        inputs = [3, *widths]
        self.down = nn.ModuleList(_twice(inputs[i], widths[i]) for i in range(3))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(widths[i + 1], widths[i], 2, stride=2) for i in range(2)
        )
        self.join = nn.ModuleList(_twice(2 * widths[i], widths[i]) for i in range(2))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of every pixel, all of which have the image's class."""
        kept = []
        x = images
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for i in (1, 0):
            x = self.join[i](torch.cat((kept[i], self.up[i](x)), dim=1))
        scores = self.head(x)
        target = labels[:, None, None].expand(-1, *scores.shape[2:])
        return F.cross_entropy(scores, target)


class DenseNet(nn.Module):
    """Every layer sees the features of all layers before it."""

    def __init__(self, growth: int, layers: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(growth * (2 + i)),
                nn.ReLU(),
                nn.Conv2d(growth * (2 + i), growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )
        self.head = nn.Linear(growth * (2 + layers), classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the image's class."""
        x = self.stem(images)
        for layer in self.layers:
            x = torch.cat((x, layer(x)), dim=1)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)
