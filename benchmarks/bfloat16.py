"""Training steps under bfloat16 autocast on one CPU thread, beside eager PyTorch under autocast.

    python -m benchmarks.bfloat16 --seconds 20

Processor time of forward and backward, in turn, and the largest error of a gradient against
float64 relative to the largest gradient, without dropout.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import torch

from benchmarks import models, variants
from benchmarks.processes import default_core

BATCHES = {"gpt": 8, "bert": 8}


def _step(run: Any, batch: models.Batch) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = run(**batch)
    loss.backward()


def gradient_error(name: str, variant: str) -> float:
    """Against float64, relative to the largest gradient of the model."""
    model, exact = (models.make(name, dropout=0.0) for _ in range(2))
    batch = model.batch(model.batch_size)
    _step(variants.wrap(model, variant), batch)
    wide = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    exact.module.double()(**wide).backward()
    largest = worst = 0.0
    for mine, theirs in zip(model.module.parameters(), exact.module.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        largest = max(largest, float(theirs.grad.abs().max()))
        worst = max(worst, float((mine.grad.double() - theirs.grad).abs().max()))
    return worst / largest


def measure(name: str, names: list[str], seconds: float) -> dict[str, list[float]]:
    """Seconds of each step of each variant."""
    runs, times = {}, {variant: list[float]() for variant in names}
    for variant in names:
        torch.manual_seed(0)
        model = models.make(name)
        runs[variant] = (model, variants.wrap(model, variant), model.batch(BATCHES[name]))
        for _ in range(2):
            _step(*runs[variant][1:])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for variant, (model, run, batch) in runs.items():
            for parameter in model.module.parameters():
                parameter.grad = None
            start = time.process_time()
            _step(run, batch)
            times[variant].append(time.process_time() - start)
    return times


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(BATCHES), choices=list(BATCHES))
    parser.add_argument("--variants", nargs="+", default=["eager", "ours"], type=variants.check)
    parser.add_argument("--seconds", type=float, default=20, help="of each model (20)")
    parser.add_argument("--core", type=int, default=default_core(), help="core to pin to")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    for name in options.models:
        times = measure(name, options.variants, options.seconds)
        first = statistics.median(times[options.variants[0]])
        for variant, values in times.items():
            middle, error = statistics.median(values), gradient_error(name, variant)
            print(
                f"{name:5} {variant:10} {middle:7.3f} s, {middle / first:.2f} of the first, "
                f"error of gradients {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
