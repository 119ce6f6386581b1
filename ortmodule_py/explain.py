"""`explain`: which tensors take the memory of a training step, and why each is kept or recomputed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ortmodule_py import _C
from ortmodule_py.compile.step_budget import beside, engine_beside
from ortmodule_py.inference import chart, html
from ortmodule_py.inference.explanation import LARGEST, alive_at_peak
from ortmodule_py.module import as_ortmodule
from ortmodule_py.report import picture
from ortmodule_py.report.compare.module_state import ModuleState
from ortmodule_py.report.compare.observation import Generators
from ortmodule_py.report.plan_table import step_rows, step_runs, symbol_names, training_piece

if TYPE_CHECKING:
    from torch import nn

    from ortmodule_py.base.sharding import Beside
    from ortmodule_py.compile.compiler import Compiler
    from ortmodule_py.module import ORTModule
    from ortmodule_py.options.memory import MemoryRequest

_DECISIONS = {1: "recompute", 2: "compromise", 3: "offload"}
_SHOWN = ("name", "op", "module", "source", "bytes", "kind", "recomputed")
"""What is said of a tensor at the peak."""


@dataclass
class Explanation:
    """The result of `explain`: `print` it, write `to_json()`, or draw it with `save_picture()`."""

    peak_bytes: int
    """Predicted peak of the step over all compiled pieces."""
    unoptimized_peak_bytes: int
    """The same without the memory optimizer."""
    step_time_change: float
    """Predicted relative change of the step time; 0.1 is ten percent more."""
    layers: list[int]
    """Sizes of the groups of repeated layers, of all pieces."""
    largest_at_peak: list[dict[str, Any]]
    """The largest tensors at the peak of `peak_piece`, with module path and source line."""
    decisions: list[dict[str, Any]]
    """For each saved activation whether it is kept or recomputed, and why."""
    rows: list[dict[str, Any]]
    """The rows of the plan table; peak and time are those of the row's piece."""
    pieces: list[dict[str, Any]] = field(default_factory=list)
    """The pieces between graph breaks, in the order in which they run, with their own figures."""
    peak_piece: int = 1
    """The number of the piece that has the peak of the step."""
    host_bytes: int = 0
    """Bytes that are kept in memory of the host."""
    on_device: dict[str, Any] | None = None
    """With a budget, where the plan keeps values on the host: `peak_bytes` and `step_time_change` of the
    fastest plan that does not."""
    eager_pieces: list[str] = field(default_factory=list)
    """The pieces that run in eager PyTorch; no figure includes their bytes."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The dynamic sizes of the batch that the figures hold for."""
    timelines: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    def to_json(self, indent: int | None = 2) -> str:
        """All fields but the timelines as JSON."""
        values = asdict(self)
        del values["timelines"]
        return json.dumps(values, indent=indent)

    def __str__(self) -> str:
        lines = [
            self._headline(),
            *self._host(),
            *self._parts(),
            f"Repeated layers: {' + '.join(map(str, self.layers)) or 'none found'}",
            f"Largest tensors at the peak{self._of(self.peak_piece)} "
            f"({len(self.largest_at_peak)} of all):",
        ]
        for item in self.largest_at_peak:
            lines.append(
                f"  {item['bytes']:>15,}  {item['kind']:<9} {item['op']:<24} "
                f"{item['module']}  {item['source']}"
            )
        for piece in self.pieces:
            lines.append(f"Values that backward needs{self._of(piece['piece'])}:")
            for item in self.decisions:
                if item["piece"] == piece["piece"]:
                    lines.append(
                        f"  {item['bytes']:>15,}  {item['decision']:<10} {item['op']:<24} "
                        f"{item['module']}  {item['reason']}"
                    )
        return "\n".join(lines)

    def _headline(self) -> str:
        peak = f"{self.peak_bytes:,} bytes ({chart.bytes_text(self.peak_bytes)})"
        if self.peak_bytes == self.unoptimized_peak_bytes and not self.step_time_change:
            return f"Predicted peak of a step: {peak}; nothing is recomputed"
        change = 100 * (self.peak_bytes / max(self.unoptimized_peak_bytes, 1) - 1)
        return (
            f"Predicted peak of a step: {peak}, {change:+.1f}% against {self.unoptimized_peak_bytes:,} "
            f"without the memory optimizer; step time {100 * self.step_time_change:+.1f}%"
        )

    def _host(self) -> list[str]:
        if not self.host_bytes:
            return []
        lines = [
            f"Beside it {self.host_bytes:,} bytes ({chart.bytes_text(self.host_bytes)}) of the host, copied "
            "while the steps run"
        ]
        if self.on_device is not None:
            lines.append(
                f"Without the host: {self.on_device['peak_bytes']:,} bytes, step time "
                f"{100 * self.on_device['step_time_change']:+.1f}%"
            )
        return lines

    def _of(self, piece: int) -> str:
        return f", piece {piece} of {len(self.pieces)}" if len(self.pieces) > 1 else ""

    def _parts(self) -> list[str]:
        sizes = ", ".join(f"{name}={size}" for name, size in sorted(self.sizes.items()))
        lines = [f"For the batch: {sizes}"] if sizes else []
        lines += [
            f"In eager PyTorch, and not in any figure: {reason}" for reason in self.eager_pieces
        ]
        if len(self.pieces) == 1:
            return lines
        for piece in self.pieces:
            lines.append(
                f"Piece {piece['piece']} of {len(self.pieces)}: peak {piece['peak_bytes']:,} bytes beside "
                f"{piece['held_by_others_bytes']:,} of other pieces, keeps {piece['saved_bytes']:,}"
            )
            if piece["units"]:
                lines.append(
                    f"  of FSDP2's {', '.join(piece['units'])}: {piece['gathered_bytes']:,} bytes of "
                    "parameters and buffers are gathered meanwhile, which no figure includes"
                )
        return lines

    def save_picture(self, path: str | Path, dark: bool = False) -> None:
        """Draw the live bytes of `peak_piece` over forward and backward, stacked by module: without the
        memory optimizer and, where that differs, as planned. matplotlib takes the format from the ending
        (`.png`, `.svg`, `.pdf`).

        Args:
            path: the file to write.
            dark: draw on a dark background.

        Raises:
            ImportError: matplotlib is not installed.
        """
        picture.draw(self.timelines, path, dark)

    def _repr_html_(self) -> str:
        """For notebooks: the figures, the picture, and tables to unfold."""
        lines = str(self).splitlines()
        end = next(i for i, line in enumerate(lines) if line.startswith("Largest tensors"))
        names = ("bytes", "kind", "op", "module", "source")
        title = f"The {len(self.largest_at_peak)} largest tensors at the peak"
        reasons = ("bytes", "decision", "op", "module", "reason")
        return html.block(
            html.paragraph(lines[0], strong=True),
            *[html.paragraph(line) for line in lines[1:end]],
            picture.svg(self.timelines),
            html.folded_table(title, names, self.largest_at_peak),
            html.folded_table("What backward needs: kept or recomputed", reasons, self.decisions),
        )


def explain(model: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Explain the memory of a training step of `model`.

    Before the first step pass a batch: `explain(model, *batch)` runs one forward with it and restores
    the module's buffers and attributes and the random generators. After a step `explain(model)` is
    enough. The figures hold for this batch, or for that of the last training forward.

    Raises:
        TypeError: `model` is not an ORTModule.
        RuntimeError: there is no batch and no training forward has run, or the module runs in eager
            PyTorch, or a batch is passed under `torch.inference_mode()`.
    """
    model = as_ortmodule(model, "explain")
    given = bool(args or kwargs)
    if given and torch.is_inference_mode_enabled():
        raise RuntimeError(
            "[explain] the batch must be one to train with, but found torch.inference_mode(), where "
            "autograd records nothing; call explain outside of it"
        )
    if given and not model._engine_options.bypass:
        _run_once(model, args, kwargs)
    if training_piece(model._compiler) is None:
        raise RuntimeError(f"[explain] {why_no_plan(model, given)}")
    return _explanation(model._compiler, model._engine_options.memory, model.module)


def why_no_plan(model: ORTModule, ran: bool) -> str:
    """Why `model` has no plan for training, and what to do. `ran`: its forward was called."""
    rule = "the module must have a plan, but found"
    if model._engine_options.bypass:
        return f"{rule} ORTMODULE_BYPASS=1, with which eager PyTorch runs it; unset it"
    left = model._compiler.log.eager_pieces
    if left:
        return (
            f"{rule} that eager PyTorch runs it: {left[0]}; take out of it what cannot be compiled, as "
            "no plan is made for eager PyTorch"
        )
    if ran:
        return f"{rule} that its forward has nothing to compute; give a module that has"
    return f"{rule} that it has run no training forward; give a batch, as in explain(model, *batch)"


def _run_once(model: ORTModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A training forward without side effects but its plan; the verifier does not count it."""
    generators, state = Generators(), ModuleState(model.module, parameters=False)
    try:
        with torch.enable_grad():
            model._run(*args, **kwargs)
    finally:
        state.restore()
        generators.restore()


def _explanation(compiler: Compiler, request: MemoryRequest, module: nn.Module) -> Explanation:
    runs = step_runs(compiler)
    pieces = list(dict.fromkeys(runs))
    facts = {piece: piece.memory(last=True) for piece in pieces}
    last = {piece: piece.facts() for piece in pieces}

    def costs(which: str) -> list[Any]:
        return [
            _C.PieceCost(
                peak_bytes=facts[piece][which]["peak_bytes"],
                saved_bytes=facts[piece][which]["saved_bytes"],
                output_bytes=last[piece]["output_bytes"],
                gradient_bytes=last[piece]["gradient_bytes"],
            )
            for piece in pieces
        ]

    def step_us(which: str) -> float:
        return sum(facts[run][which]["time_us"] for run in runs)

    turns = [pieces.index(run) for run in runs]
    record = compiler.trained
    around = beside(module, record) if record and record.runs == runs else []
    engine = engine_beside(around, with_gathered=False)
    held = _C.held_by_others(costs("after"), turns, engine)
    peaks = [facts[run]["after"]["peak_bytes"] + h for run, h in zip(runs, held, strict=True)]
    at = peaks.index(max(peaks))
    timelines = {"before": runs[at].timeline(False, True), "after": runs[at].timeline(True, True)}
    time = step_us("before")
    decided = [
        {"piece": n, **_decision(stash, facts[piece], request.asked)}
        for n, piece in enumerate(pieces, start=1)
        for stash in facts[piece]["stashes"]
    ]
    return Explanation(
        peak_bytes=peaks[at],
        unoptimized_peak_bytes=_C.step_peak(costs("before"), turns, engine),
        step_time_change=step_us("after") / time - 1 if time else 0.0,
        layers=[group["count"] for one in facts.values() for group in one["layers"]],
        largest_at_peak=[
            {key: storage[key] for key in _SHOWN}
            for storage in alive_at_peak(timelines["after"])[:LARGEST]
        ],
        decisions=decided,
        rows=step_rows(pieces, request, last=True),
        pieces=[
            {"piece": n, **_piece_facts(piece, runs, facts[piece], around, held)}
            for n, piece in enumerate(pieces, start=1)
        ],
        peak_piece=turns[at] + 1,
        host_bytes=sum(facts[run]["after"]["host_bytes"] for run in runs),
        on_device=_on_device(facts[pieces[0]]),
        eager_pieces=list(map(str, compiler.log.eager_pieces)),
        sizes=_sizes(facts[pieces[0]]),
        timelines=timelines,
    )


def _on_device(facts: dict[str, Any]) -> dict[str, Any] | None:
    """Only a module of one piece keeps values on the host."""
    found, time = facts["on_device"], facts["before"]["time_us"]
    if found is None or not time:
        return None
    change = found["time_us"] / time - 1
    return {"peak_bytes": found["peak_bytes"], "step_time_change": change}


def _piece_facts(
    piece: Any, runs: list[Any], facts: dict[str, Any], around: list[Beside], held: list[int]
) -> dict[str, Any]:
    own = [one for run, one in zip(runs, around, strict=False) if run is piece]
    return {
        "runs": runs.count(piece),
        "peak_bytes": facts["after"]["peak_bytes"],
        "unoptimized_peak_bytes": facts["before"]["peak_bytes"],
        "saved_bytes": facts["after"]["saved_bytes"],
        # The units of `fully_shard` whose parameters the piece takes.
        "units": list(dict.fromkeys(name or "the root" for one in own for name in one.units)),
        "gathered_bytes": max((one.around_bytes for one in own), default=0),
        "held_by_others_bytes": max(h for h, run in zip(held, runs, strict=True) if run is piece),
    }


def _sizes(facts: dict[str, Any]) -> dict[str, int]:
    """The sizes by name; of sizes with the same name the first argument's."""
    sizes: dict[str, int] = {}
    for symbol, name in symbol_names(facts).items():
        sizes.setdefault(name, facts["sizes"][symbol])
    return sizes


def _decision(stash: dict[str, Any], facts: dict[str, Any], asked: bool) -> dict[str, Any]:
    boundaries = {name for group in facts["layers"] for name in group["boundaries"]}
    decision = "keep"
    if stash["chosen"]:
        decision = _DECISIONS[stash["chosen"]]
        subgraph = next(p for p in stash["plans"] if p["strategy"] == stash["chosen"])
        reason = f"by {subgraph['cluster_id']}"
        if decision == "offload":
            reason = "copied to the host and back"
    elif stash["refusal"]:
        reason = stash["refusal"]
    elif boundaries & set(stash["values"]) and asked:
        reason = "a layer begins with it"
    else:
        rows = {(r["cluster_id"], r["strategy"]): r["reason"] for r in facts["rows"]}
        reasons = [rows.get((p["cluster_id"], p["strategy"]), "") for p in stash["plans"]]
        without = "the plan does not need it" if asked else "the memory optimizer is off"
        reason = next(filter(None, reasons), without)
    known = {key: stash[key] for key in ("values", "op", "module", "source", "bytes")}
    return {**known, "decision": decision, "reason": reason}
