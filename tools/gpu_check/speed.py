"""Parts `speed ...`: training steps of a large model against eager and torch.compile.

A row is a variant, alone on the GPU, so that four times the optimizer's state need not fit. Times are
medians over blocks of five steps between two CUDA events: the host may run ahead, as in training.
Peaks are `max_memory_allocated` of a whole step, parameters, gradients and optimizer state included.
The last row compares, kernel by kernel too.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.more_models import Llama
from benchmarks.text_models import Bert, Gpt
from benchmarks.vision_models import VisionTransformer
from ortmodule_py import _C, DebugOptions, LogLevel, ORTModule, last_run_report

from .part import EVEN, Context, Part, Row
from .profile import as_json, beside, block_ms, profiled
from .training import variables

_BLOCKS = 6
_STEPS = 5
_WARM_UP = 4
_VARIANTS = ("ours", "eager", "compile", "ours graphs", "ours level 1")
"""What is cheap and says most comes first; `graphs`: ORTMODULE_CUDA_GRAPH=1, for hosts that launch slowly."""
_GRAPHS = "ours graphs"
_COMPARED = "against"


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


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = {
    "bert-large": _bert_large,
    "gpt2-medium": _gpt2_medium,
    "llama-1b": _llama_1b,
    "vit-large": _vit_large,
    "resnet50": _resnet50,
}


class Trained:
    """One variant with its optimizer. The module itself is taken, not a copy."""

    def __init__(self, module: nn.Module, variant: str) -> None:
        self.run: Any = module
        self.module: nn.Module = module
        if variant.startswith("ours"):
            level = "1" if variant.endswith("1") else "0"
            graphs = "1" if variant == _GRAPHS else "0"
            with variables(ORTMODULE_MEMORY_OPT_LEVEL=level, ORTMODULE_CUDA_GRAPH=graphs):
                self.run = self.module = ORTModule(module, DebugOptions(LogLevel.ERROR))
        elif variant == "compile":
            self.run = torch.compile(module)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-5, fused=True)

    def step(self, batch: dict[str, Tensor]) -> None:
        """One training step in bfloat16 autocast."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.run(**batch)
        loss.backward()
        self.optimizer.step()


def _measured(step: Callable[[], None]) -> Row:
    for _ in range(_WARM_UP):
        step()
        _C.finish_generated_code()  # it is compiled in the background
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    times = [block_ms(step, _STEPS) for _ in range(_BLOCKS)]
    kernels = profiled(step, 2)
    return {
        "ms": statistics.median(times),
        "least_ms": min(times),
        "most_ms": max(times),
        "busy_ms": sum(k.us for k in kernels) / 1000,
        "launches": sum(k.launches for k in kernels),
        "peak_bytes": peak,
        "kernels": as_json(kernels),
    }


def _variant(model: str, variant: str, context: Context) -> Row:
    torch.manual_seed(0)
    gc.collect()
    torch.cuda.empty_cache()
    with context.device:  # a billion parameters are drawn in no time there
        module, batch = MODELS[model]()
    module.train()
    trained = Trained(module, variant)
    row = _measured(partial(trained.step, batch))
    why = ""
    if variant.startswith("ours"):
        report = last_run_report(trained.module)
        why = "" if report["compiled"] else f"in eager: {report['eager_pieces']}"
        if variant == _GRAPHS and not report["cuda_graphs"]["replayed"]:
            why = why or f"no step was replayed: {'; '.join(report['cuda_graphs']['refused'])}"
    return row | {"ok": not why, "why": why}


def compared(rows: dict[str, Row]) -> Row:
    """The last row: ours against its peers, with a band within which a ratio counts as even."""
    missing = [v for v in _VARIANTS if v != _GRAPHS and "ms" not in rows.get(v, {})]
    if "ours" in missing or {"eager", "compile"} <= set(missing):
        return {"ok": False, "why": f"there is no time of {', '.join(missing)}"}
    ours = rows["ours"]
    ratios = {v: ours["ms"] / rows[v]["ms"] for v in ("eager", "compile") if v not in missing}
    worst = max(ratios.values())
    verdict = "faster" if worst < 1 - EVEN else "even" if worst <= 1 + EVEN else "slower"
    row: Row = {f"against_{v}": ratio for v, ratio in ratios.items()}
    row |= {"verdict": verdict, "idle": 1 - ours["busy_ms"] / ours["ms"]}
    if "ms" in rows.get(_GRAPHS, {}):
        row["graphs_against_ours"] = rows[_GRAPHS]["ms"] / ours["ms"]
    if "compile" not in missing:
        row["lines"] = beside(ours["kernels"], rows["compile"]["kernels"])
    why = f"there is no time of {', '.join(missing)}" if missing else ""
    if verdict == "slower":
        why = f"slower than a peer by {worst - 1:.0%}"
    return row | {"ok": not why, "why": why}


def _run(model: str, name: str, context: Context) -> Row:
    if name == _COMPARED:
        return compared(context.known)
    return _variant(model, name, context)


def _part(model: str) -> Part:
    return Part(
        f"speed {model}",
        "steps in bfloat16 autocast against eager and torch.compile: time, peak, kernels",
        lambda: [*_VARIANTS, _COMPARED],
        partial(_run, model),
        timed=True,
    )


FIRST_SPEED = tuple(_part(model) for model in ("resnet50", "gpt2-medium", "bert-large"))
"""The first one was slower than its peers on an H200, and the second is the one that the README quotes."""
OTHER_SPEED = tuple(
    _part(model) for model in MODELS if f"speed {model}" not in {part.name for part in FIRST_SPEED}
)
