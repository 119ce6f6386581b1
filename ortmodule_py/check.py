"""`check`: compares ORTModule with eager PyTorch on the user's module and batch."""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import torch
from torch import nn

from ortmodule_py.base.cpu_memory import install_counting_allocator
from ortmodule_py.base.sharding import units_of
from ortmodule_py.base.tree import tensors
from ortmodule_py.inference import html
from ortmodule_py.module import ORTModule, quiet_twin
from ortmodule_py.report.compare.comparison import Comparison, Eager, compare
from ortmodule_py.report.compare.observation import Batch, Generators, observe, scalar_loss
from ortmodule_py.report.run import RunReport
from ortmodule_py.testing import measure_peak

_REPEATS = 5
_SECONDS = 20.0
"""No repeat starts after this time."""


@dataclass
class CheckReport:
    """The result of `check`: `print` it, or write `to_json()`."""

    ok: bool
    """No difference from eager PyTorch exceeds the tolerance, which follows from eager's own error."""
    differences: list[str]
    """What differs, the worst first, by name of the parameter, output, buffer or input."""
    loss: float | None
    eager_loss: float | None
    worst_gradient: str | None
    """The parameter (or input) whose gradient error is the largest multiple of its tolerance."""
    worst_gradient_error: float
    """Its largest absolute error."""
    worst_gradient_allowed: float
    """Its tolerance."""
    largest_gradient: float
    gradients: int
    """How many gradients were compared."""
    absent_gradients: list[str]
    """Parameters without a gradient, in eager PyTorch and here."""
    reference: str
    """"float64", or why the reference is eager PyTorch instead."""
    eager_draws: bool
    """The model draws random numbers, so it was compared with those of eager (`ORTMODULE_RNG=torch`)."""
    peak_bytes: int
    """Peak of forward and backward above the bytes allocated before, median."""
    eager_peak_bytes: int
    step_ms: float
    """Forward and backward in milliseconds of wall time, median."""
    eager_step_ms: float
    repeats: int
    first_step_s: float
    """Seconds of the first forward and backward, with capture and compilation."""
    compiled: bool
    """All pieces run in the engine."""
    graph_breaks: list[str]
    eager_pieces: list[str]
    nodes_total: int
    nodes_aten_fallback: int
    """Nodes that run through torch's dispatcher."""
    aten_share: float
    """Their share of all nodes, 0 to 1."""
    aten_operators: dict[str, int]
    """Their number by ATen operator."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    def to_json(self, indent: int | None = 2) -> str:
        """All fields as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def _pairs(self) -> tuple[list[str], list[str], list[str]]:
        """Losses, peaks in MiB and milliseconds of a step: ours and eager's."""
        losses = ["-" if v is None else f"{v:.6g}" for v in (self.loss, self.eager_loss)]
        peaks = [f"{v / 2**20:.1f}" for v in (self.peak_bytes, self.eager_peak_bytes)]
        return losses, peaks, [f"{v:.1f}" for v in (self.step_ms, self.eager_step_ms)]

    def __str__(self) -> str:
        verdict = "as in eager PyTorch" if self.ok else "NOT as in eager PyTorch"
        losses, peaks, times = self._pairs()
        rows = [
            ("", "ORTModule", "eager"),
            ("loss", *losses),
            ("peak of a step, MiB", *peaks),
            (f"step, ms (of {self.repeats})", *times),
        ]
        lines = [f"This step is {verdict}."]
        lines += [f"{name:<22}{ours:>14}{eager:>14}" for name, ours, eager in rows]
        lines.append(f"{'first step, s':<22}{self.first_step_s:>14.2f}")
        if self.worst_gradient is not None:
            lines.append(
                f"worst gradient of {self.gradients}: {self.worst_gradient}, error "
                f"{self.worst_gradient_error:.3g}, allowed {self.worst_gradient_allowed:.3g}, "
                f"largest gradient {self.largest_gradient:.3g}"
            )
        lines.append(f"reference: {self.reference}{', with eager’s draws' * self.eager_draws}")
        lines.append(
            f"through torch's dispatcher: {self.nodes_aten_fallback} of {self.nodes_total} nodes "
            f"({100 * self.aten_share:.1f}%)"
        )
        lines += [f"  {count} x {name}" for name, count in self.aten_operators.items()]
        lines += [f"graph break: {reason}" for reason in self.graph_breaks]
        lines += [f"runs in eager PyTorch: {reason}" for reason in self.eager_pieces]
        lines += [f"difference: {text}" for text in self.differences]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, a table, and the rest of the text."""
        verdict, *lines = str(self).splitlines()
        losses, peaks, times = self._pairs()
        gradient = "no gradient was compared"
        if self.worst_gradient is not None:
            gradient = next(line for line in lines if line.startswith("worst gradient"))
        rows = [
            ("loss", *losses),
            ("peak of a step", *(f"{peak} MiB" for peak in peaks)),
            ("step", *(f"{time} ms" for time in times)),
        ]
        return html.block(
            html.paragraph(("\u2713 " if self.ok else "\u2717 ") + verdict, strong=True),
            html.table(("", "ORTModule", "eager PyTorch"), rows),
            html.paragraph(f"{gradient}; {len(self.differences)} differences"),
            *[html.paragraph(f"difference: {text}") for text in self.differences],
            html.folded("all", f"<pre>{escape(str(self))}</pre>"),
        )


def check(model: nn.Module, *args: Any, **kwargs: Any) -> CheckReport:
    """Compare a training step of `model` in the engine with eager PyTorch, on the user's batch.

    Works on copies of the module and of the batch: the module, its gradients, buffers, mode and
    compiled pieces, the batch and the random generators are left unchanged. The loss is the output if it
    is a scalar, else its `loss`, else the first element of a tuple if that is a scalar, else a sum of
    all floating point and complex outputs with fixed weights. The error of a gradient against float64 may be twice
    that of eager PyTorch, or 1e-4 of the largest gradient. A model that draws random numbers is compared
    with the numbers of eager, and timed with its own.

    On the CPU the peak is that of torch's allocator; the counting allocator stays installed.

    Args:
        model: an ORTModule, or any other module, which is then wrapped with the current environment.
        args: positional arguments of the model's forward.
        kwargs: keyword arguments of the model's forward.

    Raises:
        TypeError: `model` is not a module, or it cannot be copied.
        Exception: the model's own error in eager PyTorch.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"[check] model must be a torch.nn.Module, but found {type(model).__name__}"
        )
    install_counting_allocator()
    generators = Generators()
    try:
        return _compared(model, args, kwargs, generators)
    finally:
        generators.restore()


def _copied(module: nn.Module) -> nn.Module:
    if units_of(module):
        raise TypeError(
            "[check] the module must allow copy.deepcopy, but found that fully_shard has sharded it, "
            "which forbids copies; check the model before you shard it"
        )
    try:
        twin = copy.deepcopy(module)
    except Exception as error:
        raise TypeError(
            "[check] the module must allow copy.deepcopy, but found "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ) from error
    twin.zero_grad(set_to_none=True)
    return twin


def _compared(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], generators: Generators
) -> CheckReport:
    """Compares, then measures. The user's own module is only copied."""
    source = model.module if isinstance(model, ORTModule) else model

    def target(module: nn.Module) -> Callable[..., Any]:
        """What eager PyTorch runs: the module, or a function that selects the outputs of the model."""
        return quiet_twin(model, module)._target()

    eager = Eager(_copied(source), target, args, kwargs, generators)
    plain = eager.observe()
    draws = generators.torch_has_drawn()
    eager.module = _copied(source)  # with the buffers from before the step
    module = _copied(source)
    compared = quiet_twin(model, module, torch_rng=True if draws else None)
    generators.restore()
    start = time.perf_counter()
    ours = observe(compared, module, Batch(args, kwargs))
    first_step_s = time.perf_counter() - start
    comparison = compare(ours, plain, eager)
    measured = quiet_twin(model, module) if draws else compared
    runners = ((measured, module), (target(eager.module), eager.module))
    costs, eager_costs = _costs(runners, args, kwargs)
    run = RunReport.of(measured._compiler, measured.module)
    return CheckReport(
        loss=ours.loss,
        eager_loss=plain.loss,
        absent_gradients=[n for n, gradient in plain.gradients.items() if gradient is None],
        eager_draws=draws,
        peak_bytes=int(statistics.median(peak for _, peak in costs)),
        eager_peak_bytes=int(statistics.median(peak for _, peak in eager_costs)),
        step_ms=statistics.median(seconds for seconds, _ in costs) * 1e3,
        eager_step_ms=statistics.median(seconds for seconds, _ in eager_costs) * 1e3,
        repeats=len(costs),
        first_step_s=first_step_s,
        compiled=run.compiled,
        graph_breaks=run.graph_breaks,
        eager_pieces=run.eager_pieces,
        nodes_total=run.nodes_total,
        nodes_aten_fallback=run.nodes_aten_fallback,
        aten_share=run.nodes_aten_fallback / max(run.nodes_total, 1),
        aten_operators=_aten_operators(measured),
        **_verdict(comparison),
    )


def _costs(
    runners: Sequence[tuple[Callable[..., Any], nn.Module]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[list[tuple[float, int]]]:
    """Seconds and peaks of each runner, interleaved so that noise of the machine affects all alike.

    The first step of each is a warm-up.
    """
    seen: list[list[tuple[float, int]]] = [[] for _ in runners]
    begin = time.perf_counter()
    for repeat in range(_REPEATS + 1):
        if repeat > 1 and time.perf_counter() - begin > _SECONDS:
            break
        for (run, module), measured in zip(runners, seen, strict=True):
            module.zero_grad(set_to_none=True)
            cost = _timed_step(run, Batch(args, kwargs))
            if repeat:
                measured.append(cost)
    return seen


def _verdict(comparison: Comparison) -> dict[str, Any]:
    worst = comparison.worst("gradient")
    return {
        "ok": comparison.ok,
        "differences": comparison.differences,
        "worst_gradient": worst.name if worst else None,
        "worst_gradient_error": worst.error if worst else 0.0,
        "worst_gradient_allowed": worst.allowed if worst else 0.0,
        "largest_gradient": comparison.largest_gradient,
        "gradients": sum(d.kind == "gradient" for d in comparison.deviations),
        "reference": comparison.reference,
    }


def _aten_operators(model: ORTModule) -> dict[str, int]:
    """How often the nodes that run through torch's dispatcher use each operator, the most frequent first."""
    start = 'ATen<operator="'
    counts: Counter[str] = Counter()
    for piece in model._compiler.pieces:
        for line in piece.compiled.text("joint").splitlines():
            node = line.partition(" = ")[2]  # lines without it belong to the body of another node
            if node.startswith(start):
                counts[node[len(start) :].partition('"')[0]] += 1
    return dict(counts.most_common())


def _timed_step(run: Callable[..., Any], batch: Batch) -> tuple[float, int]:
    """Seconds, and peak bytes above the start, of a forward and backward."""
    on_cuda = any(tensor.is_cuda for tensor in tensors((batch.args, batch.kwargs)))
    if on_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with measure_peak() as measured:
        start = time.perf_counter()
        with torch.enable_grad():
            result = run(*batch.args, **batch.kwargs)
            loss = scalar_loss(result)
        if loss is not None:
            loss.backward()
        if on_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    if on_cuda:
        return seconds, torch.cuda.max_memory_allocated() - before
    return seconds, measured.peak_above_start
