"""What keeping values on the host would gain on a GPU, from plans that are made without one.

    python -m tools.offload_plans [gpt2-medium llama-1b ...] [--links 12 25 50] [--layers 24]

It needs a developer build with the emulated CUDA kernels, for which it plans fake tensors (on CUDA tensors
torch cannot trace attention's gradient without a GPU). Times are the memory optimizer's estimates, by rates of
an H100 SXM under autocast to bfloat16.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.more_models import Llama
from benchmarks.text_models import Bert, Gpt
from ortmodule_py import _C
from ortmodule_py.lower.piece import lower

Model = tuple[nn.Module, dict[str, Tensor]]
_BUDGETS = (0.8, 0.6, 0.45, 0.3, 0.2)
"""Of the peak without the optimizer."""
_FLOPS_PER_US, _FLOPS16_PER_US, _BYTES_PER_US = 5e7, 6e8, 2.7e6


def _tokens(vocab: int, batch: int, length: int, *keys: str) -> dict[str, Tensor]:
    return {key: torch.zeros(batch, length, dtype=torch.long) for key in keys}


def _gpt2_medium(layers: int | None) -> Model:
    module = Gpt(
        vocab=50257, length=1024, width=1024, heads=16, layers=layers or 24, dropout=0.0, fused=True
    )
    return module, _tokens(50257, 8, 1024, "idx", "targets")


def _bert_large(layers: int | None) -> Model:
    module = Bert(vocab=30522, length=512, width=1024, heads=16, layers=layers or 24, dropout=0.1)
    return module, _tokens(30522, 16, 512, "input_ids", "labels", "attention_mask")


def _llama_1b(layers: int | None) -> Model:
    module = Llama(vocab=32000, width=2048, heads=16, layers=layers or 18)
    return module, _tokens(32000, 1, 8192, "idx", "targets")


MODELS: dict[str, Callable[[int | None], Model]] = {
    "gpt2-medium": _gpt2_medium,
    "bert-large": _bert_large,
    "llama-1b": _llama_1b,
}


class Planned:
    """A backend of torch.compile that keeps the piece of a module, planned for training."""

    def __init__(self, link_bytes_per_us: float | None) -> None:
        self.link = link_bytes_per_us
        self.pieces: list[Any] = []

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        builder = _C.GraphBuilder(False, "cuda")
        lowered = lower(gm, inputs, builder, torch.device("cpu"))
        options = _C.PieceOptions()
        options.emulate_cuda = True
        options.training = lowered.grad_enabled
        memory = _C.MemoryOptions()
        memory.set_rates(_FLOPS_PER_US, _BYTES_PER_US, _FLOPS16_PER_US)
        memory.budget_fraction = 0.5
        memory.mid_training = True
        if self.link is not None:
            memory.offload = True
            memory.set_link(self.link, self.link)
        options.memory = memory
        piece = builder.finish(options)
        piece.plan(*inputs)
        self.pieces.append(piece)
        return gm.forward


def memory_of(make: Callable[[], Model], link_bytes_per_us: float | None) -> dict[str, Any]:
    """The memory optimizer's facts for a model; `link_bytes_per_us`: of each direction, None for no offload."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        module, batch = make()
        torch._dynamo.reset()
        backend = Planned(link_bytes_per_us)
        with torch.autocast("cpu", torch.bfloat16):
            torch.compile(module, backend=backend, dynamic=False)(**batch)
    (piece,) = backend.pieces
    facts: dict[str, Any] = piece.memory()
    return facts


def fastest(frontier: Sequence[dict[str, Any]], budget_bytes: float) -> dict[str, Any] | None:
    """The fastest plan within the budget; the frontier is in the order of rising peaks."""
    fitting = [point for point in frontier if point["peak_bytes"] <= budget_bytes]
    return fitting[-1] if fitting else None


def _cell(point: dict[str, Any] | None, before: dict[str, Any]) -> str:
    if point is None:
        return f"{'does not fit':>26}"
    time_change = 100 * (point["time_us"] / before["time_us"] - 1)
    gib = point["host_bytes"] / 2**30
    return f"{time_change:+7.1f}% {gib:6.2f} GiB on host" if gib else f"{time_change:+7.1f}%{'':18}"


def _report(name: str, layers: int | None, links: Sequence[float]) -> None:
    make = partial(MODELS[name], layers)
    start = time.perf_counter()
    columns = {"recomputing": memory_of(make, None)}
    columns |= {f"{link:g} GB/s": memory_of(make, link * 1e3) for link in links}
    before = columns["recomputing"]["before"]
    print(
        f"{name}: peak {before['peak_bytes'] / 2**30:.2f} GiB, of which {before['saved_bytes'] / 2**30:.2f} "
        f"saved, step {before['time_us'] / 1e3:.1f} ms (planned in {time.perf_counter() - start:.0f} s)"
    )
    print(f"{'budget':>16} " + " ".join(f"{title:>26}" for title in columns))
    for part in _BUDGETS:
        budget = part * before["peak_bytes"]
        cells = [_cell(fastest(facts["frontier"], budget), before) for facts in columns.values()]
        print(f"{budget / 2**30:6.2f} GiB ({part:.0%}) " + " ".join(cells))
    least = [f"{f['minimum_bytes'] / 2**30:.2f} GiB" for f in columns.values()]
    print(f"{'least peak':>16} " + " ".join(f"{text:>26}" for text in least), flush=True)


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(prog="python -m tools.offload_plans", description=__doc__)
    parser.add_argument(
        "models", nargs="*", choices=[*MODELS, []], default=[], help="gpt2-medium, llama-1b if none"
    )
    parser.add_argument(
        "--links", nargs="*", type=float, default=[12, 25, 50], help="GB/s each way"
    )
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    options = parser.parse_args()
    if not _C.build_info()["cuda_emulation"]:
        parser.error("this build lacks the CUDA kernels compiled for the host")
    for name in options.models or ("gpt2-medium", "llama-1b"):
        _report(name, options.layers, options.links)


if __name__ == "__main__":
    main()
