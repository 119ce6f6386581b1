"""Where the bytes of a training step are, and what the memory optimizer did about them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .memory_report import plan_rows, training_piece
from .observation import Generators
from .verifier import ModuleState

if TYPE_CHECKING:
    from .module import ORTModule

_LARGEST = 10


@dataclass
class Explanation:
    """The answer of `explain`; `print` it, write `to_json()`, or draw it with `save_picture()`."""

    peak_bytes: int
    """Predicted peak of the step, as it runs."""
    unoptimized_peak_bytes: int
    """The same without the memory optimizer."""
    step_time_change: float
    """Predicted relative change of the step's time; 0.1 is ten percent more."""
    layers: list[int]
    """Repeated layers that were found, by group."""
    largest_at_peak: list[dict[str, Any]]
    """The largest tensors alive at the peak, with module path and source line."""
    decisions: list[dict[str, Any]]
    """What happens to each value that backward needs, and why."""
    rows: list[dict[str, Any]]
    """The table of plans."""
    timelines: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    def to_json(self, indent: int | None = 2) -> str:
        """All but the timelines as JSON."""
        values = asdict(self)
        del values["timelines"]
        return json.dumps(values, indent=indent)

    def __str__(self) -> str:
        change = 100 * (self.peak_bytes / max(self.unoptimized_peak_bytes, 1) - 1)
        lines = [
            f"Predicted peak of a step: {self.peak_bytes:,} bytes ({change:+.1f}% against "
            f"{self.unoptimized_peak_bytes:,} without the memory optimizer), step time "
            f"{100 * self.step_time_change:+.1f}%",
            f"Repeated layers: {' + '.join(map(str, self.layers)) or 'none found'}",
            f"Largest tensors at the peak ({len(self.largest_at_peak)} of all):",
        ]
        for item in self.largest_at_peak:
            lines.append(
                f"  {item['bytes']:>15,}  {item['kind']:<9} {item['op']:<24} "
                f"{item['module']}  {item['source']}"
            )
        lines.append("Values that backward needs:")
        for item in self.decisions:
            lines.append(
                f"  {item['bytes']:>15,}  {item['decision']:<10} {item['op']:<24} {item['module']}"
                f"  {item['reason']}"
            )
        return "\n".join(lines)

    def save_picture(self, path: str | Path) -> None:
        """Memory over forward and backward, stacked by module, before and after, as PNG or HTML's
        picture formats that matplotlib knows (`.png`, `.svg`, `.pdf`).

        Raises:
            ImportError: matplotlib is not installed.
        """
        from .memory_picture import draw

        draw(self.timelines, path)


def explain(model: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Explain the memory of `model`'s training step.

    Before the first step give a batch: `explain(model, *batch)` runs one forward with it and puts
    the module's tensors and attributes and the random generators back as they were. After a step,
    `explain(model)` is enough.

    Raises:
        TypeError: `model` is not an ORTModule.
        RuntimeError: no batch was given and no training forward has run, or eager PyTorch runs the
            module, or it is called under `torch.inference_mode()` with a batch.
    """
    from .module import ORTModule

    if not isinstance(model, ORTModule):
        raise TypeError(f"[explain] model must be an ORTModule, but found {type(model).__name__}")
    given = bool(args or kwargs)
    if given and torch.is_inference_mode_enabled():
        raise RuntimeError(
            "[explain] the batch must be one to train with, but found torch.inference_mode(), where "
            "autograd records nothing; call explain outside of it"
        )
    if given and not model._engine_options.bypass:
        _run_once(model, args, kwargs)
    piece = training_piece(model._compiler)
    if piece is None:
        raise RuntimeError(f"[explain] {why_no_plan(model, given)}")
    return _explanation(piece, model._engine_options.memory)


def why_no_plan(model: ORTModule, ran: bool) -> str:
    """Why nothing of `model` is planned for training, and what to do; `ran`: a batch was there."""
    rule = "the module must have a plan, but found"
    if model._engine_options.bypass:
        return f"{rule} ORTMODULE_BYPASS=1, with which eager PyTorch runs it; unset it"
    left = model._compiler.eager_pieces
    if left:
        return (
            f"{rule} that eager PyTorch runs it: {left[0]}; take out of it what cannot be compiled, as "
            "no plan is made for eager PyTorch"
        )
    if ran:
        return f"{rule} that its forward has nothing to compute; give a module that has"
    return f"{rule} that it has run no training forward; give a batch, as in explain(model, *batch)"


def _run_once(model: ORTModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A training forward that leaves no trace but its plan: not in the verifier's count either."""
    generators, state = Generators(), ModuleState(model.module)
    try:
        with torch.enable_grad():
            model._run(*args, **kwargs)
    finally:
        state.restore()
        generators.restore()


def _explanation(piece: Any, request: Any) -> Explanation:
    facts = piece.memory()
    before, after = facts["before"], facts["after"]
    timelines = {"before": piece.timeline(False), "after": piece.timeline(True)}
    now = timelines["after"]
    alive = [
        storage
        for storage in now["storages"]
        if storage["first_step"] <= now["peak_step"] <= storage["last_step"]
    ]
    alive.sort(key=lambda storage: -storage["bytes"])
    return Explanation(
        peak_bytes=after["peak_bytes"],
        unoptimized_peak_bytes=before["peak_bytes"],
        step_time_change=after["time_us"] / before["time_us"] - 1 if before["time_us"] else 0.0,
        layers=[group["count"] for group in facts["layers"]],
        largest_at_peak=[_shown(storage) for storage in alive[:_LARGEST]],
        decisions=[_decision(stash, facts, request.asked) for stash in facts["stashes"]],
        rows=plan_rows(piece, request),
        timelines=timelines,
    )


def _shown(storage: dict[str, Any]) -> dict[str, Any]:
    keys = ("name", "op", "module", "source", "bytes", "kind", "recomputed")
    return {key: storage[key] for key in keys}


def _decision(stash: dict[str, Any], facts: dict[str, Any], asked: bool) -> dict[str, Any]:
    boundaries = {name for group in facts["layers"] for name in group["boundaries"]}
    if stash["chosen"]:
        decision = "recompute" if stash["chosen"] == 1 else "compromise"
        plan = next(p for p in stash["plans"] if p["strategy"] == stash["chosen"])
        reason = f"by {plan['cluster_id']}"
    elif stash["refusal"]:
        decision, reason = "keep", stash["refusal"]
    elif boundaries & set(stash["values"]) and asked:
        decision, reason = "keep", "a layer begins with it"
    else:
        rows = {(r["cluster_id"], r["strategy"]): r["reason"] for r in facts["rows"]}
        reasons = [rows.get((p["cluster_id"], p["strategy"]), "") for p in stash["plans"]]
        decision = "keep"
        reason = next(filter(None, reasons), "no plan needs it" if asked else "nothing was asked")
    return {
        "values": stash["values"],
        "op": stash["op"],
        "module": stash["module"],
        "source": stash["source"],
        "bytes": stash["bytes"],
        "decision": decision,
        "reason": reason,
    }
