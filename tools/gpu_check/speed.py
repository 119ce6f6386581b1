"""Part `speed`: training steps of large models against eager and torch.compile, in one process.

Times are medians by CUDA events, the variants taken in turn; peaks are `max_memory_allocated` of a
whole step, parameters, gradients and optimizer state included.
"""

from __future__ import annotations

import copy
import gc
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.more_models import Llama
from benchmarks.text_models import Bert, Gpt
from benchmarks.vision_models import VisionTransformer
from ortmodule_py import last_run_report

from .part import Context, Part, Row
from .training import variables, wrapped

_ROUNDS = 10
_WARM_UP = 3
_VARIANTS = ("eager", "compile", "ours", "ours level 1")


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut (He et al., "Deep residual learning", 2016)."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50 with its loss."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        inside = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for block in range(count):
                layers.append(Bottleneck(inside, width, 2 if block == 0 and stage else 1))
                inside = 4 * width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(inside, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy."""
        return F.cross_entropy(self.head(self.features(images).mean((2, 3))), labels)


def _text(vocab: int, batch: int, length: int, keys: tuple[str, str]) -> dict[str, Tensor]:
    tokens = torch.randint(0, vocab, (batch, length + 1))
    return {keys[0]: tokens[:, :-1].contiguous(), keys[1]: tokens[:, 1:].contiguous()}


def _images(batch: int) -> dict[str, Tensor]:
    return {
        "images": torch.randn(batch, 3, 224, 224),
        "labels": torch.randint(0, 1000, (batch,)),
    }


def _bert_large() -> tuple[nn.Module, dict[str, Tensor]]:
    module = Bert(vocab=30522, length=512, width=1024, heads=16, layers=24, dropout=0.1)
    batch = _text(30522, 16, 512, ("input_ids", "labels"))
    batch["attention_mask"] = torch.ones(16, 512, dtype=torch.long)
    return module, batch


def _gpt2_medium() -> tuple[nn.Module, dict[str, Tensor]]:
    module = Gpt(vocab=50257, length=1024, width=1024, heads=16, layers=24, dropout=0.1, fused=True)
    return module, _text(50257, 8, 1024, ("idx", "targets"))


def _llama_1b() -> tuple[nn.Module, dict[str, Tensor]]:
    module = Llama(vocab=32000, width=2048, heads=16, layers=18)
    return module, _text(32000, 1, 8192, ("idx", "targets"))


def _vit_large() -> tuple[nn.Module, dict[str, Tensor]]:
    module = VisionTransformer(
        size=224, patch=16, width=1024, heads=16, layers=24, classes=1000, dropout=0.0
    )
    return module, _images(32)


def _resnet50() -> tuple[nn.Module, dict[str, Tensor]]:
    return ResNet50(), _images(64)


_MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = {
    "bert-large": _bert_large,
    "gpt2-medium": _gpt2_medium,
    "llama-1b": _llama_1b,
    "vit-large": _vit_large,
    "resnet50": _resnet50,
}


class Trained:
    """One variant with its optimizer."""

    def __init__(self, module: nn.Module, variant: str, context: Context) -> None:
        self.run: Any
        if variant.startswith("ours"):
            level = "1" if variant.endswith("1") else "0"
            with variables(ORTMODULE_MEMORY_OPT_LEVEL=level):
                self.run = self.module = wrapped(module, context)
        else:
            self.run = self.module = copy.deepcopy(module)
            if variant == "compile":
                self.run = torch.compile(self.module)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-5, fused=True)

    def step(self, batch: dict[str, Tensor]) -> None:
        """One training step in bfloat16 autocast."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.run(**batch)
        loss.backward()
        self.optimizer.step()


def _timed_ms(trained: Trained, batch: dict[str, Tensor]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    trained.step(batch)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def _peak(trained: Trained, batch: dict[str, Tensor], others: int) -> int:
    """Bytes at the peak of a step, without those of the other variants."""
    torch.cuda.reset_peak_memory_stats()
    trained.step(batch)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - others


def _run(name: str, context: Context) -> Row:
    torch.manual_seed(0)
    module, batch = _MODELS[name]()
    module = module.to(context.device).train()
    batch = {key: value.to(context.device) for key, value in batch.items()}
    variants: dict[str, Trained] = {}
    peaks: dict[str, int] = {}
    for variant in _VARIANTS:
        gc.collect()
        before = torch.cuda.memory_allocated()
        trained = Trained(module, variant, context)
        for _ in range(_WARM_UP):
            trained.step(batch)
        peaks[variant] = _peak(trained, batch, before)
        trained.optimizer.zero_grad(set_to_none=True)
        variants[variant] = trained
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in range(_ROUNDS):
        for variant, trained in variants.items():
            times[variant].append(_timed_ms(trained, batch))
            trained.optimizer.zero_grad(set_to_none=True)
    medians = {variant: statistics.median(values) for variant, values in times.items()}
    report = last_run_report(variants["ours"].module)
    peers = min(medians["eager"], medians["compile"])
    slow = medians["ours"] > peers
    why = "" if report["compiled"] else f"in eager: {report['eager_pieces']}"
    return {
        "ms": medians,
        "peak_bytes": peaks,
        "against_eager": medians["ours"] / medians["eager"],
        "against_compile": medians["ours"] / medians["compile"],
        "ok": not slow and not why,
        "why": why or ("slower than a peer" if slow else ""),
    }


SPEED = Part(
    "speed",
    "steps of large models in bfloat16 autocast against eager and torch.compile, time and peak",
    lambda: list(_MODELS),
    _run,
)
