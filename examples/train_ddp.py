"""Two processes train one model with DistributedDataParallel around an ORTModule.

    python examples/train_ddp.py                        # starts its two gloo ranks itself
    torchrun --nproc_per_node 2 examples/train_ddp.py   # the same under torchrun

Each rank trains on its own half of the samples. Rank 0 prints the loss of every step, and at the end
that both ranks hold the same parameters.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

RANKS = 2


class Classifier(nn.Module):
    """A transformer layer over sequences of 16 vectors, and the scores of four classes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the mean over the sequence."""
        return self.head(self.layer(x).mean(1))


def make_samples(count: int = 256, width: int = 32) -> TensorDataset:
    """Sequences whose class is the largest of the first four sums; the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 16, width, generator=generator)
    return TensorDataset(x, x.sum(1)[:, :4].argmax(1))


def train(rank: int, epochs: int) -> tuple[ORTModule, list[float]]:
    """The model and the loss of each step, averaged over the ranks."""
    torch.manual_seed(0)
    inner = ORTModule(Classifier(), DebugOptions(log_level=LogLevel.ERROR))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    samples = make_samples()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(samples, seed=2)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, labels in DataLoader(samples, batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            losses.append(float(mean))
            if rank == 0:
                print(f"step {len(losses):3d}  loss {losses[-1]:.4f}")
    return inner, losses


def parameters_agree(model: nn.Module) -> bool:
    """Whether all ranks hold the same parameters, bit for bit."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    return all(torch.equal(mine, other) for other in all_ranks)


def run_rank(rank: int, ranks: int, meeting: str, epochs: int) -> None:
    """One rank: joins the group, trains, compares."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    try:
        model, losses = train(rank, epochs)
        agree = parameters_agree(model)
        if rank == 0:
            report = last_run_report(model)
            print(f"captures {report['captures']}, eager pieces {len(report['eager_pieces'])}")
            print(f"the ranks hold {'the same' if agree else 'DIFFERENT'} parameters")
        if not agree or losses[-1] >= losses[0]:
            raise SystemExit(1)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Run as a rank of torchrun, or start two ranks."""
    parser = argparse.ArgumentParser(description="DistributedDataParallel around an ORTModule")
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", epochs)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments = (RANKS, f"file://{folder}/meeting", epochs)
        torch.multiprocessing.spawn(run_rank, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
