"""`python -m benchmarks.recurrent`: LSTM, GRU and RNN of two layers beside eager PyTorch, by length.

Processor time of forward and backward, the best of rounds in which both take turns; the ratio is to
eager, so below 1 is faster. The first step of each length includes its capture, if there is one, and its
plan. With `--packed` the sequences of a batch have between a quarter and all of the steps.
"""

from __future__ import annotations

import argparse
import copy
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads its threads
os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ortmodule_py import ORTModule, last_run_report


class Tagger(nn.Module):
    """A recurrent network of two layers with a head."""

    def __init__(self, kind: type[nn.RNNBase], width: int, bidirectional: bool) -> None:
        super().__init__()
        self.rnn = kind(width, width, num_layers=2, bidirectional=bidirectional)
        self.head = nn.Linear(width * (2 if bidirectional else 1), 10)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            y = self.rnn(x)[0]
        else:
            packed = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))[0]
            y, _ = pad_packed_sequence(packed, total_length=x.shape[0])
        loss: Tensor = self.head(y).square().mean()
        return loss


def processor_ms(model: nn.Module, *batch: Tensor) -> float:
    """Milliseconds of all threads in a step."""
    start = time.process_time()
    model.zero_grad(set_to_none=True)
    model(*batch).backward()
    return (time.process_time() - start) * 1e3


def main() -> None:
    """Print one row per kind of layer and length."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recurrent", description=__doc__)
    parser.add_argument(
        "--kinds", nargs="+", default=["LSTM", "GRU", "RNN"], choices=("LSTM", "GRU", "RNN")
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 128, 512])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--packed", action="store_true")
    options = parser.parse_args()
    table = Table("layer", "length", "first step s", "captures", "eager ms", "ours ms", "ratio")
    for kind in options.kinds:
        torch.manual_seed(0)
        eager = Tagger(getattr(nn, kind), options.width, options.bidirectional)
        ours = ORTModule(copy.deepcopy(eager))
        for length in options.lengths:
            batch = [torch.randn(length, options.batch, options.width)]
            if options.packed:
                batch.append(torch.randint(length // 4, length + 1, (options.batch,)))
            start = time.perf_counter()
            ours(*batch).backward()
            first = time.perf_counter() - start
            rounds = [
                (processor_ms(eager, *batch), processor_ms(ours, *batch))
                for _ in range(options.rounds)
            ]
            theirs, mine = (min(times) for times in zip(*rounds, strict=True))
            captures = last_run_report(ours)["captures"]
            table.add_row(
                kind,
                str(length),
                f"{first:.2f}",
                str(captures),
                f"{theirs:.1f}",
                f"{mine:.1f}",
                f"{mine / theirs:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
