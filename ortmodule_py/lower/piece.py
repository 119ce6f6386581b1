"""From TorchDynamo's graph to the C++ graph builder.

`lower` traces the torch-level graph that Dynamo passes to a backend on fake tensors, and writes the ATen
graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py import _C
from ortmodule_py.base.changing_numbers import Fixed
from ortmodule_py.base.errors import CannotLower, Origin, origin_of
from ortmodule_py.base.torch_state import restored_on_failure, without_saved_tensors_hooks
from ortmodule_py.lower.emitter import Emitter, Trace
from ortmodule_py.lower.inputs import drawn_inputs, is_fixed
from ortmodule_py.lower.sizes.bound_symbols import BoundSymbols
from ortmodule_py.lower.sizes.rounded import fix_rounded_sizes
from ortmodule_py.trace import record
from ortmodule_py.trace.decompositions import recurrent_layers
from ortmodule_py.trace.drawn_numbers import in_double
from ortmodule_py.trace.gradient_effects import has_tangents
from ortmodule_py.trace.interpreter import PieceTrace
from ortmodule_py.trace.patched_kernels import preserved_composites
from ortmodule_py.trace.record import TracedFunction
from ortmodule_py.trace.untraceable import why_untraceable

_CPU = torch.device("cpu")


@dataclass
class LoweredPiece:
    """Facts about a lowered piece that the builder does not have."""

    grad_enabled: bool
    """Whether a part of the piece runs with gradients on; otherwise it is an inference piece."""
    calls: int
    """ATen calls."""
    mutated_inputs: list[int]
    """Flat inputs written back after forward; at run time none of them may alias another input."""
    fixed_inputs: list[bool]
    """Whether each flat input is a tensor with constant sizes and strides."""
    drawn_inputs: dict[int, torch.dtype]
    """Flat inputs that are Python's random numbers, with the dtype that the piece expects."""
    checkpoints: int
    """Regions of torch.utils.checkpoint."""
    traced_gradients: list[str]
    """Operators whose gradient was traced, as the builder has no rule for them."""
    fixed_numbers: list[Fixed]
    """Calls that specialize a number which may change with each call."""
    checks: list[Callable[[Tensor], object]]
    """One per extra output, after the piece's own: raises eager's error if the value is wrong."""
    reads: list[int]
    """Flat inputs that are read as integers; their values are extra inputs after all others."""
    fixed_sizes: list[tuple[Origin, str, int]]
    """(line, symbol, value) of specialized sizes."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""


@restored_on_failure()
@without_saved_tensors_hooks()
def lower(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    builder: _C.GraphBuilder,
    device: torch.device = _CPU,
    eager_draws: bool = False,
) -> LoweredPiece:
    """Write `gm`, whose tensors are on `device`, into `builder`.

    With `eager_draws` random numbers must be those of eager PyTorch.

    Raises:
        CannotLower: the graph would differ from eager PyTorch; with the source line.
    """
    clock = _Clock()
    fixed_sizes = fix_rounded_sizes(gm)
    placeholders = gm.graph.find_nodes(op="placeholder")
    fake_mode, inputs = record.fake_inputs(example_inputs, placeholders)
    clock.lap("inputs")
    trace = PieceTrace(gm, fake_mode, torch.is_grad_enabled(), eager_draws)
    for i in in_double(gm, list(drawn_inputs(gm, inputs))):
        with fake_mode:
            inputs[i] = inputs[i].double()
        trace.doubles.add(placeholders[i])
    whole = [] if has_tangents(gm) else preserved_composites(builder.has_rule)
    symbols = BoundSymbols(builder, inputs)
    has_rule = builder.has_rule if whole and not trace.has_inner_gradients else lambda _: False
    with recurrent_layers.kept_whole(has_rule):
        graph = trace.run(inputs, whole)
    clock.lap("trace")
    emitter = Emitter(
        builder,
        graph,
        symbols=symbols,
        bodies=trace.bodies,
        trace=_function_tracer(fake_mode, device),
        grad_enabled=trace.grad_enabled,
        device=device,
    )
    emitter.inputs(placeholders, example_inputs, inputs)
    symbols.bind_numbers([graph, *(m.graph for m in gm.modules() if isinstance(m, fx.GraphModule))])
    emitter.calls()
    emitter.results(
        trace.output_count, trace.mutated, trace.identical_outputs, trace.eager_strides()
    )
    clock.lap("emit")
    clock.seconds["emit"] -= emitter.gradient_seconds
    clock.seconds["gradients"] = emitter.gradient_seconds
    return LoweredPiece(
        grad_enabled=trace.grad_enabled,
        calls=emitter.writer.count,
        mutated_inputs=list(trace.mutated),
        fixed_inputs=list(map(is_fixed, inputs)),
        drawn_inputs=drawn_inputs(gm, inputs),
        checkpoints=trace.checkpoints,
        traced_gradients=emitter.traced_gradients,
        fixed_numbers=trace.fixed_numbers + emitter.writer.fixed_numbers,
        checks=[check for _, check in emitter.checks],
        reads=symbols.reads,
        fixed_sizes=[(origin_of(node), symbol, value) for node, symbol, value in fixed_sizes],
        seconds=clock.seconds,
    )


def _function_tracer(fake_mode: Any, device: torch.device) -> Trace:
    """Traces backward bodies and gradients of operators, apart from the piece."""

    def trace_function(
        function: Callable[..., Any], args: Sequence[Any], what: str
    ) -> TracedFunction:
        try:
            patterns = [record.fake_like(arg, fake_mode) for arg in args]
            # The graph contains the casts of autocast already, and eager runs backward without it.
            with torch.autocast(device.type, enabled=False):
                return TracedFunction(record.record(function, patterns, fake_mode).graph)
        except CannotLower:
            raise
        except Exception as error:  # an operator whose gradient torch itself cannot trace
            raise CannotLower(why_untraceable(what, error)) from error

    return trace_function


class _Clock:
    """Wall seconds per stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._last
        self._last = now
