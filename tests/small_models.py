"""Small versions of the architectures whose layers the memory optimizer has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.more_models import RmsNorm
from benchmarks.text_models import T5, Bert, Gpt
from benchmarks.vision_models import ResNet, TinyMlp, VisionTransformer

Batch = dict[str, Tensor]


class LlamaBlock(nn.Module):
    """RMS norm, rotary positions, attention as one op, a gated MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (
            f(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, *, vocab: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.size = width // heads

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        place = torch.arange(idx.shape[1])[:, None].float()
        angle = place / 10000 ** (torch.arange(0, self.size, 2) / self.size)
        angle = torch.cat((angle, angle), -1)
        x = self.embedding(idx)
        for block in self.blocks:
            x = block(x, angle.cos(), angle.sin())
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class SmallModel:
    """A module, a maker of batches and the layers to be found in it."""

    make: Callable[[int], nn.Module]
    batch: Callable[[int, int], Batch]
    layers: Callable[[int], list[int]]


def _tokens(batch: int, length: int, seed: int, vocab: int = 64) -> Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def _text(batch: int, length: int) -> Batch:
    return {"idx": _tokens(batch, length, 1), "targets": _tokens(batch, length, 2)}


def _masked(batch: int, length: int) -> Batch:
    return {
        "input_ids": _tokens(batch, length, 1),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
        "labels": _tokens(batch, length, 2),
    }


def _images(batch: int, size: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    return {
        "images": torch.randn(batch, 3, size, size, generator=generator),
        "labels": torch.randint(0, 10, (batch,), generator=generator),
    }


def _rows(batch: int, width: int) -> Batch:
    generator = torch.Generator().manual_seed(3)
    return {
        "x": torch.randn(batch, width, generator=generator),
        "labels": torch.randint(0, 10, (batch,), generator=generator),
    }


def _gpt(dropout: float, fused: bool) -> Callable[[int], nn.Module]:
    return lambda layers: Gpt(
        vocab=64, length=64, width=32, heads=2, layers=layers, dropout=dropout, fused=fused
    )


MODELS: dict[str, SmallModel] = {
    "gpt": SmallModel(_gpt(0.1, False), _text, lambda n: [n]),
    "gpt_fused": SmallModel(_gpt(0.0, True), _text, lambda n: [n]),
    "bert": SmallModel(
        lambda n: Bert(vocab=64, length=64, width=32, heads=2, layers=n, dropout=0.1),
        _masked,
        lambda n: [n],
    ),
    "llama": SmallModel(
        lambda n: Llama(vocab=64, width=32, heads=2, layers=n), _text, lambda n: [n]
    ),
    "vit": SmallModel(
        lambda n: VisionTransformer(
            size=32, patch=8, width=32, heads=2, layers=n, classes=10, dropout=0.1
        ),
        lambda batch, _: _images(batch, 32),
        lambda n: [n],
    ),
    "t5": SmallModel(
        lambda n: T5(vocab=64, width=32, heads=2, layers=n // 2, dropout=0.1),
        _masked,
        lambda n: [n // 2, n // 2],
    ),
    "resnet": SmallModel(
        lambda n: ResNet(classes=10, widths=(8, 16, 32), blocks_per_stage=max(n // 4, 2)),
        lambda batch, _: _images(batch, 16),
        lambda n: [3],
    ),
    "mlp": SmallModel(
        lambda n: TinyMlp(width=16, layers=n, classes=10),
        lambda batch, _: _rows(batch, 16),
        lambda n: [n],
    ),
}


def make(name: str, layers: int = 4, batch: int = 2, length: int = 32) -> tuple[nn.Module, Batch]:
    """The model in its initial state, the same at every call, and a batch."""
    torch.manual_seed(0)
    return MODELS[name].make(layers), MODELS[name].batch(batch, length)
