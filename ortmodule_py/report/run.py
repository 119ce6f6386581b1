"""What was compiled and what it takes: `RunReport` and the banner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ortmodule_py import _C

if TYPE_CHECKING:
    from ortmodule_py.compile.compiler import Compiler

_COMPILE = "compile"
"""The stage of the engine, which reports its own stages; all other stages of a piece are export."""


@dataclass
class RunReport:
    """Captures, plans and bytes of one module."""

    compiled: bool
    """All pieces run in the engine, or the last forward was a single piece that is the whole module."""
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
    nondeterministic_kernels: list[str]
    """Kernels of the last plans and operators of torch whose results may differ from run to run."""

    @classmethod
    def of(cls, compiler: Compiler) -> RunReport:
        """The report over all pieces of a module."""
        facts = [piece.compiled.facts() for piece in compiler.pieces]
        runs = list(compiler.last.runs) if compiler.last else []
        last = [piece.facts() for piece in runs]
        if not last and facts:
            last = runs = [max(facts, key=lambda f: f["last_run"])]
        turns = list(map(id, runs))
        planned = [f["planned_peak_bytes"] or f.get("plan_peak_bytes", 0) for f in last]
        measured = [f["measured_peak_bytes"] for f in last]
        stages: dict[str, float] = {}
        for piece, fact in zip(compiler.pieces, facts, strict=True):
            for stage, seconds in piece.seconds.items():
                if stage != _COMPILE:
                    stages[stage] = stages.get(stage, 0.0) + seconds * 1e3
            for stage, milliseconds in fact["stages_ms"].items():
                stages[stage] = stages.get(stage, 0.0) + milliseconds
        devices = sorted({fact["device"] for fact in facts})
        ran = [fact for fact in facts if fact["forwards"]]
        whole = compiler.last is not None and compiler.last.whole
        return cls(
            compiled=bool(ran) and (whole or not compiler.log.eager_pieces),
            captures=len(facts) + len(compiler.log.eager_pieces),
            plans=sum(fact["plans"] for fact in facts),
            graph_breaks=list(dict.fromkeys(compiler.log.graph_breaks)),
            eager_pieces=list(map(str, compiler.log.eager_pieces)),
            nodes_total=sum(fact["nodes"] for fact in facts),
            nodes_aten_fallback=sum(fact["nodes_aten"] for fact in facts),
            planned_peak_bytes=_step_peak(planned, last, turns),
            measured_peak_bytes=_step_peak(measured, last, turns) if all(measured) else 0,
            prediction_exact=all(fact.get("exact", True) for fact in facts),
            saved_bytes=sum(fact.get("saved_bytes", 0) for fact in last),
            pieces_run=len(last),
            traced_gradients=sorted({op for p in compiler.pieces for op in p.traced_gradients}),
            stages_ms=stages,
            devices=devices,
            device_peak_bytes=sum(map(_device_peak_bytes, devices)),
            cuda_graphs=_graphs(facts),
            nondeterministic_kernels=sorted(
                {name for fact in facts for name in fact.get("nondeterministic_kernels", ())}
            ),
        )


def _step_peak(peaks: list[int], facts: list[dict[str, Any]], runs: list[int]) -> int:
    """The peak over all `runs` of pieces, each with its own peak and facts."""
    pieces = {run: (peak, fact) for run, peak, fact in zip(runs, peaks, facts, strict=True)}
    costs = [
        _C.PieceCost(
            peak_bytes=peak,
            saved_bytes=fact.get("saved_bytes", 0),
            output_bytes=fact.get("output_bytes", 0),
            gradient_bytes=fact.get("gradient_bytes", 0),
        )
        for peak, fact in pieces.values()
    ]
    numbers = {piece: n for n, piece in enumerate(pieces)}
    result: int = _C.step_peak(costs, [numbers[run] for run in runs])
    return result


def _graphs(facts: list[dict[str, Any]]) -> dict[str, Any]:
    asked = [fact for fact in facts if "graphs_recorded" in fact]
    if not asked:
        return {}
    counts: dict[str, Any] = {
        name: sum(fact[f"graphs_{name}"] for fact in asked)
        for name in ("recorded", "replayed", "in_flight")
    }
    return counts | {"refused": sorted({why for f in asked for why in f["graphs_refused"]})}


def _device_peak_bytes(device: str) -> int:
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def banner(compiler: Compiler, mode: str, seconds: float) -> list[str]:
    """At most 10 lines about a module after its capture."""
    report = RunReport.of(compiler)
    pieces = f"{len(compiler.pieces)} piece{'s' if len(compiler.pieces) != 1 else ''}"
    if compiler.log.eager_pieces:
        pieces += f" compiled, {len(compiler.log.eager_pieces)} in eager PyTorch"
    share = report.nodes_aten_fallback
    times = report.stages_ms
    export = sum(
        seconds
        for piece in compiler.pieces
        for stage, seconds in piece.seconds.items()
        if stage != _COMPILE
    )
    build = sum(
        times.get(stage, 0.0)
        for stage in ("optimize_forward", "gradient", "optimize_joint", "lower")
    )
    lines = [
        f"***** ortmodule_py {_C.__version__} runs your model [{mode} mode] *****",
        f"Graph            : {pieces}, {report.nodes_total} nodes, {share} through torch's dispatcher",
    ]
    if report.graph_breaks:
        lines.append(f"Graph breaks     : {len(report.graph_breaks)}, see last_run_report(model)")
    exact = "" if report.prediction_exact else " (at least)"
    lines += [
        f"Planned peak     : {_mib(report.planned_peak_bytes)}{exact}, "
        f"of it kept for backward {_mib(report.saved_bytes)}",
        f"First step takes {seconds:.2f}s where export takes {export:.2f}s, "
        f"graph building takes {build / 1e3:.2f}s, planning takes {times.get('plan', 0.0) / 1e3:.2f}s",
        f"Versions: ortmodule_py - {_C.__version__}, torch - {torch.__version__}",
    ]
    return lines
