"""The Dynamo backend: one captured piece in, one compiled piece of the C++ engine out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ortmodule_py import _C
from ortmodule_py.base.changing_numbers import SIZE
from ortmodule_py.base.devices import piece_device
from ortmodule_py.base.errors import CannotLower, origin_of
from ortmodule_py.base.machine_rates import machine_rates
from ortmodule_py.base.torch_state import restored_on_failure
from ortmodule_py.compile.budget import divide, reserve, trained_before, warn_beyond_device
from ortmodule_py.compile.onnx_files import StageFiles
from ortmodule_py.compile.overlap import OverlapGuard
from ortmodule_py.dynamo import progress, settings
from ortmodule_py.dynamo.errors import RecompileLimit
from ortmodule_py.dynamo.fixed_sizes import FixedSizes
from ortmodule_py.dynamo.graph_breaks import changing_sizes, graph_break_of, marking
from ortmodule_py.dynamo.settings import silence_limit_warnings
from ortmodule_py.lower.piece import lower
from ortmodule_py.lower.sizes.bound_symbols import with_reads
from ortmodule_py.options.engine import EngineOptions
from ortmodule_py.options.memory import LEVEL

_log = logging.getLogger("ortmodule_py")


@dataclass
class Piece:
    """A captured piece and how its capture went."""

    compiled: Any
    """`_C.CompiledPiece`."""
    seconds: dict[str, float]
    calls: int
    traced_gradients: list[str]
    whole: bool = False
    """It is all of the module."""


@dataclass
class EagerPiece:
    """A piece that runs in eager PyTorch, and why."""

    reason: str
    origin: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.origin})" if self.origin else self.reason


@dataclass
class Compiler:
    """Compiles the pieces of one module and remembers what happened to them."""

    options: EngineOptions = field(default_factory=EngineOptions.from_environment)
    logger: logging.Logger = _log
    files: StageFiles | None = None
    pieces: list[Piece] = field(default_factory=list)
    eager_pieces: list[EagerPiece] = field(default_factory=list)
    graph_breaks: list[str] = field(default_factory=list)
    """Of each capture that ended at one, so that one and the same comes with every new kind of input."""
    checkpoints_noted: bool = False
    seconds: float = 0.0
    fixed_numbers: set[tuple[str, str]] = field(default_factory=set)
    """Calls, and where they are, that make a capture of each value of a number."""
    fixed_sizes: FixedSizes = field(default_factory=FixedSizes)
    captured_lines: set[str] | None = field(default_factory=set)
    """Where calls are that were captured for this module; None: not known."""
    shared_budget_bytes: int | None = None
    """What all pieces of a forward together have to keep to, if there is a budget in bytes."""
    _reserved: dict[torch.device, int] = field(default_factory=dict, repr=False)
    first_run: int = 0
    """How many runs of pieces this process had seen when the current forward began."""
    ran: list[Any] | None = None
    """The compiled pieces of the current forward, once for each of their runs."""
    trained: list[Any] = field(default_factory=list)
    """The same of the last forward with gradients."""
    said_eager: bool = False
    """Something of the current forward ran in eager PyTorch, as was said now or earlier."""
    ran_whole: bool = False
    """The last forward was one piece, which is all of the module."""
    runs: int = 0
    """How often pieces ran, in the engine or, as was said, in eager PyTorch."""
    parameters: set[int] = field(default_factory=set)
    """Identities of the parameters that pieces take."""
    outside: list[str] = field(default_factory=list)
    """Parameters that were found to be in no piece, although the outputs need them."""
    layers_piece: EagerPiece | None = None
    """What was said of them."""
    pieces_when_left: int = -1
    """How many pieces there were when it was said that a forward ran without any of them."""
    earlier_pieces: Sequence[Any] = ()
    """What other compilers made of the same function."""
    reserved_bytes: Callable[[torch.device], int] = lambda _: 0
    """What a budget for the whole device leaves to others: parameters, optimizer state."""
    has_gradients: Callable[[], bool] = lambda: False
    """Whether the module's parameters have gradients now."""
    accumulates: bool = False
    """Steps were seen that began with gradients of earlier ones, which a budget for all bytes counts."""

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one piece; what cannot be lowered runs in eager and is counted."""
        start = time.perf_counter()
        broken = graph_break_of(gm)
        if broken is not None:
            if broken not in self.graph_breaks:
                self.logger.warning("ortmodule_py: the graph breaks here: %s", broken)
            self.graph_breaks.append(broken)
        compiled = None
        try:
            run = self._compile(gm, example_inputs)
            compiled = self.pieces[-1].compiled
        except (CannotLower, _C.ORTModuleError) as error:
            run = self._leave_to_eager(gm, error)
        for line in self.fixed_sizes.found_again():
            self.note_fixed_number("a line that takes it as it is", ("", line))
        if self.captured_lines is not None:
            for graph in gm.modules():  # bodies of higher-order operators, too
                if isinstance(graph, fx.GraphModule):
                    self.captured_lines.update(origin_of(node)[1] for node in graph.graph.nodes)
        if self.graph_breaks:
            run = marking(run, changing_sizes(gm))
        self.seconds += time.perf_counter() - start
        return self._counted(run, compiled)

    def _counted(self, run: Callable[..., Any], compiled: Any | None) -> Callable[..., Any]:
        """`run`, saying that it ran, and with which parameters: other ones where it runs again in a forward."""
        latest: int | None = None

        def counted(*args: Any) -> Any:
            nonlocal latest
            self.runs += 1
            if compiled is not None and self.ran is not None:
                self.ran.append(compiled)
            if latest in (None, self.first_run):
                self.parameters.update(id(a) for a in args if isinstance(a, torch.nn.Parameter))
            latest = self.first_run
            return run(*args)

        return counted

    def _compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        device = piece_device(example_inputs)
        kernels = "cuda" if self.options.emulate_cuda else device.type
        builder = _C.GraphBuilder(self.options.torch_rng, kernels)
        progress.stage("exporting")
        lowered = lower(gm, example_inputs, builder, device, self.options.torch_rng)
        for name, origin in lowered.fixed_numbers:
            self.note_fixed_number(name, origin)
        for origin, symbol, value in lowered.fixed_sizes:
            if self.fixed_sizes.is_another(origin[1], symbol, value):
                self.note_fixed_number(SIZE, origin)
        progress.stage("compiling")
        if lowered.checkpoints:
            self._take_over_checkpoints(lowered.checkpoints)
        start = time.perf_counter()
        compiled = builder.finish(self._piece_options(lowered.grad_enabled, device))
        seconds = dict(lowered.seconds)
        seconds["compile"] = time.perf_counter() - start
        self.pieces.append(Piece(compiled, seconds, lowered.calls, lowered.traced_gradients))
        if self.accumulates:
            compiled.keep_gradients()
        self._log_capture(self.pieces[-1])
        if self.shared_budget_bytes is not None and lowered.grad_enabled:
            reserve(compiled, self.ran or ())
        if self.files is not None:
            self.files.compiled(compiled)

        run = self._with_warnings(compiled)
        if lowered.reads:
            run = with_reads(run, lowered.reads)
        if lowered.drawn_inputs:
            run = _with_types(run, lowered.drawn_inputs)
        if lowered.checks:
            run = _checked(run, lowered.checks)
        if not lowered.mutated_inputs:
            return run
        return self._guarded(run, gm, OverlapGuard(lowered.mutated_inputs, lowered.fixed_inputs))

    def release(self) -> None:
        """Let go of the module and of all pieces; nothing will run them again."""
        self.pieces.clear()
        self.trained, self.ran, self.files = [], None, None
        self.reserved_bytes, self.has_gradients = lambda _: 0, lambda: False

    def _log_capture(self, piece: Piece) -> None:
        """A line per capture at INFO, a line per stage at VERBOSE."""
        if not self.logger.isEnabledFor(logging.INFO):
            return
        facts = piece.compiled.facts()
        mode = "training" if facts["training"] else "inference"
        self.logger.info(
            "ortmodule_py: captured piece %d for %s: %d calls, %d nodes, %.2f s",
            len(self.pieces),
            mode,
            piece.calls,
            facts["nodes"],
            sum(piece.seconds.values()),
        )
        stages = {name: seconds * 1e3 for name, seconds in piece.seconds.items()}
        for stage, milliseconds in (stages | facts["stages_ms"]).items():
            self.logger.debug("ortmodule_py:   %-16s %9.2f ms", stage, milliseconds)

    def _take_over_checkpoints(self, count: int) -> None:
        """The memory optimizer decides what is recomputed, not torch: said once.

        Who wrote checkpoints wants recomputation, so level 1 holds where nothing else was asked.
        """
        memory = self.options.memory
        what = "what is recomputed is what the memory optimizer was asked for"
        if not memory.asked and not memory.level_is_given:
            memory.level = 1
            what = f"the memory optimizer recomputes by layer instead, as with {LEVEL}=1"
        if self.checkpoints_noted:
            return
        self.checkpoints_noted = True
        found = "1 region" if count == 1 else f"{count} regions"
        what = f"{'is' if count == 1 else 'are'} part of the graph; {what}"
        self.logger.warning("ortmodule_py: %s of torch.utils.checkpoint %s", found, what)

    def _with_warnings(self, compiled: Any) -> Callable[..., Any]:
        """The piece, saying where a new shape does not fit the budget or a peak was not as planned."""
        call, take_warnings, logger = compiled.__call__, compiled.take_warnings, self.logger

        def run(*args: Any) -> Any:
            result = call(*args)
            for warning in take_warnings():
                logger.warning("ortmodule_py: %s", warning)
            return result

        return run

    def _guarded(
        self, run: Callable[..., Any], gm: fx.GraphModule, overlap: OverlapGuard
    ) -> Callable[..., Any]:
        """`run`, but eager PyTorch where a change in place would have to show in another argument."""
        shared = CannotLower("an argument that is changed in place shares memory with another")
        eager: Callable[..., Any] = restored_on_failure()(gm.forward)

        def guarded(*args: Any) -> Any:
            if overlap(args):
                self.note_eager(shared)
                return eager(*args)
            return run(*args)

        return guarded

    def _piece_options(self, training: bool, device: torch.device) -> Any:
        options = _C.PieceOptions()
        options.device = str(device)
        options.emulate_cuda = self.options.emulate_cuda
        options.cuda_graph = self.options.cuda_graph
        options.training = training
        options.verify = self.options.verify
        options.fuel = self.options.fuel
        options.disabled_passes = self.options.disabled_passes
        if self.options.convolution_search:
            options.convolution_search = self.options.convolution_search
        options.memory = self._memory_options(device)
        if self.options.dump is not None:
            options.dump = self._dump
        return options

    def _memory_options(self, device: torch.device) -> Any:
        request = self.options.memory
        options = _C.MemoryOptions()
        options.level = request.level
        options.strict = request.strict
        known = [*self.earlier_pieces, *(piece.compiled for piece in self.pieces)]
        options.mid_training = trained_before(known, self.first_run)
        for element in request.config:
            options.add_config(element.cluster_id, element.strategy, element.count)
        if request.level > 0 or request.budget is not None:
            rates = machine_rates(device)
            if rates is not None:
                options.set_rates(rates.flops_per_us, rates.bytes_per_us)
        budget = request.budget
        if budget is None:
            return options
        if budget.activation_fraction is not None:
            options.budget_fraction = budget.activation_fraction
        elif budget.activation_bytes is not None:
            options.budget_bytes = budget.activation_bytes
        else:
            assert budget.total_bytes is not None
            warn_beyond_device(budget.total_bytes, device, self.logger)
            # Once a forward: what its earlier pieces keep is not there for good.
            if device not in self._reserved:
                self._reserved[device] = self.reserved_bytes(device)
            options.reserved_bytes = self._reserved[device]
            options.budget_bytes = max(budget.total_bytes - options.reserved_bytes, 0)
        if options.budget_bytes is not None and self.shared_budget_bytes is None:
            self.shared_budget_bytes = options.budget_bytes
        return options

    def begin_forward(self) -> None:
        """To be called before the module runs."""
        self.first_run = _C.engine_runs()
        self.ran = []
        self.said_eager = self.ran_whole = False
        self._reserved.clear()
        self._count_old_gradients()
        if torch.is_grad_enabled():
            self.trained = self.ran

    def _count_old_gradients(self) -> None:
        """Under a budget for all bytes: gradients that an earlier step left lie beside this one."""
        budget = self.options.memory.budget
        if self.accumulates or not self.pieces or budget is None or budget.total_bytes is None:
            return
        self.accumulates = torch.is_grad_enabled() and self.has_gradients()
        if self.accumulates:
            for piece in self.pieces:
                piece.compiled.keep_gradients()

    def divide_budget(self) -> None:
        """To be called after a forward in which new pieces ran: from the next step on all of them
        together keep the budget. One that cannot is said, as pieces ran already."""
        if self.shared_budget_bytes is None or not torch.is_grad_enabled():
            return
        peak = divide(self.ran or (), self.shared_budget_bytes)
        if peak is None:
            return
        text = (
            f"[memory budget] the step must fit {self.shared_budget_bytes} bytes, but found "
            f"that its pieces, which the graph breaks part, may together take {peak} bytes at the "
            "least; use a smaller batch, a larger budget, or take the graph breaks out"
        )
        if self.options.memory.strict:
            raise _C.ORTModuleError(text)
        self.logger.warning("ortmodule_py: %s; it runs with the plans of the least peak", text)

    def _dump(self, stage: int, name: str, text: str) -> None:
        assert self.options.dump is not None
        self.options.dump.mkdir(parents=True, exist_ok=True)
        path = self.options.dump / f"{len(self.pieces):02d}_{stage:02d}_{name}.txt"
        path.write_text(text)

    def _leave_to_eager(self, gm: fx.GraphModule, error: Exception) -> Callable[..., Any]:
        self.note_eager(error)
        eager: Callable[..., Any] = restored_on_failure()(gm.forward)
        return eager

    def has_captured(self, origin: tuple[str, str]) -> bool:
        """Whether a call there was captured before, as far as that is known."""
        return self.captured_lines is None or origin[1] in self.captured_lines

    def note_fixed_number(self, name: str, origin: tuple[str, str]) -> None:
        """Say once that this call of `name` makes a capture of each value of a number."""
        where = _place(origin)
        if (name, where) in self.fixed_numbers:
            return
        self.fixed_numbers.add((name, where))
        self.logger.warning(
            "ortmodule_py: a number or size that changes from call to call is a constant of %s, so that "
            "each value of it is a capture%s",
            name,
            f" ({where})" if where else "",
        )

    def note_left(self, wholly: bool) -> None:
        """Count a function that Dynamo has just left to eager PyTorch; `wholly`: no piece ran."""
        reason = _first_line(next(reversed(torch._dynamo.utils.counters["unimplemented"]), ""))
        reason = f"a function that the graph breaks in the midst of: {reason}"
        self.note_eager(CannotLower(reason + (self._unheeded() if wholly else "")))
        if wholly:
            self.pieces_when_left = len(self.pieces)

    def note_layers(self, names: Sequence[str], of_all: int) -> None:
        """Count the layers of parameters that no piece takes, although the outputs need them."""
        outside = [*self.outside, *(name for name in names if name not in self.outside)]
        if len(outside) == len(self.outside):
            return
        layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in outside))
        said, more = layers[:_LAYERS_NAMED], len(layers) - _LAYERS_NAMED
        reason = (
            f"{len(outside)} of {of_all} parameters are in no compiled piece, but in layers that Dynamo "
            f"leaves alone: {', '.join(said)}{f' and {more} more' if more > 0 else ''}"
        )
        self.note_eager(CannotLower(reason))
        self.eager_pieces[:] = [p for p in self.eager_pieces if p is not self.layers_piece]
        self.layers_piece, self.outside = self.eager_pieces[-1], outside

    def _unheeded(self) -> str:
        asked = self.options.memory.asked
        return "; what was asked of the memory optimizer has no effect" if asked else ""

    def note_all_left(self) -> None:
        """Count a forward that ran without a piece, and was not said to."""
        if self.options.fullgraph:
            raise _C.ORTModuleError(
                "[ORTMODULE_FULLGRAPH] the whole module must be one graph, but found that Dynamo "
                "captured nothing of it; unset it to run the module in eager PyTorch"
            )
        reason = "the whole module, of which Dynamo captured nothing"
        if self.runs:
            reason = "the whole module, which ran compiled before; Dynamo has given it up"
        self.note_eager(CannotLower(reason + self._unheeded()))
        self.pieces_when_left = len(self.pieces)

    def note_direct(self, reason: str) -> None:
        """Count a method that trains parameters, but is not captured."""
        self.note_eager(CannotLower(reason + self._unheeded()))

    def note_untraced(self, error: Exception) -> None:
        """Count a call that Dynamo failed on."""
        reason = _first_line(str(error).rpartition("Explanation: ")[2])
        self.note_eager(CannotLower(f"it cannot be traced, {type(error).__name__}: {reason}"))

    def note_eager(self, error: Exception) -> None:
        """Count a piece that eager PyTorch runs, and say so once."""
        self.said_eager, self.ran_whole = True, False
        # Torch's own messages go on with its internals.
        reason = (str(getattr(error, "reason", error)).strip().splitlines() or [""])[0]
        if isinstance(error, RecompileLimit):
            reason = f"a function was captured {settings.CAPTURES_PER_FUNCTION} times, which is the limit"
            silence_limit_warnings()
        piece = EagerPiece(reason, _place(getattr(error, "origin", ("", ""))))
        if not self.options.eager_allowed:
            raise _C.ORTModuleError(
                "[ORTMODULE_FALLBACK_POLICY] with FALLBACK_DISABLE every piece must be compiled, "
                f"but found one that cannot be: {piece}"
            )
        if piece in self.eager_pieces:
            return
        self.eager_pieces.append(piece)
        self.logger.warning("ortmodule_py: a piece of the model runs in eager PyTorch: %s", piece)


_LAYERS_NAMED = 4


def _place(origin: tuple[str, str]) -> str:
    """In words; the path of a layer alone may be a bare number."""
    path, line = origin
    return ", ".join(part for part in (f"layer {path}" if path else "", line) if part)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _with_types(run: Callable[..., Any], types: dict[int, torch.dtype]) -> Callable[..., Any]:
    """`run` with these arguments in the types that it was compiled for."""

    def cast(*args: Any) -> Any:
        given = list(args)
        for position, dtype in types.items():
            given[position] = given[position].to(dtype)
        return run(*given)

    return cast


def _checked(
    run: Callable[..., Any], checks: list[Callable[[torch.Tensor], object]]
) -> Callable[..., Any]:
    """`run` without its last outputs, which are values that eager checks on its way."""

    def checked(*args: Any) -> Any:
        outputs = run(*args)
        first = len(outputs) - len(checks)
        for value, check in zip(outputs[first:], checks, strict=True):
            check(value)
        return outputs[:first]

    return checked
