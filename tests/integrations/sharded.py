"""What ranks do under FSDP2, tensor parallelism and pipelines; run by test_sharded.py."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as files
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

from ortmodule_py import ORTModule, ORTModuleError, check, explain, last_run_report
from ortmodule_py.base.cpu_memory import install_counting_allocator
from ortmodule_py.base.ranks import agreed
from ortmodule_py.base.sharding import units_of
from ortmodule_py.testing import measure_peak

from . import ranks
from .sharded_models import (
    ORDERS,
    QUIET,
    LanguageModel,
    assert_on_engine,
    assert_same_gradients,
    sharded,
    trains_like_fsdp,
    whole,
    words_of,
    wrap_the_sharded,
)

SCENARIOS: dict[str, Callable[[int], None]] = {}
FOUR_RANKS: dict[str, Callable[[int], None]] = {}


def scenario(function: Callable[[int], None]) -> Callable[[int], None]:
    """Registers a scenario of two ranks under its name."""
    SCENARIOS[function.__name__] = function
    return function


def of_four_ranks(function: Callable[[int], None]) -> Callable[[int], None]:
    """Registers a scenario of four ranks under its name."""
    FOUR_RANKS[function.__name__] = function
    return function


def _like_one_process(order: Callable[[Any], Any], scales: bool = False) -> Any:
    """Steps of all ranks are those of one process with the whole batch; blocks may differ in a number."""
    torch.manual_seed(0)
    eager = LanguageModel(blocks=2, scales=scales)
    inner = copy.deepcopy(eager)
    model = order(inner)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, model)]
    for step in range(2):
        everything, mine = words_of(step)
        loss, wanted = model(mine), eager(everything)
        loss.backward()
        wanted.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        torch.testing.assert_close(mean, wanted.detach())
        assert_same_gradients(inner, eager)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model


@scenario
def all_orders(rank: int) -> None:
    """Each order of sharding and wrapping trains like one process."""
    for order in ORDERS:
        model = _like_one_process(order, scales=order is ORDERS[0])
        if isinstance(model, ORTModule):
            assert_on_engine(model)
        if order.__name__ == "shard_wrapped_blocks":
            for block in model.blocks:
                assert_on_engine(block)
                assert isinstance(block, ORTModule) and isinstance(block, FSDPModule)
        for unit in [model, *model.blocks] if isinstance(model, FSDPModule) else ():
            unit.unshard()
            unit.reshard()


@scenario
def equal_units_share_a_capture(rank: int) -> None:
    """The embedding, a block, and the rest; gradients leave each unit behind its backward, and
    parameters behind its forward."""
    model = wrap_the_sharded(LanguageModel())
    freed: list[int] = []

    def note(name: int) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            later = [b for n, b in enumerate(model.blocks) if n > name]
            assert all(isinstance(b.up.weight.grad, DTensor) for b in later)
            freed.append(name)

        return hook

    def mark(name: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            output.register_hook(note(name))

        return hook

    for n, block in enumerate(model.blocks):
        block.register_forward_hook(mark(n))
    for step in range(2):
        model(words_of(step)[1]).backward()
    report = last_run_report(model)
    assert (report["captures"], report["pieces_run"]) == (3, 5), report
    assert freed == [2, 1, 0] * 2
    assert_on_engine(model, captures=3)
    _frees_parameters(model)


@scenario
def policies(rank: int) -> None:
    """Options of `fully_shard`, each beside FSDP2 without the engine."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def prefetched(model: Any) -> Any:
        sharded(model, mp_policy=half)
        for one, following in zip(model.blocks, list(model.blocks)[1:], strict=False):
            one.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([one])
        return model

    trains_like_fsdp(prefetched, tolerance=3e-2)

    def tied(model: Any) -> Any:
        model.head.weight = model.embed.weight
        return sharded(model, reshard_after_forward=False)

    def synchronized(model: Any, step: int) -> None:
        model.set_requires_gradient_sync(step % 2 == 1)

    trains_like_fsdp(tied, steps=4, before=synchronized, updates=lambda step: step % 2 == 1)

    def grouped(model: Any) -> Any:
        options: Any = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
        fully_shard([model.norm, model.head], **options)
        return sharded(model, reshard_after_forward=True, **options)

    trains_like_fsdp(grouped, clip=1e-2)


def _frees_parameters(model: ORTModule) -> None:
    """Between forward and backward no unit is in memory, nor is anything computed from it alone."""
    blocks = [unit for unit in units_of(model.module) if unit.name]
    for half in (False, True):
        for _ in range(2):  # the first run captures
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(words_of(0)[1])
            held = [p for b in model.blocks for p in b.parameters()]
            assert all(isinstance(p, DTensor) for p in held)
            loss.backward()
        report = last_run_report(model)
        block = model._compiler.last.runs[1].facts()
        # What a block saves follows the batch: 24 rows of activations, no matrix of 16 to 64 columns.
        assert block["saved_bytes"] < 24 * 16 * 4 * 16, block["saved_bytes"]
        text = model._compiler.last.runs[1].text("lowered")
        assert not half or "_recompute" in text
        assert report["compiled"], report
    assert len(blocks) == 3


@scenario
def memory_of_a_rank(rank: int) -> None:
    """The planned peak of a rank is the measured one, and a budget for it is kept."""
    install_counting_allocator()
    peaks: dict[str, int] = {}
    for budget in (None, 0.85):
        limit = None if budget is None else int(budget * peaks["measured"])
        torch.manual_seed(0)
        inner = sharded(LanguageModel(width=64, blocks=4))
        model = ORTModule(inner, QUIET, memory_budget=limit)
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randint(0, 40, (8, 64))
        for _ in range(3):
            optimizer.zero_grad()
            with measure_peak() as measured:
                model(batch).backward()
            optimizer.step()
        report = last_run_report(model)["sharding"]
        state = sum(
            local.nbytes
            for held in optimizer.state.values()
            for value in held.values()
            if (local := getattr(value, "_local_tensor", value)) is not None
        )
        shards = sum(p._local_tensor.nbytes for p in inner.parameters())
        peak = measured.peak_above_start + state + shards
        assert abs(report["planned_peak_bytes"] - peak) <= 0.05 * peak, (report, peak)
        assert limit is None or peak <= 1.05 * limit, (peak, limit)
        peaks["measured"] = peak
        names = [unit["name"] for unit in report["units"]]
        assert names == ["", "blocks.0", "blocks.1", "blocks.2", "blocks.3"]
        assert [unit["runs"] for unit in report["units"]] == [2, 1, 1, 1, 1]
    with contextlib.suppress(TypeError):
        check(model, batch)
        raise AssertionError("check works on copies")
    found = explain(model)
    assert found.pieces[1]["units"] == names[1:] and "FSDP2" in str(found)
    decisions = (found.peak_bytes, [d["decision"] for d in found.decisions])
    for mine in (decisions, agreed("a number of the test", rank)):
        others: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(others, mine)
        assert others[0] == others[1], "ranks decide alike"


@scenario
def files_of_a_checkpoint(rank: int) -> None:
    """`torch.distributed.checkpoint` knows the original's names; another model goes on from them,
    whose parameters got their memory after sharding and wrapping."""
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    models, optimizers = [], []
    for n in range(2):
        torch.manual_seed(n)
        with torch.device("meta" if n else "cpu"):
            model = wrap_the_sharded(LanguageModel())
        if n:
            model.to_empty(device="cpu")
            for parameter in model.parameters():
                nn.init.constant_(parameter, 0.02)
        models.append(model)
        optimizers.append(torch.optim.AdamW(models[n].parameters()))
        models[n](words_of(n)[1]).backward()
        optimizers[n].step()
        optimizers[n].zero_grad()
    state, moments = get_state_dict(models[0], optimizers[0])
    assert "blocks.0.qkv.weight" in state and "embed.weight" in state
    files.save({"model": state, "optimizer": moments}, checkpoint_id=folder[0])
    state, moments = get_state_dict(models[1], optimizers[1])
    loaded = {"model": state, "optimizer": moments}
    files.load(loaded, checkpoint_id=folder[0])
    set_state_dict(
        models[1],
        optimizers[1],
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    assert_on_engine(models[1], captures=3)
    losses = []
    for model, optimizer in zip(models, optimizers, strict=True):
        model(words_of(2)[1]).backward()
        optimizer.step()
        losses.append(model(words_of(3)[1]))
    assert torch.equal(*losses)


@scenario
def order_of_torchtitan(rank: int) -> None:
    """Each block: checkpoint wrapper, `torch.compile`, `fully_shard`."""
    torch.manual_seed(0)
    base = LanguageModel()
    models = []
    for compiles in (False, True):
        model = copy.deepcopy(base)
        for name, block in list(model.blocks.named_children()):
            part = checkpoint_wrapper(block, preserve_rng_state=False)
            if compiles:
                part = torch.compile(part, backend="ortmodule", fullgraph=True)
            model.blocks.register_module(name, part)
        models.append(sharded(model))
    for step in range(2):
        losses = [model(words_of(step)[1]) for model in models]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
        assert_same_gradients(models[1], models[0], rtol=1e-3, atol=1e-5)


@scenario
def accelerate_prepares(rank: int) -> None:
    """accelerate's function for FSDP2, which it does not reach on the CPU itself."""
    try:
        from accelerate.utils import FullyShardedDataParallelPlugin
        from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    except ImportError:
        return  # not in every environment of the tests
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )
    accelerator: Any = types.SimpleNamespace(
        state=types.SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="no",
        device=torch.device("cpu"),
        torch_device_mesh=None,
        parallelism_config=None,
        is_main_process=rank == 0,
        distributed_type=None,
    )
    model = fsdp2_prepare_model(accelerator, ORTModule(LanguageModel(), QUIET))
    assert isinstance(model, ORTModule)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    model(words_of(0)[1]).backward()
    assert_on_engine(model)
    assert len(units_of(model.module)) >= 4


@scenario
def refused_variables(rank: int) -> None:
    """Parameters that move are no memory for a recording, and gathered ones not the module's."""
    for variable in ("ORTMODULE_CUDA_GRAPH", "ORTMODULE_VERIFY_EVERY"):
        os.environ[variable] = "1"
        try:
            model = wrap_the_sharded(LanguageModel(blocks=1))
            model(words_of(0)[1]).backward()
            refused = str(last_run_report(model)["cuda_graphs"]["refused"])
        except ORTModuleError as error:
            refused = str(error)
        finally:
            del os.environ[variable]
        assert "fully_shard" in refused, refused


class Perceptron(nn.Module):
    """A stage of a pipeline, and of tensor parallelism."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(F.gelu(self.up(x))))


@scenario
def tensor_parallel(rank: int) -> None:
    """Layers whose parameters are DTensors run in eager PyTorch, named by line."""
    torch.manual_seed(0)
    eager = Perceptron()
    inner = copy.deepcopy(eager)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(inner, init_device_mesh("cpu", (2,)), plan)
    model = ORTModule(inner, QUIET)
    for step in range(2):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))
        found, want = model(x), eager(x)
        torch.testing.assert_close(found, want)
        found.square().sum().backward()
        want.square().sum().backward()
    assert_same_gradients(inner, eager, atol=1e-5)
    (reason,) = last_run_report(model)["eager_pieces"]
    assert "DTensor" in reason and "sharded.py:" in reason, reason


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


@scenario
def pipeline(rank: int) -> None:
    """A stage on each rank; a schedule that splits backward is refused in words."""
    torch.manual_seed(0)
    stages = [Perceptron() for _ in range(4)]
    eager = nn.Sequential(*copy.deepcopy(stages[:2]))
    x, target = torch.randn(8, 16), torch.randn(8, 16)

    def run(schedule: Any) -> None:
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=[])

    model = ORTModule(stages[rank], QUIET)
    run(Schedule1F1B(PipelineStage(model, rank, 2, torch.device("cpu")), 4, loss_fn=_loss))
    for part, wanted in zip(x.chunk(4), target.chunk(4), strict=True):
        (_loss(eager(part), wanted) / 4).backward()
    assert_same_gradients(stages[rank], eager[rank], atol=1e-5)
    assert last_run_report(model)["compiled"]
    both = [
        PipelineStage(ORTModule(stages[n], QUIET), n, 4, torch.device("cpu"))
        for n in (rank, rank + 2)
    ]
    try:
        run(ScheduleInterleavedZeroBubble(both, 4, loss_fn=_loss))
    except RuntimeError as error:
        assert "zero-bubble" in str(error), error
    else:
        raise AssertionError("split backward was not refused")


@of_four_ranks
def hybrid(rank: int) -> None:
    """Shards over two ranks, copies over two; a unit is kept on two ranks between its passes."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = _like_one_process(lambda model: ORTModule(sharded(model, mesh=mesh), QUIET))
    assert_on_engine(model)

    def partly(model: Any) -> Any:
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=2)
        return fully_shard(model)

    model = _like_one_process(lambda model: ORTModule(partly(model), QUIET))
    assert_on_engine(model)
    units = last_run_report(model)["sharding"]["units"]
    assert [unit["ranks"] for unit in units] == [4] * 3 and not units[1]["stays_gathered"]
    assert whole(model.embed.weight).shape == (40, 16)


if __name__ == "__main__":
    ranks.main(SCENARIOS | FOUR_RANKS)
