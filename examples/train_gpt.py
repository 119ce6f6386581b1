"""Train a byte-level GPT on the sources of Python's standard library, with ORTModule.

The model and the training loop are plain PyTorch; ORTModule is one line in ``main``. The script
trains the same model a second time in eager PyTorch, from the same seed and on the same data, and
compares the two: bits per byte on files that were held out, time per step, peak memory.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.testing import install_counting_allocator, measure_peak

# Held-out bits per byte that a run of the default size has to reach. Eager reaches 3.0.
BITS_PER_BYTE_LIMIT = 3.2
# Dropout draws other numbers in the two runs, so they differ, but by no more than this.
RELATIVE_LIMIT = 0.01


class Block(nn.Module):
    """A pre-LN transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: Tensor, future: Tensor) -> Tensor:
        """Causal self-attention, spelled out."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (t.view(shape).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / math.sqrt(shape[-1])
        scores = scores.masked_fill(future, float("-inf"))
        y = self.dropout(F.softmax(scores, dim=-1)) @ value
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        """Attention and MLP, each added to the residual stream."""
        x = x + self.dropout(self.attend(self.ln1(x), future))
        return x + self.dropout(self.down(F.gelu(self.up(self.ln2(x)))))


class Gpt(nn.Module):
    """A decoder-only language model over bytes."""

    future: Tensor

    def __init__(self, *, layers: int, width: int, context: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, width // 32, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight
        future = torch.ones(context, context, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.06 if name.startswith("tokens") else 0.02)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the next byte, and their mean cross entropy."""
        length = idx.shape[1]
        x = self.tokens(idx) + self.positions.weight[:length]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, self.future[:length, :length])
        logits = self.head(self.ln(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def load_text(limit: int = 8_000_000) -> tuple[Tensor, Tensor]:
    """Bytes of the standard library's sources: to train on, and every tenth file held out."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    parts = (bytearray(), bytearray())
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))
    names = [name for name in names if not skipped & set(name.split("/"))]
    for number, name in enumerate(names):
        parts[number % 10 == 9].extend((root / name).read_bytes())
    train, held_out = (torch.frombuffer(part, dtype=torch.uint8)[:limit] for part in parts)
    return train, held_out


def windows(text: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Cut inputs and targets of ``context`` bytes out of the text."""
    rows = text[starts[:, None] + torch.arange(context + 1)].long()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def bits_per_byte(model: nn.Module, text: Tensor, context: int, batch_size: int) -> float:
    """Mean cross entropy on windows spread evenly over the text, in bits."""
    model.eval()
    count = 32 * batch_size
    starts = torch.linspace(0, len(text) - context - 1, count, dtype=torch.float64).long()
    losses = []
    with torch.no_grad():
        for chunk in starts.split(batch_size):
            _, loss = model(*windows(text, chunk, context))
            losses.append(loss.item())
    model.train()
    return statistics.fmean(losses) / math.log(2)


def learning_rate(step: int, steps: int, peak: float = 2e-3) -> float:
    """Warm up over a tenth of the run, then a cosine down to a fiftieth of the peak."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.51 + 0.49 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


@dataclass
class Result:
    """What one training run came to."""

    bits_per_byte: float
    first_step_s: float
    step_ms: float
    activation_bytes: int
    total_bytes: int


def train(
    model: nn.Module, name: str, text: tuple[Tensor, Tensor], options: argparse.Namespace
) -> Result:
    """Train for ``options.steps`` steps and evaluate; the order of the data depends on the seed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    order = torch.Generator().manual_seed(options.seed)
    torch.manual_seed(options.seed)
    highest = len(text[0]) - options.context - 1
    times: list[float] = []
    activations = total = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[loss]}")) as progress:
        task = progress.add_task(name, total=options.steps, loss="")
        for step in range(options.steps):
            started = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, options.steps)
            starts = torch.randint(highest, (options.batch_size,), generator=order)
            idx, targets = windows(text[0], starts, options.context)
            with measure_peak() as whole:
                optimizer.zero_grad(set_to_none=True)
                with measure_peak() as forward_backward:
                    _, loss = model(idx, targets)
                    loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            activations = max(activations, forward_backward.peak_above_start)
            total = max(total, whole.peak_bytes)
            times.append(time.perf_counter() - started)
            progress.update(task, advance=1, loss=f"loss {loss.item():.3f}")
    bits = bits_per_byte(model, text[1], options.context, options.batch_size)
    step_ms = statistics.median(times[1:] or times) * 1e3
    return Result(bits, times[0], step_ms, activations, total)


def print_results(results: dict[str, Result], console: Console) -> None:
    """One column per run."""
    table = Table()
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right")
    runs = list(results.values())
    table.add_row("held-out bits per byte", *(f"{r.bits_per_byte:.4f}" for r in runs))
    table.add_row("step ms (median)", *(f"{r.step_ms:.0f}" for r in runs))
    table.add_row("first step s", *(f"{r.first_step_s:.2f}" for r in runs))
    mebibyte = 1 << 20
    table.add_row(
        "forward + backward peak MiB", *(f"{r.activation_bytes / mebibyte:.1f}" for r in runs)
    )
    table.add_row("whole step peak MiB", *(f"{r.total_bytes / mebibyte:.1f}" for r in runs))
    console.print(table)


def print_report(report: dict[str, Any], console: Console) -> None:
    """What ORTModule says about the last run."""
    keys = (
        "compiled",
        "captures",
        "plans",
        "graph_breaks",
        "eager_pieces",
        "nodes_total",
        "nodes_aten_fallback",
        "planned_peak_bytes",
        "measured_peak_bytes",
    )
    console.print("ORTModule: " + ", ".join(f"{key} {report.get(key)}" for key in keys))


def verdict(results: dict[str, Result], limit: float, console: Console) -> int:
    """0 when every run learned enough and the two agree, else 1."""
    bad = [name for name, result in results.items() if not result.bits_per_byte < limit]
    for name in bad:
        console.print(f"[red]{name}: held-out bits per byte are not below {limit}[/red]")
    if len(results) == 2:
        ours, eager = (result.bits_per_byte for result in results.values())
        difference = ours / eager - 1
        console.print(f"ORTModule's bits per byte are {difference:+.2%} of eager's")
        if not abs(difference) <= RELATIVE_LIMIT:
            console.print(f"[red]they differ by more than {RELATIVE_LIMIT:.0%}[/red]")
            return 1
    return 1 if bad else 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=("ortmodule", "eager"), default="ortmodule")
    parser.add_argument("--no-eager", action="store_true", help="leave out the eager run")
    parser.add_argument(
        "--limit",
        type=float,
        default=BITS_PER_BYTE_LIMIT,
        help="bits per byte to reach, for runs of another size",
    )
    return parser.parse_args()


def main() -> int:
    """Train, compare, and say by the exit code whether it went well."""
    options = parse_arguments()
    install_counting_allocator()
    console = Console()
    text = load_text()
    console.print(f"{len(text[0]):,} bytes to train on, {len(text[1]):,} held out")

    def build() -> nn.Module:
        torch.manual_seed(options.seed)
        return Gpt(layers=options.layers, width=options.width, context=options.context)

    results = {}
    if options.backend == "ortmodule":
        model = ORTModule(build())
        results["ORTModule"] = train(model, "ORTModule", text, options)
        print_report(last_run_report(model), console)
        del model
    if options.backend == "eager" or not options.no_eager:
        results["eager"] = train(build(), "eager", text, options)
    print_results(results, console)
    return verdict(results, options.limit, console)


if __name__ == "__main__":
    raise SystemExit(main())
