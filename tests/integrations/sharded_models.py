"""A language model, the orders in which it may be sharded and wrapped, and the comparison of its steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

WORDS, LENGTH = 40, 12
QUIET = DebugOptions(log_level=LogLevel.ERROR)


class Block(nn.Module):
    """Attention and a perceptron; `scale` differs from block to block."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 2, width // 2).unbind(2)
        heads = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.scale * self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Embedding, blocks in a loop, last norm and loss head."""

    def __init__(self, width: int = 16, blocks: int = 3, scales: bool = False) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, 1.0 + n if scales else 1.0) for n in range(blocks))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), words.flatten())


def sharded(model: Any, **options: Any) -> Any:
    """`model` with each block and the rest as a unit."""
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def wrap_the_sharded(model: nn.Module) -> nn.Module:
    return ORTModule(sharded(model), QUIET)


def shard_the_wrapped(model: nn.Module) -> nn.Module:
    return sharded(ORTModule(model, QUIET))


def shard_wrapped_blocks(model: Any) -> nn.Module:
    for n, block in enumerate(model.blocks):
        model.blocks[n] = ORTModule(block, QUIET)
    return sharded(model)


def wrap_with_wrapped_blocks(model: Any) -> nn.Module:
    return ORTModule(shard_wrapped_blocks(model), QUIET)


def compile_the_sharded(model: nn.Module) -> Any:
    return torch.compile(sharded(model), backend="ortmodule")


ORDERS = (
    wrap_the_sharded,
    shard_the_wrapped,
    shard_wrapped_blocks,
    wrap_with_wrapped_blocks,
    compile_the_sharded,
)


def words_of(step: int, rows: int = 2) -> tuple[Tensor, Tensor]:
    """The batch of all ranks, and the rows of this rank."""
    generator = torch.Generator().manual_seed(step)
    whole = torch.randint(0, WORDS, (rows * dist.get_world_size(), LENGTH), generator=generator)
    return whole, whole.chunk(dist.get_world_size())[dist.get_rank()]


def whole(tensor: Any) -> Any:
    """A DTensor as a plain one."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def assert_same_gradients(
    model: nn.Module, want: nn.Module, rtol: float = 1e-4, atol: float = 1e-6
) -> None:
    """The same gradients, and None in the same places."""
    for (name, mine), theirs in zip(model.named_parameters(), want.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None:
            found, wanted = whole(mine.grad), whole(theirs.grad)
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, msg=name)


def assert_on_engine(model: ORTModule, captures: int | None = None) -> None:
    """Every parameter is taken by a piece of the engine, in not more captures than that."""
    report = last_run_report(model)
    assert report["compiled"] and not report["eager_pieces"], report
    assert report["training"]["parameter_share"] == 1.0, report
    assert captures is None or report["captures"] <= captures, report


def trains_like_fsdp(
    make: Callable[[nn.Module], nn.Module],
    *,
    steps: int = 2,
    tolerance: float = 1e-5,
    before: Callable[[Any, int], None] = lambda model, step: None,
    clip: float | None = None,
    updates: Callable[[int], bool] = lambda step: True,
    model: Callable[[], nn.Module] = LanguageModel,
) -> ORTModule:
    """Trains what `make` makes of the model, plain and wrapped; losses and gradients are the same."""
    torch.manual_seed(0)
    base = model()
    plain, inner = make(copy.deepcopy(base)), make(copy.deepcopy(base))
    ours = ORTModule(inner, QUIET)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, ours)]
    for step in range(steps):
        _, mine = words_of(step)
        losses, norms = [], []
        for trained in (plain, ours):
            before(trained, step)
            loss = trained(mine)
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=tolerance)
        assert_same_gradients(ours, plain, 10 * tolerance, tolerance)
        if clip is not None:
            for trained in (plain, ours):
                norm = nn.utils.clip_grad_norm_(trained.parameters(), clip)
                norms.append(whole(norm))
            torch.testing.assert_close(norms[1], norms[0], rtol=1e-3, atol=1e-6)
            assert float(norms[0]) > clip
        for optimizer in optimizers if updates(step) else ():
            optimizer.step()
            optimizer.zero_grad()
    assert_on_engine(ours, captures=5)
    return ours
