"""What two ranks do under DistributedDataParallel; run by test_data_parallel.py."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from ortmodule_py.dynamo.patches import table

from . import ranks

SCENARIOS: dict[str, Callable[[int], None]] = {}


def scenario(function: Callable[[int], None]) -> Callable[[int], None]:
    """Registers a scenario under its name."""
    SCENARIOS[function.__name__] = function
    return function


class Net(nn.Module):
    """Two layers and a branch that only some calls take."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 3)
        self.norm, self.branch = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        x = self.norm(self.first(x)).tanh()
        return self.last(x + self.branch(x) if branch else x)


def wrapped(module: nn.Module, **options: Any) -> tuple[DistributedDataParallel, ORTModule]:
    """DDP over an ORTModule over a copy of `module`."""
    inner = ORTModule(copy.deepcopy(module), DebugOptions(log_level=LogLevel.ERROR))
    return DistributedDataParallel(inner, **options), inner


def assert_compiled(inner: ORTModule, captures: int = 1) -> None:
    """No piece ran in eager, and there were no more captures than that."""
    report = last_run_report(inner)
    assert report["compiled"] and report["captures"] <= captures, report


def assert_gradients(inner: nn.Module, want: nn.Module) -> None:
    """The same gradients, and None in the same places."""
    for (name, mine), theirs in zip(inner.named_parameters(), want.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


def assert_same_on_both(module: nn.Module) -> None:
    """The parameters of this rank are those of the other, bit for bit."""
    mine = torch.cat([p.detach().flatten() for p in module.parameters()])
    others = [torch.empty_like(mine) for _ in range(ranks.RANKS)]
    dist.all_gather(others, mine)
    assert torch.equal(*others)


def halves(rows: int = 4) -> tuple[Tensor, Tensor]:
    """The double batch, and this rank's half of it."""
    whole = torch.randn(2 * rows, 5, 8)
    return whole, whole.chunk(2)[dist.get_rank()]


@scenario
def double_batch(rank: int) -> None:
    """Three steps of two ranks are three of one process with the double batch; norms are clipped alike."""
    eager = Net()
    model, inner = wrapped(eager)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, eager)]
    for _ in range(3):
        whole, mine = halves()
        for module, x, optimizer in ((model, mine, optimizers[0]), (eager, whole, optimizers[1])):
            optimizer.zero_grad()
            module(x).square().sum().div(x.shape[0]).backward()
        assert_gradients(inner, eager)
        norms = [clip_grad_norm_(m.parameters(), 1e-3) for m in (model, eager)]
        torch.testing.assert_close(*norms)
        assert float(norms[0]) > 1e-3
        assert_gradients(inner, eager)
        for optimizer in optimizers:
            optimizer.step()
    assert_same_on_both(inner)
    assert_compiled(inner)


@scenario
def no_sync_and_join(rank: int) -> None:
    """Gradients accumulate locally under no_sync, and are shared by the backward after it; a rank
    that runs out of batches keeps its part in the others' steps with join()."""
    eager = Net()
    model, inner = wrapped(eager)
    for local in (True, True, False):
        whole, mine = halves()
        with model.no_sync() if local else contextlib.nullcontext():
            model(mine).square().mean().backward()
        eager(whole).square().mean().backward()
        if local:
            others = [torch.empty(8, 8) for _ in range(ranks.RANKS)]
            dist.all_gather(others, inner.first.weight.grad)
            assert not torch.equal(*others)
    assert_gradients(inner, eager)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for _ in range(2 + rank):
            optimizer.zero_grad()
            model(halves()[1]).square().mean().backward()
            optimizer.step()
    assert_same_on_both(inner)
    assert_compiled(inner)


@scenario
def find_unused_parameters(rank: int) -> None:
    """Each rank leaves out the branch in another step; in the last one both do."""
    eager = Net()
    model, inner = wrapped(eager, find_unused_parameters=True)
    for taken in ((True, False), (False, True), (False, False)):
        model.zero_grad()
        eager.zero_grad()
        whole, _ = halves()
        for part, branch in zip(whole.chunk(2), taken, strict=True):
            (eager(part, branch).square().mean() / 2).backward()
        model(whole.chunk(2)[rank], taken[rank]).square().mean().backward()
        assert_gradients(inner, eager)
    assert inner.branch.weight.grad is None
    assert_compiled(inner, captures=2)


@scenario
def static_graph(rank: int) -> None:
    """The order of gradients and the unused parameters are learnt in the first step."""
    eager = Net()
    model, inner = wrapped(eager, static_graph=True)
    for _ in range(3):
        model.zero_grad()
        eager.zero_grad()
        whole, mine = halves()
        model(mine, False).square().mean().backward()
        eager(whole, False).square().mean().backward()
        assert_gradients(inner, eager)
    assert_compiled(inner)


@scenario
def uneven_shapes(rank: int) -> None:
    """Ranks with batches of other sizes and lengths take part in the same step."""
    eager = Net()
    model, inner = wrapped(eager)
    for size in (2, 3, 5, 4):
        model.zero_grad()
        eager.zero_grad()
        batches = [torch.randn(size + r, 3 + 2 * r, 8) for r in range(ranks.RANKS)]
        for x in batches:
            (eager(x).square().mean() / ranks.RANKS).backward()
        model(batches[rank]).square().mean().backward()
        assert_gradients(inner, eager)
    assert_compiled(inner, captures=2)


class Deep(nn.Module):
    """Enough parameters that their gradients are handed over in several pieces."""

    def __init__(self, width: int = 768, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


@scenario
def gradients_in_pieces(rank: int) -> None:
    """Buckets are sent off while backward still has to run."""
    model, inner = wrapped(Deep(), bucket_cap_mb=4)
    finished: list[int] = []

    def facts() -> dict[str, Any]:
        found: dict[str, Any] = inner._compiler.pieces[0].compiled.facts()
        return found

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        finished.append(facts()["backwards"])
        return (
            dist.all_reduce(bucket.buffer(), async_op=True)
            .get_future()
            .then(lambda done: done.value()[0].div_(ranks.RANKS))
        )

    # DDP compares the annotations themselves, which are texts in this file.
    hook.__annotations__ |= {"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]}
    model.register_comm_hook(None, hook)
    whole = torch.randn(4, 768)
    mine = whole.chunk(2)[rank]
    for step in range(2):
        model.zero_grad()
        finished.clear()
        model(mine).square().mean().backward()
        assert last_run_report(inner)["captures"] == 1, "Dynamo cuts the graph at DDP's buckets"
        assert facts()["ranges"] > 1 and facts()["backwards"] == step + 1
        if step > 0:  # in the first step DDP has one bucket
            assert len(finished) > 1 and finished[0] == step, finished
    eager = copy.deepcopy(inner.module)
    eager.zero_grad()
    eager(whole).square().mean().backward()
    assert_gradients(inner, eager)


@scenario
def zero_redundancy(rank: int) -> None:
    """The optimizer's state is spread over the ranks, the parameters end up the same."""
    eager = Net()
    model, inner = wrapped(eager)
    spread = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    whole_state = torch.optim.AdamW(eager.parameters(), lr=1e-2)
    for _ in range(3):
        whole, mine = halves()
        for module, x, optimizer in ((model, mine, spread), (eager, whole, whole_state)):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    assert 0 < len(spread.optim.state) < len(whole_state.state)
    for mine, theirs in zip(inner.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert_same_on_both(inner)


@scenario
def wrapped_the_other_way(rank: int) -> None:
    """ORTModule(DDP(module)) computes and shares gradients too, compiled or counted as eager."""
    eager = Net()
    inner = DistributedDataParallel(copy.deepcopy(eager))
    model = ORTModule(inner, DebugOptions(log_level=LogLevel.ERROR))
    for _ in range(2):
        model.zero_grad()
        eager.zero_grad()
        whole, mine = halves()
        model(mine).square().mean().backward()
        eager(whole).square().mean().backward()
        assert_gradients(inner, eager)
    report = last_run_report(model)
    assert report["compiled"] or report["eager_pieces"] or report["graph_breaks"], report


class Summing(Net):
    """Sums its features over the ranks."""

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        total = self.first(x).detach() * 2
        dist.all_reduce(total)
        return self.last(self.branch(self.norm(x)) + total)


@scenario
def collectives_without_their_row(rank: int) -> None:
    """If a newer torch lacks what the row replaces, pieces with collectives run in eager PyTorch."""
    row = table.rows["collectives"]
    row.turn_off("for a test")
    try:
        eager = Summing()
        model = ORTModule(copy.deepcopy(eager), DebugOptions(log_level=LogLevel.ERROR))
        for step in range(2):
            x = torch.randn(3, 8) * (1 + rank + step)
            want, found = eager(x), model(x)
            torch.testing.assert_close(found, want)
            want.square().sum().backward()
            found.square().sum().backward()
        assert_gradients(model, eager)
        report = last_run_report(model)
        assert "'collectives' of build_info()" in report["eager_pieces"][0], report
    finally:
        row.state, row.off = table.HOLDS, False
        row.put()


if __name__ == "__main__":
    ranks.main(SCENARIOS)
