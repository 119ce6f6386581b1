"""ONNX models of common architectures with random weights, exported from PyTorch.

Nothing is downloaded: configurations of Hugging Face's models, smaller than the published ones, and
plain modules. The exporter is torch's older one, which needs no further package and writes what many
published files have: attention and activations spelled out in standard operators.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Exported:
    """A module, example inputs, and the names of their sizes that change."""

    module: nn.Module
    inputs: dict[str, Tensor]
    dynamic: dict[str, dict[int, str]]


class _FirstResult(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        result: Tensor = self.model(*inputs, return_dict=False)[0]
        return result


def _text(model: nn.Module) -> Exported:
    ids = torch.randint(0, 8000, (1, 128))
    dynamic = {0: "batch", 1: "length"}
    return Exported(
        _FirstResult(model),
        {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        {"input_ids": dynamic, "attention_mask": dynamic},
    )


def _bert() -> Exported:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        vocab_size=8000,
        attn_implementation="eager",
    )
    return _text(BertModel(config))


def _distilbert() -> Exported:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(dim=512, n_layers=4, n_heads=8, hidden_dim=2048, vocab_size=8000)
    return _text(DistilBertModel(config))


class _Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_embd=384, n_layer=6, n_head=6, vocab_size=8000, use_cache=False)
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1])[None]
        result: Tensor = self.model(
            ids, attention_mask=mask, position_ids=positions, return_dict=False
        )[0]
        return result


def _gpt2() -> Exported:
    exported = _text(nn.Identity())
    return Exported(_Gpt2(), exported.inputs, exported.dynamic)


def _vit() -> Exported:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
    )
    return _image(_FirstResult(ViTModel(config)), 224)


def _image(module: nn.Module, size: int) -> Exported:
    return Exported(module, {"image": torch.randn(1, 3, size, size)}, {"image": {0: "batch"}})


def _conv(
    inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    pads = (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, pads, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
    )


class _Residual(nn.Module):
    """Two convolutions of 3 x 3, or a bottleneck of three (He et al. 2016)."""

    def __init__(self, inside: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outside = 4 * width if bottleneck else width
        if bottleneck:
            parts = [_conv(inside, width, 1), _conv(width, width, 3, stride)]
            parts.append(_conv(width, outside, 1))
        else:
            parts = [_conv(inside, width, 3, stride), _conv(width, width, 3)]
        self.parts = nn.ModuleList(parts)
        shrinks = stride != 1 or inside != outside
        self.skip = _conv(inside, outside, 1, stride) if shrinks else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, part in enumerate(self.parts):
            y = part(y) if i == len(self.parts) - 1 else F.relu(part(y))
        return F.relu(y + self.skip(x))


class _ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], bottleneck: bool) -> None:
        super().__init__()
        self.stem = _conv(3, 64, 7, 2)
        layers: list[nn.Module] = []
        inside = 64
        for stage, count in enumerate(blocks):
            for i in range(count):
                width = 64 << stage
                stride = 2 if i == 0 and stage > 0 else 1
                layers.append(_Residual(inside, width, stride, bottleneck))
                inside = 4 * width if bottleneck else width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inside, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(image)), 3, 2, 1)
        result: Tensor = self.head(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))
        return result


class _Inverted(nn.Module):
    """Expand, convolve each channel by itself, project (Sandler et al. 2018)."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inside * expansion
        self.expand = _conv(inside, width, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _conv(width, width, 3, stride, width)
        self.project = _conv(width, outside, 1)
        self.adds = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(F.relu6(self.depthwise(F.relu6(self.expand(x)))))
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """Logits of images, by inverted residuals (Sandler et al. 2018)."""

    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 32, 3, 2)
        layers: list[nn.Module] = []
        inside = 32
        for expansion, outside, count, stride in (*self.STAGES, (6, 160, 3, 2), (6, 320, 1, 1)):
            for i in range(count):
                layers.append(_Inverted(inside, outside, stride if i == 0 else 1, expansion))
                inside = outside
        self.layers = nn.Sequential(*layers)
        self.last = _conv(inside, 1280, 1)
        self.head = nn.Linear(1280, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """``image``: batch, 3, height, width."""
        x = F.relu6(self.last(self.layers(F.relu6(self.stem(image)))))
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class _Unet(nn.Module):
    """Three sizes down and up again, joined at every size, with SiLU."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        inputs = [3, *widths]
        self.down = nn.ModuleList(self._twice(inputs[i], widths[i]) for i in range(3))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(widths[i + 1], widths[i], 2, stride=2) for i in range(2)
        )
        self.join = nn.ModuleList(self._twice(2 * widths[i], widths[i]) for i in range(2))
        self.head = nn.Conv2d(width, 4, 1)

    @staticmethod
    def _twice(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(
            _conv(inside, outside, 3), nn.SiLU(), _conv(outside, outside, 3), nn.SiLU()
        )

    def forward(self, image: Tensor) -> Tensor:
        kept = []
        x = image
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for i in (1, 0):
            x = self.join[i](torch.cat((kept[i], self.up[i](x)), dim=1))
        result: Tensor = self.head(x)
        return result


class _Detector(nn.Module):
    """Boxes at three sizes: features of the small images are enlarged and joined to the larger."""

    def __init__(self, width: int = 32, outputs: int = 24) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.stem = _conv(3, width, 3, 2)
        self.down = nn.ModuleList(_conv(widths[i], widths[i + 1], 3, 2) for i in range(3))
        self.deepen = nn.ModuleList(_Residual(each, each, 1, False) for each in widths[1:])
        self.narrow = nn.ModuleList(_conv(widths[i + 1], widths[i], 1) for i in (1, 2))
        self.join = nn.ModuleList(_conv(2 * widths[i], widths[i], 3) for i in (1, 2))
        self.heads = nn.ModuleList(nn.Conv2d(each, outputs, 1) for each in widths[1:])

    def forward(self, image: Tensor) -> Tensor:
        x = F.silu(self.stem(image))
        sizes = []
        for down, deepen in zip(self.down, self.deepen, strict=True):
            x = deepen(F.silu(down(x)))
            sizes.append(x)
        for i in (1, 0):
            larger = F.interpolate(F.silu(self.narrow[i](sizes[i + 1])), scale_factor=2.0)
            sizes[i] = F.silu(self.join[i](torch.cat((sizes[i], larger), dim=1)))
        boxes = [head(x).flatten(2) for head, x in zip(self.heads, sizes, strict=True)]
        return torch.cat(boxes, dim=2).sigmoid()


class _Tagger(nn.Module):
    """A class for each word, by LSTMs in both directions."""

    def __init__(self, width: int = 256, classes: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8000, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, input_ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(self.embedding(input_ids))[0])
        return result


def _tagger() -> Exported:
    ids = torch.randint(0, 8000, (1, 64))
    return Exported(_Tagger(), {"input_ids": ids}, {"input_ids": {1: "length"}})


class _Llama(nn.Module):
    """Decoder blocks with RMS norms, rotary positions, shared keys and a gated SiLU layer."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 4) -> None:
        super().__init__()
        from benchmarks.more_models import Llama

        self.model = Llama(8000, width, heads, layers)

    def forward(self, input_ids: Tensor) -> Tensor:
        model = self.model
        half = model.head_width // 2
        rates = 10_000 ** -(torch.arange(half) / half)
        angles = torch.arange(input_ids.shape[1])[:, None] * rates
        angles = torch.cat((angles, angles), dim=-1)
        x = model.embedding(input_ids)
        for block in model.blocks:
            x = block(x, angles.cos(), angles.sin())
        result: Tensor = model.head(model.norm(x))
        return result


def _llama() -> Exported:
    ids = torch.randint(0, 8000, (1, 128))
    return Exported(_Llama(), {"input_ids": ids}, {"input_ids": {0: "batch", 1: "length"}})


MODELS: dict[str, Callable[[], Exported]] = {
    "bert": _bert,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "llama": _llama,
    "vit": _vit,
    "resnet18": lambda: _image(_ResNet((2, 2, 2, 2), False), 224),
    "resnet50": lambda: _image(_ResNet((3, 4, 6, 3), True), 224),
    "mobilenet_v2": lambda: _image(MobileNetV2(), 224),
    "unet": lambda: _image(_Unet(), 128),
    "detector": lambda: _image(_Detector(), 256),
    "tagger": _tagger,
}


def _settle_statistics(module: nn.Module) -> None:
    """Batch statistics that differ from 0 and 1, as a trained model has them."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for tensor, low, high in (
                (layer.running_mean, -0.1, 0.1),
                (layer.running_var, 0.5, 1.5),
                (layer.weight, 0.8, 1.2),
                (layer.bias, -0.1, 0.1),
            ):
                if tensor is not None:
                    nn.init.uniform_(tensor, low, high)


def export(name: str, folder: Path) -> Path:
    """Writes the model into `folder`, unless it is there, and returns its path."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    torch.manual_seed(0)
    exported = MODELS[name]()
    module = exported.module.eval()
    _settle_statistics(module)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    options: dict[str, Any] = {"dynamo": False, "opset_version": 17, "output_names": ["output"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(exported.inputs.values()),
            str(path),
            input_names=list(exported.inputs),
            dynamic_axes=exported.dynamic,
            **options,
        )
    return path
