"""Two processes train one language model that is sharded with FSDP2 (`fully_shard`), on the engine.

    python examples/train_fsdp.py                        # starts its two gloo ranks itself
    torchrun --nproc_per_node 2 examples/train_fsdp.py   # the same under torchrun

Each block is a unit: its parameters are gathered before it computes and freed behind it, and its gradients
are reduced as soon as its backward has run. Each rank holds half of the parameters, gradients and optimizer
state. Rank 0 prints the loss of every tenth step, and at the end what the engine ran and what a rank holds.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

RANKS, WORDS, LENGTH = 2, 64, 32


class LanguageModel(nn.Module):
    """Embedding, transformer layers, last norm and loss head."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """The loss of predicting each word from those before it."""
        x = self.words(words) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        scores = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


def batch_of(step: int, rank: int, rows: int = 8) -> Tensor:
    """Arithmetic progressions modulo the number of words; other rows on each rank."""
    generator = torch.Generator().manual_seed(step * RANKS + rank)
    start, pace = (torch.randint(0, high, (rows, 1), generator=generator) for high in (WORDS, 4))
    return (start + (pace + 1) * torch.arange(LENGTH)) % WORDS


def train(rank: int, steps: int) -> tuple[ORTModule, list[float]]:
    """The model and the loss of each step, averaged over the ranks."""
    torch.manual_seed(0)
    model = LanguageModel()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    wrapped = ORTModule(model, DebugOptions(log_level=LogLevel.ERROR))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = wrapped(batch_of(step, rank))
        loss.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(float(mean))
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3d}  loss {losses[-1]:.4f}")
    return wrapped, losses


def run_rank(rank: int, ranks: int, meeting: str, steps: int) -> None:
    """One rank: joins the group, trains, reports."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    try:
        model, losses = train(rank, steps)
        report = last_run_report(model)
        if rank == 0:
            sharding = report["sharding"]
            print(f"captures {report['captures']}, eager pieces {len(report['eager_pieces'])}")
            print(f"units {len(sharding['units'])}, a rank holds {sharding['shard_bytes']:,} bytes")
            print(f"of parameters, at the peak {sharding['planned_peak_bytes']:,} bytes in all")
        if losses[-1] >= losses[0] or report["eager_pieces"]:
            raise SystemExit(1)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Run as a rank of torchrun, or start two ranks."""
    parser = argparse.ArgumentParser(description="FSDP2 around blocks, ORTModule around the model")
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments = (RANKS, f"file://{folder}/meeting", steps)
        torch.multiprocessing.spawn(run_rank, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
