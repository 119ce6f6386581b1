"""Peak memory and processor time of a rank: DDP, ZeRO, FSDP2, with checkpointing and on the engine.

    python -m benchmarks.sharded [--ranks 2] [--steps 4] [--width 256] [names ...]

Each row is a group of gloo ranks with one thread each that trains a language model with AdamW. The peaks are
those of all tensors of rank 0, parameters and optimizer state included, counted by the allocator: in forward
and backward, and with the optimizer's step, whose temporary tensors may be more than the activations.
Processor time is that of a forward and backward, the best of the steps after the first. `--steps 500` also
shows whether memory grows: `grown` is the peak of the last step less that of the third.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from ortmodule_py.base.cpu_memory import cpu_memory_stats, install_counting_allocator
from ortmodule_py.testing import measure_peak
from tests.integrations.sharded_models import LanguageModel

QUIET = DebugOptions(log_level=LogLevel.ERROR)
LEVEL = "ORTMODULE_MEMORY_OPT_LEVEL"
ROWS: dict[str, Callable[[Any], Any]] = {}


def _row(name: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def add(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        ROWS[name] = make
        return make

    return add


@_row("DDP")
def _(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


@_row("DDP, engine")
def _(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(ORTModule(model, QUIET))


@_row("DDP, engine, ZeRO optimizer")
def _(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(ORTModule(model, QUIET))


@_row("FSDP2")
def _sharded(model: Any) -> Any:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


@_row("FSDP2, checkpointing")
def _(model: Any) -> Any:
    for name, block in list(model.blocks.named_children()):
        model.blocks.register_module(name, checkpoint_wrapper(block))
    return _sharded(model)


@_row("FSDP2, engine")
def _(model: Any) -> nn.Module:
    return ORTModule(_sharded(model), QUIET)


@_row("FSDP2, engine, level 1")
def _(model: Any) -> nn.Module:
    os.environ[LEVEL] = "1"
    return ORTModule(_sharded(model), QUIET)


def run(rank: int, arguments: argparse.Namespace, name: str, meeting: str) -> None:
    """One rank of one row; rank 0 prints it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=arguments.ranks)
    install_counting_allocator()
    torch.manual_seed(0)
    model = ROWS[name](LanguageModel(arguments.width, arguments.blocks))
    spreads = "ZeRO" in name
    optimizer: Any = (
        ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
        if spreads
        else torch.optim.AdamW(model.parameters())
    )
    words = torch.randint(0, 40, (arguments.rows, arguments.length))
    peaks, whole, seconds = [], [], []
    for _ in range(arguments.steps):
        dist.barrier()
        before = cpu_memory_stats().current_bytes
        with measure_peak() as measured:
            start = time.process_time()
            model(words).backward()
            seconds.append(time.process_time() - start)
        peaks.append(before + measured.peak_above_start)
        before = cpu_memory_stats().current_bytes
        with measure_peak() as measured:
            optimizer.step()
            optimizer.zero_grad()
        whole.append(max(peaks[-1], before + measured.peak_above_start))
    if rank == 0:
        last, third = peaks[-1], peaks[min(2, len(peaks) - 1)]
        planned = ""
        if isinstance(model, ORTModule):
            bytes_ = last_run_report(model)["sharding"]["planned_peak_bytes"]
            planned = f"   planned {bytes_ / 2**20:6.1f} ({100 * bytes_ / last - 100:+.1f}%)"
        print(
            f"{name:<28} {last / 2**20:7.1f} MiB, with the optimizer {whole[-1] / 2**20:7.1f} MiB "
            f"{1e3 * min(seconds[1:]):8.1f} ms   grown {last - third:6d}"
            f"{planned}",
            flush=True,
        )
    dist.destroy_process_group()


def main() -> None:
    """Run the rows that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=", ".join(ROWS))
    for option, default in (
        ("ranks", 2),
        ("steps", 4),
        ("width", 256),
        ("blocks", 8),
        ("rows", 4),
        ("length", 256),
    ):
        parser.add_argument(f"--{option}", type=int, default=default)
    arguments = parser.parse_args()
    for name in arguments.names or ROWS:
        with tempfile.TemporaryDirectory() as folder:
            given = (arguments, name, f"file://{folder}/meeting")
            torch.multiprocessing.spawn(run, given, nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
