"""What was compiled and what it takes: `RunReport` and the banner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ortmodule_py import _C
from ortmodule_py.base.sharding import Beside, computed_with, held_parameters, local_bytes, units_of
from ortmodule_py.compile.forward_record import MODES, TRAINING
from ortmodule_py.compile.step_budget import beside, engine_beside

if TYPE_CHECKING:
    from ortmodule_py.compile.compiler import Compiler
    from ortmodule_py.compile.forward_record import ForwardRecord

_COMPILE = "compile"
"""The stage of the engine, which reports its own stages; all other stages of a piece are export."""


@dataclass
class ModeReport:
    """What the engine runs of the forwards of one mode."""

    compiled: bool
    """All pieces run in the engine, or the last forward was a single piece that is the whole module."""
    eager_pieces: list[str]
    """Pieces that run in eager PyTorch, with the reason."""
    pieces_run: int
    """Runs of compiled pieces in the last forward."""
    parameter_share: float
    """Share of the module's parameters, by elements, that these pieces take as inputs."""
    time_share: float | None
    """Share of the wall time of the last forward without a capture that was spent in compiled pieces; None
    if each had one. The rest are eager PyTorch, Python code and Dynamo's guards. Backward is not included,
    and on a GPU it is the time of the launches."""

    @classmethod
    def of(cls, compiler: Compiler, module: nn.Module, mode: str) -> ModeReport | None:
        """The report over the forwards of `mode`; None if there was none."""
        record = compiler.last_of.get(mode)
        if record is None:
            return None
        eager = [str(piece) for piece in compiler.log.eager_pieces if mode in piece.modes]
        timed = compiler.timed.get(mode)
        return cls(
            compiled=bool(record.runs) and (record.whole or not eager),
            eager_pieces=eager,
            pieces_run=len(record.runs),
            parameter_share=_parameter_share(compiler, module, record),
            time_share=timed.engine_seconds / timed.seconds if timed and timed.seconds else None,
        )


@dataclass
class RunReport:
    """Captures, plans and bytes of one module."""

    compiled: bool
    """Both `training` and `evaluation` are compiled, as far as there were such forwards."""
    training: ModeReport | None
    """Of forwards in training mode with gradients; None if there was none."""
    evaluation: ModeReport | None
    """Of all other forwards."""
    captures: int
    plans: int
    graph_breaks: list[str]
    """Without duplicates: a recompilation meets the same graph break again."""
    eager_pieces: list[str]
    nodes_total: int
    nodes_aten_fallback: int
    planned_peak_bytes: int
    """Planned peak of engine bytes over the last forward and its backward. With several pieces, each peak
    includes what earlier pieces save and the gradients of later ones."""
    measured_peak_bytes: int
    """The same, from the measured peak of each piece; 0 before the first backward."""
    prediction_exact: bool
    """False if a node that runs through torch's dispatcher may allocate memory that is not planned."""
    saved_bytes: int
    """Bytes that all pieces of the last forward save for backward."""
    host_bytes: int
    """Bytes that they save in memory of the host instead of a GPU's."""
    pieces_run: int
    """Runs of compiled pieces in the last forward."""
    traced_gradients: list[str]
    """Operators without a gradient rule, whose gradient was traced."""
    stages_ms: dict[str, float]
    devices: list[str]
    """The devices that the pieces run on."""
    device_peak_bytes: int
    """On GPUs `torch.cuda.max_memory_allocated`, parameters included, summed over the devices; 0 on the
    CPU."""
    cuda_graphs: dict[str, Any]
    """With ORTMODULE_CUDA_GRAPH=1: plans `recorded` as graphs, runs `replayed`, runs that were launched
    step by step because another one was `in_flight`, and why plans were `refused`. Otherwise empty."""
    generated_code: dict[str, Any]
    """Where pointwise groups become code of their own, counts of this process: groups `compiled`, taken
    `from_disk`, `failed` (with the first `failure`) and `loaded`, and `launches` of them. Otherwise empty."""
    sharding: dict[str, Any]
    """With FSDP2: the `units` of `fully_shard` with their bytes, how many `runs` of pieces take their
    parameters, and what this rank holds: `shard_bytes`, `optimizer_bytes` (two values per trained one, as in
    Adam), and `planned_peak_bytes`, the peak of all of its memory in a step. Otherwise empty."""
    nondeterministic_kernels: list[str]
    """Kernels of the last plans and operators of torch whose results may differ from run to run."""

    @classmethod
    def of(cls, compiler: Compiler, module: nn.Module) -> RunReport:
        """The report over all pieces of `module`."""
        facts = [piece.compiled.facts() for piece in compiler.pieces]
        runs = list(compiler.last.runs) if compiler.last else []
        last = [piece.facts() for piece in runs]
        if not last and facts:
            last = runs = [max(facts, key=lambda f: f["last_run"])]
        turns = list(map(id, runs))
        planned = [f["planned_peak_bytes"] or f.get("plan_peak_bytes", 0) for f in last]
        measured = [f["measured_peak_bytes"] for f in last]
        around = (
            beside(module, compiler.last) if compiler.last and runs == compiler.last.runs else []
        )
        engine = engine_beside(around, with_gathered=False)
        with_gathered = engine_beside(around, with_gathered=True)
        devices = sorted({fact["device"] for fact in facts})
        modes = {mode: ModeReport.of(compiler, module, mode) for mode in MODES}
        ran = [report for report in modes.values() if report is not None]
        return cls(
            compiled=bool(ran) and all(report.compiled for report in ran),
            **modes,
            captures=len(facts) + len(compiler.log.eager_pieces),
            plans=sum(fact["plans"] for fact in facts),
            graph_breaks=list(dict.fromkeys(compiler.log.graph_breaks)),
            eager_pieces=list(map(str, compiler.log.eager_pieces)),
            nodes_total=sum(fact["nodes"] for fact in facts),
            nodes_aten_fallback=sum(fact["nodes_aten"] for fact in facts),
            planned_peak_bytes=_step_peak(planned, last, turns, engine),
            measured_peak_bytes=_step_peak(measured, last, turns, engine) if all(measured) else 0,
            prediction_exact=all(fact.get("exact", True) for fact in facts),
            saved_bytes=sum(fact.get("saved_bytes", 0) for fact in last),
            host_bytes=sum(fact.get("host_bytes", 0) for fact in last),
            pieces_run=len(last),
            traced_gradients=sorted({op for p in compiler.pieces for op in p.traced_gradients}),
            stages_ms=_stages_ms(compiler.pieces),
            devices=devices,
            device_peak_bytes=sum(map(_device_peak_bytes, devices)),
            cuda_graphs=_graphs(facts, compiler.moving),
            generated_code=_C.generated_code_counts() or {},
            sharding=_sharding(module, around, _step_peak(planned, last, turns, with_gathered)),
            nondeterministic_kernels=sorted(
                {name for fact in facts for name in fact.get("nondeterministic_kernels", ())}
            ),
        )


def _export_ms(piece: Any) -> list[tuple[str, float]]:
    return [(stage, seconds * 1e3) for stage, seconds in piece.seconds.items() if stage != _COMPILE]


def _stages_ms(pieces: Iterable[Any]) -> dict[str, float]:
    """The time of each stage, summed over `pieces`."""
    stages: dict[str, float] = defaultdict(float)
    for piece in pieces:
        for stage, ms in (*_export_ms(piece), *piece.compiled.facts()["stages_ms"].items()):
            stages[stage] += ms
    return dict(stages)


def _parameter_share(compiler: Compiler, module: nn.Module, record: ForwardRecord) -> float:
    """The share of the parameters, by elements, that the compiled pieces of a forward take."""
    ran = set(record.runs)
    taken = {n for piece in compiler.pieces if piece.compiled in ran for n in piece.parameters}
    gathered = computed_with(module)
    sizes = {
        gathered.get(id(p), id(p)): 0 if is_lazy(p) else p.numel() for p in module.parameters()
    }
    total = sum(sizes.values())
    if total == 0:
        return 1.0 if ran else 0.0
    return sum(size for parameter, size in sizes.items() if parameter in taken) / total


def _step_peak(
    peaks: list[int], facts: list[dict[str, Any]], runs: list[int], beside: list[Any]
) -> int:
    """The peak over all `runs` of pieces, each with its own peak and facts."""
    pieces = {run: (peak, fact) for run, peak, fact in zip(runs, peaks, facts, strict=True)}
    kinds = ("saved_bytes", "output_bytes", "gradient_bytes")
    costs = [
        _C.PieceCost(peak_bytes=peak, **{kind: fact.get(kind, 0) for kind in kinds})
        for peak, fact in pieces.values()
    ]
    numbers = {piece: n for n, piece in enumerate(pieces)}
    return _C.step_peak(costs, [numbers[run] for run in runs], beside)


def _sharding(module: nn.Module, around: list[Beside], step_bytes: int) -> dict[str, Any]:
    units = units_of(module)
    if not units:
        return {}
    held = [(local_bytes(p), p.requires_grad) for p in held_parameters(module)]
    shards = sum(size for size, _ in held)
    state = sum(2 * size for size, trained in held if trained)
    buffers = sum(local_bytes(b) for b in module.buffers())
    return {
        "shard_bytes": shards,
        "optimizer_bytes": state,
        "planned_peak_bytes": shards + state + buffers + step_bytes,
        "units": [
            {
                "name": unit.name,
                "ranks": unit.ranks,
                "gathered_bytes": unit.gathered_bytes,
                "shard_bytes": sum(map(local_bytes, unit.shards.values())),
                "stays_gathered": unit.stays_gathered,
                "runs": sum(unit.name in run.units for run in around),
            }
            for unit in units
        ],
    }


def _graphs(facts: list[dict[str, Any]], moving: str) -> dict[str, Any]:
    asked = [fact for fact in facts if "graphs_recorded" in fact]
    if not asked and not moving:
        return {}
    counts: dict[str, Any] = {
        name: sum(fact[f"graphs_{name}"] for fact in asked)
        for name in ("recorded", "replayed", "in_flight")
    }
    return counts | {
        "refused": sorted({why for f in asked for why in f["graphs_refused"]} | ({moving} - {""}))
    }


def _device_peak_bytes(device: str) -> int:
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0


def _size(count: int) -> str:
    """A number of bytes in KiB or MiB."""
    return f"{count / 2**10:,.1f} KiB" if count < 2**20 else f"{count / 2**20:,.1f} MiB"


def banner(compiler: Compiler, module: nn.Module, mode: str, seconds: float) -> list[str]:
    """At most 10 lines about a module after its first forward in `mode`, one of MODES; none if no piece ran."""
    ran = dict.fromkeys(compiler.last_of[mode].runs)
    if not ran:
        return []
    report, of_mode = RunReport.of(compiler, module), ModeReport.of(compiler, module, mode)
    assert of_mode is not None
    pieces = f"{len(ran)} piece{'s' if len(ran) != 1 else ''}"
    if of_mode.eager_pieces:
        pieces += (
            f" compiled with {of_mode.parameter_share:.0%} of the parameters, "
            f"{len(of_mode.eager_pieces)} in eager PyTorch"
        )
    facts = [piece.facts() for piece in ran]
    nodes, dispatched = (sum(fact[name] for fact in facts) for name in ("nodes", "nodes_aten"))
    # Not those of another mode, whose captures are no part of `seconds`.
    before = {
        run for record in compiler.last_of.values() if record.mode != mode for run in record.runs
    }
    new = [
        piece for piece in compiler.pieces if piece.compiled in ran and piece.compiled not in before
    ]
    times = _stages_ms(new)
    export_ms = sum(ms for piece in new for _, ms in _export_ms(piece))
    built = ("optimize_forward", "gradient", "optimize_joint", "lower")
    build_ms = sum(times.get(stage, 0.0) for stage in built)
    part = "" if of_mode.compiled else "a part of "
    shown = "training" if mode == TRAINING else "inference"
    lines = [
        f"***** ortmodule_py {_C.__version__} runs {part}your model [{shown} mode] *****",
        f"Graph            : {pieces}, {nodes} nodes, {dispatched} through torch's dispatcher",
    ]
    if report.graph_breaks:
        lines.append(f"Graph breaks     : {len(report.graph_breaks)}, see last_run_report(model)")
    exact = "" if report.prediction_exact else " (at least)"
    lines += [
        f"Planned peak     : {_size(report.planned_peak_bytes)}{exact}, "
        f"of it kept for backward {_size(report.saved_bytes)}",
        f"First step takes {seconds:.2f}s where export takes {export_ms / 1e3:.2f}s, "
        f"graph building takes {build_ms / 1e3:.2f}s, planning takes {times.get('plan', 0.0) / 1e3:.2f}s",
        f"Versions: ortmodule_py - {_C.__version__}, torch - {torch.__version__}",
    ]
    return lines
