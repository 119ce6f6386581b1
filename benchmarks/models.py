"""The benchmark models: plain torch modules that return their own loss.

``make(name)`` gives a module, a function that makes a batch, and the classes that count as one
block for per-block checkpointing. Nothing here knows of ORTModule.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.more_models import DenseNet, Llama, LlamaBlock, Unet
from benchmarks.onnx_models import MobileNetV2
from benchmarks.text_models import T5, Bert, BertBlock, DecoderBlock, EncoderBlock, Gpt, GptBlock
from benchmarks.vision_models import (
    BasicBlock,
    MlpBlock,
    ResNet,
    TinyMlp,
    VisionTransformer,
    VitBlock,
)

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class BenchmarkModel:
    """A module that returns its loss, and what is needed to run it."""

    name: str
    module: nn.Module
    batch: Callable[..., Batch]
    """``batch(batch_size, length=None, seed=0)``: keyword arguments of one forward call."""
    batch_size: int
    block_types: tuple[type[nn.Module], ...]
    lengths: bool = True
    """Whether it takes inputs of other lengths, or images of other sizes."""


def _tokens(vocab: int, batch: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (batch, length), generator=generator)


def _gpt_batch(
    vocab: int, default_length: int, batch_size: int, length: int | None = None, seed: int = 0
) -> Batch:
    tokens = _tokens(vocab, batch_size, (length or default_length) + 1, seed)
    return {"idx": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def _bert_batch(
    vocab: int, default_length: int, batch_size: int, length: int | None = None, seed: int = 0
) -> Batch:
    length = length or default_length
    generator = torch.Generator().manual_seed(seed)
    tokens = _tokens(vocab, batch_size, length, seed)
    lengths = torch.randint(length * 3 // 4, length + 1, (batch_size, 1), generator=generator)
    mask = (torch.arange(length)[None, :] < lengths).long()
    chosen = (torch.rand(batch_size, length, generator=generator) < 0.15) & mask.bool()
    chosen[:, 0] = True
    return {
        "input_ids": tokens.masked_fill(chosen, 1),
        "attention_mask": mask,
        "labels": tokens.masked_fill(~chosen, -100),
    }


def _t5_batch(
    vocab: int, default_length: int, batch_size: int, length: int | None = None, seed: int = 0
) -> Batch:
    length = length or default_length
    mask = torch.ones(batch_size, length, dtype=torch.long)
    mask[1::2, length * 7 // 8 :] = 0
    return {
        "input_ids": _tokens(vocab, batch_size, length, seed),
        "attention_mask": mask,
        "labels": _tokens(vocab, batch_size, length // 2, seed + 1),
    }


def _image_batch(
    size: int, classes: int, batch_size: int, length: int | None = None, seed: int = 0
) -> Batch:
    size = length or size
    generator = torch.Generator().manual_seed(seed)
    return {
        "images": torch.randn(batch_size, 3, size, size, generator=generator),
        "labels": torch.randint(0, classes, (batch_size,), generator=generator),
    }


def _mlp_batch(width: int, batch_size: int, length: int | None = None, seed: int = 0) -> Batch:
    del length
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(batch_size, width, generator=generator),
        "labels": torch.randint(0, 10, (batch_size,), generator=generator),
    }


def _gpt(dropout: float, *, fused: bool, layers: int = 6) -> BenchmarkModel:
    vocab, length = 8192, 256
    module = Gpt(
        vocab=vocab, length=length, width=384, heads=6, layers=layers, dropout=dropout, fused=fused
    )
    batch = functools.partial(_gpt_batch, vocab, length)
    return BenchmarkModel("gpt_fused" if fused else "gpt", module, batch, 2, (GptBlock,))


def _bert(dropout: float, *, layers: int = 6) -> BenchmarkModel:
    vocab, length = 8192, 128
    module = Bert(
        vocab=vocab, length=2 * length, width=384, heads=6, layers=layers, dropout=dropout
    )
    return BenchmarkModel(
        "bert", module, functools.partial(_bert_batch, vocab, length), 4, (BertBlock,)
    )


def _t5(dropout: float, *, layers: int = 4) -> BenchmarkModel:
    vocab, length = 8192, 128
    module = T5(vocab=vocab, width=384, heads=6, layers=layers, dropout=dropout)
    blocks = (EncoderBlock, DecoderBlock)
    return BenchmarkModel("t5", module, functools.partial(_t5_batch, vocab, length), 4, blocks)


def _vit(dropout: float, *, layers: int = 6) -> BenchmarkModel:
    module = VisionTransformer(
        size=32, patch=4, width=384, heads=6, layers=layers, classes=100, dropout=dropout
    )
    batch = functools.partial(_image_batch, 32, 100)
    return BenchmarkModel("vit", module, batch, 8, (VitBlock,), lengths=False)


def _resnet(dropout: float) -> BenchmarkModel:
    del dropout
    module = ResNet(classes=100, widths=(32, 64, 128), blocks_per_stage=3)
    return BenchmarkModel(
        "resnet", module, functools.partial(_image_batch, 32, 100), 32, (BasicBlock,)
    )


def _mlp(dropout: float, *, layers: int = 60) -> BenchmarkModel:
    del dropout
    module = TinyMlp(width=64, layers=layers, classes=10)
    return BenchmarkModel("mlp", module, functools.partial(_mlp_batch, 64), 32, (MlpBlock,))


def _llama(dropout: float, *, layers: int = 6) -> BenchmarkModel:
    del dropout
    vocab, length = 8192, 256
    module = Llama(vocab=vocab, width=384, heads=6, layers=layers)
    batch = functools.partial(_gpt_batch, vocab, length)
    return BenchmarkModel("llama", module, batch, 2, (LlamaBlock,))


def _unet(dropout: float) -> BenchmarkModel:
    del dropout
    module = Unet(width=16, classes=8)
    return BenchmarkModel("unet", module, functools.partial(_image_batch, 64, 8), 8, ())


def _densenet(dropout: float, *, layers: int = 8) -> BenchmarkModel:
    del dropout
    module = DenseNet(growth=16, layers=layers, classes=100)
    return BenchmarkModel("densenet", module, functools.partial(_image_batch, 32, 100), 16, ())


class _Classifier(nn.Module):
    """The cross entropy of a model's logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(images), labels)


def _mobilenet(dropout: float) -> BenchmarkModel:
    del dropout
    batch = functools.partial(_image_batch, 64, 100)
    return BenchmarkModel("mobilenet", _Classifier(MobileNetV2()), batch, 4, ())


_MAKERS: dict[str, tuple[Callable[..., BenchmarkModel], float]] = {
    "gpt": (functools.partial(_gpt, fused=False), 0.1),
    "gpt_fused": (functools.partial(_gpt, fused=True), 0.0),
    "bert": (_bert, 0.1),
    "t5": (_t5, 0.1),
    "vit": (_vit, 0.0),
    "resnet": (_resnet, 0.0),
    "mlp": (_mlp, 0.0),
}

NAMES = tuple(_MAKERS)

# Not among those that every benchmark runs: for memory plans and first steps.
_MORE: dict[str, tuple[Callable[..., BenchmarkModel], float]] = {
    "llama": (_llama, 0.0),
    "unet": (_unet, 0.0),
    "densenet": (_densenet, 0.0),
    "mobilenet": (_mobilenet, 0.0),
}
ALL_NAMES = (*NAMES, *_MORE)


def has_layers(name: str) -> bool:
    """Whether ``make`` takes a number of layers for that model."""
    return "layers" in inspect.signature((_MAKERS | _MORE)[name][0]).parameters


def make(
    name: str, *, dropout: float | None = None, layers: int | None = None, seed: int = 0
) -> BenchmarkModel:
    """Make a model by name, in training mode, with weights drawn from ``seed``.

    ``dropout`` and ``layers`` override the model's own (``resnet`` and ``mlp`` have no dropout).
    """
    if name not in ALL_NAMES:
        raise ValueError(f"unknown model {name!r}; there are {', '.join(ALL_NAMES)}")
    maker, default_dropout = (_MAKERS | _MORE)[name]
    options: dict[str, Any] = {} if layers is None else {"layers": layers}
    torch.manual_seed(seed)
    model = maker(default_dropout if dropout is None else dropout, **options)
    model.module.train()
    return model


def checkpoint_blocks(model: BenchmarkModel) -> None:
    """Wrap every block's forward in ``torch.utils.checkpoint``, as one does by hand."""
    from torch.utils.checkpoint import checkpoint

    for block in model.module.modules():
        if isinstance(block, model.block_types):
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def checkpoint_blocks_selectively(model: BenchmarkModel) -> None:
    """Per-block checkpointing that keeps the results of matrix products, convolutions, attention.

    The usual policy of selective activation checkpointing: what is expensive is kept, what is cheap
    runs again.
    """
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept: list[Any] = [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    ]
    contexts = functools.partial(create_selective_checkpoint_contexts, kept)
    for block in model.module.modules():
        if isinstance(block, model.block_types):
            block.forward = functools.partial(
                checkpoint, block.forward, use_reentrant=False, context_fn=contexts
            )
