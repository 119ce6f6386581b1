"""The compiler that Dynamo calls: from one captured graph to one compiled piece of the C++ engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ortmodule_py import _C
from ortmodule_py.base.changing_numbers import SIZE
from ortmodule_py.base.devices import piece_device
from ortmodule_py.base.errors import CannotLower, origin_of
from ortmodule_py.base.fused_attention import attention_form
from ortmodule_py.base.generated_code import enable_generated_code
from ortmodule_py.base.graph_convolutions import choose_graph_convolutions
from ortmodule_py.base.offload import why_not
from ortmodule_py.base.product_epilogues import choose_product_epilogues
from ortmodule_py.base.sharding import count_of_units, gathered_ids
from ortmodule_py.base.torch_state import restored_on_failure
from ortmodule_py.compile.assigned_data import drop_own_data, take_assigned_data, with_assigned_data
from ortmodule_py.compile.bounded_lookups import split_bounded_lookups
from ortmodule_py.compile.capture_log import CaptureLog, EagerPiece
from ortmodule_py.compile.changed_inputs import take_changed_inputs, with_versions_kept
from ortmodule_py.compile.changed_later import (
    changed_later,
    on_copies,
    read_before_change,
    with_copies,
)
from ortmodule_py.compile.forward_record import TRAINING, ForwardRecord
from ortmodule_py.compile.onnx_files import StageFiles
from ortmodule_py.compile.output_hooks import take_output_hooks, with_output_hooks
from ortmodule_py.compile.overlap import OverlapGuard
from ortmodule_py.compile.shared_outputs import take_shared_outputs
from ortmodule_py.compile.sparse_lookups import REASON, SparseLookups, take_sparse_lookups
from ortmodule_py.compile.step_budget import StepBudget
from ortmodule_py.dynamo import patches, progress
from ortmodule_py.dynamo.early_hooks import hook_out_of_order, put_arguments_first
from ortmodule_py.dynamo.fixed_sizes import fixed_sizes, place_of
from ortmodule_py.dynamo.graph_breaks import changing_sizes, graph_break_of, mark_changing_sizes
from ortmodule_py.dynamo.patches.inner_gradients import break_at_inner_gradients
from ortmodule_py.dynamo.patches.table import running_torch
from ortmodule_py.lower.piece import LoweredPiece, lower
from ortmodule_py.lower.sizes.bound_symbols import with_reads
from ortmodule_py.lower.tensor_meta import first_sizes
from ortmodule_py.options.engine import EngineOptions

MOVING = "the parameters of fully_shard move with each step, so its units are not recorded"
_EXACT = "a line that needs its exact value"


@dataclass
class Piece:
    """A compiled piece and the facts of its capture."""

    compiled: Any
    """`_C.CompiledPiece`."""
    seconds: dict[str, float]
    """By stage."""
    calls: int
    """ATen calls in the graph."""
    traced_gradients: list[str]
    """Operators whose gradient was traced, as the builder has no rule for them."""
    whole: bool = False
    """Whether it is the whole module."""
    parameters: set[int] = field(default_factory=set)
    """Ids of the parameters that it has taken as inputs."""
    sharded: bool = False
    """Whether FSDP2 gathers its parameters for each run."""


class _Running(threading.local):
    """Of a thread: the record of its current forward."""

    record: ForwardRecord | None = None


class _Forward:
    """The context of `Compiler.forward`: a class, as a generator's time counts in small models."""

    __slots__ = ("_compiler", "_outer", "_record", "_start", "_trained")

    def __init__(self, compiler: Compiler, mode: str) -> None:
        self._compiler, self._record = compiler, ForwardRecord(mode)

    def __enter__(self) -> ForwardRecord:
        compiler, record = self._compiler, self._record
        self._outer, self._trained = compiler._running.record, compiler.trained
        compiler.budget.begin_forward(compiler.pieces)
        if torch.is_grad_enabled():
            compiler.trained = record
        compiler.last = compiler.last_of[record.mode] = compiler._running.record = record
        self._start = time.perf_counter()
        return record

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        compiler, record = self._compiler, self._record
        compiler._running.record = self._outer
        if not record.runs:
            compiler.trained = self._trained
        if kind is not None:
            return
        record.seconds = time.perf_counter() - self._start
        if not record.captures:
            compiler.timed[record.mode] = record
        compiler.budget.end_forward(record)


class Compiler:
    """Compiles the pieces of one module; Dynamo calls it with each captured graph.

    A budget for the whole device counts the parameters of `module`. Pass `log` and `budget` to share
    them between compilers.
    """

    def __init__(
        self,
        options: EngineOptions,
        logger: logging.Logger,
        module: nn.Module | None = None,
        *,
        log: CaptureLog | None = None,
        budget: StepBudget | None = None,
    ) -> None:
        self.options = options
        self.logger = logger
        self.log = log or CaptureLog(options, logger)
        self.budget = budget or StepBudget(options.memory, logger, module)
        self.log.current_record = lambda: self.record() or self.last
        self.files: StageFiles | None = None
        self.pieces: list[Piece] = []
        self.last: ForwardRecord | None = None
        """The record of the last forward."""
        self.trained: ForwardRecord | None = None
        """The record of the last forward with gradients."""
        self.last_of: dict[str, ForwardRecord] = {}
        """The record of the last forward of each mode."""
        self.timed: dict[str, ForwardRecord] = {}
        """The same for forwards without a capture."""
        self.runs = 0
        """Runs of pieces, in the engine or (as reported) in eager PyTorch."""
        self.moving = ""
        """`MOVING` if that kept a piece from being recorded as a CUDA graph."""
        self.parameters: set[int] = set()
        """Ids of the parameters that are inputs of pieces."""
        self._running = _Running()
        self._uncaptured_pieces = -1
        """The number of pieces when a forward without any was last reported."""

    def forward(self, mode: str = TRAINING) -> _Forward:
        """A context for one forward of the module, which records its runs and captures."""
        return _Forward(self, mode)

    def record(self) -> ForwardRecord | None:
        """The record of this thread's current forward."""
        return self._running.record

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one piece; falls back to eager PyTorch, and reports it, if it cannot be lowered."""
        log = self.log
        if any(map(_is_of_transform, example_inputs)):
            raise torch._dynamo.exc.SkipFrame("a tensor of a transform of torch.func")
        missing = patches.missing_for(gm)
        if missing is not None:
            log.report_eager(
                CannotLower(f"{missing.name!r} of build_info() does not hold in this torch")
            )
            raise torch._dynamo.exc.SkipFrame(missing.state)
        if running_torch() < (2, 13):
            put_arguments_first(gm)
            self._refuse_hook_out_of_order(gm)
        broken = graph_break_of(gm)
        if broken is not None:
            log.report_graph_break(broken)
        changing = changing_sizes(gm)  # of what Dynamo knows: further outputs may follow
        drop_own_data(gm)
        split_bounded_lookups(gm)
        # Before torch 2.13 Dynamo does not guard the sizes of what is assigned.
        assigned = None
        if running_torch() >= (2, 13):
            assigned = take_assigned_data(gm, example_inputs)
        hooks = take_output_hooks(gm)
        lookups, gm, example_inputs = take_sparse_lookups(gm, example_inputs)
        changed = None
        if assigned is None and hooks is None:
            changed, gm = take_changed_inputs(gm, example_inputs)
        # Example values of what is assigned have the memory of another tensor.
        shared = None if assigned else take_shared_outputs(gm, bool(log.graph_breaks))
        run, piece = self._compiled_or_eager(gm, example_inputs, broken is not None)
        self._log_sizes_and_lines(gm)
        if shared is not None:
            run = shared.behind(run)
        if changed is not None:
            overlap = OverlapGuard(changed.arguments, [False] * len(example_inputs))
            run = self._guarded(changed.around(run), changed.original, overlap)
        if lookups is not None:
            run = self._looking_up(run, lookups)
        run = with_output_hooks(with_assigned_data(run, assigned), hooks)
        if log.graph_breaks:
            run = mark_changing_sizes(run, changing)
        return self._recorded(run, piece)

    def _compiled_or_eager(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], breaks: bool
    ) -> tuple[Callable[..., Any], Piece | EagerPiece]:
        """The compiled piece, or its graph in eager PyTorch; `breaks`: the program goes on behind it."""
        try:
            run = on_copies(self._compile(gm, example_inputs), read_before_change(gm))
            if breaks:
                run = with_copies(run, changed_later(gm))
            return run, self.pieces[-1]
        except (CannotLower, _C.ORTModuleError) as error:
            break_at_inner_gradients(gm, error, self.logger)
            piece = self.log.report_eager(error)
            self.logger.debug("ortmodule_py: torch's error there:", exc_info=error.__cause__)
            return restored_on_failure()(gm.forward), piece

    def _log_sizes_and_lines(self, gm: fx.GraphModule) -> None:
        """Log the sizes that the capture has fixed, and its lines."""
        for line, symbol, size in fixed_sizes():
            self.log.report_specialized(_EXACT, ("", place_of(line)), (size,), symbol)
        if self.log.captured_lines is None:
            return
        for graph in gm.modules():  # bodies of higher-order operators, too
            if isinstance(graph, fx.GraphModule):
                self.log.captured_lines.update(origin_of(node)[1] for node in graph.graph.nodes)

    def _looking_up(self, run: Callable[..., Any], lookups: SparseLookups) -> Callable[..., Any]:
        """`run` behind the lookups that eager PyTorch does, which each forward reports."""
        pieces = [self.log.report_eager(CannotLower(REASON, at)) for at in lookups.origins]
        looking_up = lookups.before(run)

        def reported(*args: Any) -> Any:
            record = self.record()
            if record is not None:
                record.eager = True
                for piece in pieces:
                    piece.modes.add(record.mode)
            return looking_up(*args)

        return reported

    def _refuse_hook_out_of_order(self, gm: fx.GraphModule) -> None:
        """Leave the function to Python where Dynamo's graph would call its hooks in another order."""
        origin = hook_out_of_order(gm)
        if origin is None:
            return
        reason = (
            "several hooks on a tensor, or one on a result, whose order torch before 2.13 loses"
        )
        self.log.report_eager(CannotLower(reason, origin))
        raise torch._dynamo.exc.SkipFrame(reason)

    def _recorded(self, run: Callable[..., Any], piece: Piece | EagerPiece) -> Callable[..., Any]:
        """`run`, entered in the forward's record; a run with other parameters adds them.

        Layers of one class share a piece, so each run may have other parameters.
        """
        latest: Any = None
        known, first = self.parameters, -1
        sharded = isinstance(piece, Piece) and piece.sharded

        def recorded(*args: Any) -> Any:
            nonlocal latest, first
            self.runs += 1
            record = self.record()
            given: set[int] = set()
            if (
                sharded
                or latest is None
                or latest is record
                or (first >= 0 and id(args[first]) not in known)
            ):
                found = [i for i, a in enumerate(args) if isinstance(a, torch.nn.Parameter)]
                given = {id(args[i]) for i in found}
                known.update(given)
                if isinstance(piece, Piece):
                    piece.parameters |= given
                first = found[0] if found else -1
            latest = record or self
            if record is None:
                return run(*args)
            record.piece_runs += 1
            if isinstance(piece, EagerPiece):
                piece.modes.add(record.mode)
                return run(*args)
            record.runs.append(piece.compiled)
            record.parameters.append(frozenset(given) if sharded else frozenset())
            record.passed.append(record.passed_by(args) if sharded else {})
            start = time.perf_counter()
            result = run(*args)
            record.engine_seconds += time.perf_counter() - start
            if sharded:
                record.made(result)
            return result

        return recorded

    def _compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        device = piece_device(example_inputs)
        kernels = "cuda" if self.options.emulate_cuda else device.type
        builder = _C.GraphBuilder(self.options.torch_rng, kernels)
        progress.stage("exporting")
        _refuse_results_of_transforms(gm)
        lowered = lower(gm, example_inputs, builder, device, self.options.torch_rng)
        self._report_specialized(lowered)
        progress.stage("compiling")
        if lowered.checkpoints:
            self.log.report_checkpoints(lowered.checkpoints)
        start = time.perf_counter()
        gathered = gathered_ids()
        sharded = any(id(parameter) in gathered for parameter in example_inputs)
        options = self._piece_options(lowered.grad_enabled, device, sharded)
        options.first_sizes = first_sizes(example_inputs)
        compiled = builder.finish(options)
        seconds = dict(lowered.seconds)
        seconds["compile"] = time.perf_counter() - start
        self.pieces.append(
            Piece(compiled, seconds, lowered.calls, lowered.traced_gradients, sharded=sharded)
        )
        record = self.record()
        self.budget.add_piece(compiled, lowered.grad_enabled, record.runs if record else ())
        if record is not None:
            record.captures += 1
        self._log_capture(self.pieces[-1])
        if self.files is not None:
            self.files.compiled(compiled)

        run = self._with_warnings(compiled)
        if lowered.reads:
            run = with_reads(run, lowered.reads)
        if lowered.drawn_inputs:
            run = _with_types(run, lowered.drawn_inputs)
        if lowered.checks:
            run = _checked(run, lowered.checks, gm.forward)
        if not lowered.mutated_inputs:
            return run
        run = with_versions_kept(run, gm, lowered.mutated_inputs)
        return self._guarded(run, gm, OverlapGuard(lowered.mutated_inputs, lowered.fixed_inputs))

    def _report_specialized(self, lowered: LoweredPiece) -> None:
        for name, origin, values in lowered.fixed_numbers:
            if name == SIZE or not origin[1]:
                self.log.report_specialized(name, origin, values)
            else:
                self.log.report_specialized_float(name, origin, values)
        for origin, symbol, value in lowered.fixed_sizes:
            self.log.report_specialized(SIZE, origin, (value,), symbol)

    def report_uncaptured(self, line: str) -> None:
        """The current forward ran no piece; `line` is that of the module's forward."""
        self.log.report_uncaptured(self.runs > 0, line)
        self.uncaptured_is_reported()

    def uncaptured_is_reported(self) -> None:
        """The log says why the current forward ran no piece."""
        self._uncaptured_pieces = len(self.pieces)

    def uncaptured_reported(self) -> bool:
        """Whether a forward without pieces was reported, and no piece was captured since."""
        return self._uncaptured_pieces == len(self.pieces)

    def release(self) -> None:
        """Free the module and all pieces, which will not run again."""
        self.pieces.clear()
        self.last = self.trained = self.files = None
        self.last_of.clear()
        self.timed.clear()
        self.budget.release()

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

    def _with_warnings(self, compiled: Any) -> Callable[..., Any]:
        """The piece, with a warning if a new shape exceeds the budget or a peak was not as planned."""
        call, take_warnings = compiled.__call__, compiled.take_warnings

        def run(*args: Any) -> Any:
            result = call(*args)
            for warning in take_warnings():
                self._warn(warning, compiled)
            return result

        return run

    def _warn(self, warning: Any, compiled: Any) -> None:
        if isinstance(warning, str):
            self.logger.warning("ortmodule_py: %s", warning)
            return
        self.budget.fell_short(warning)
        if self.record() is None:  # without a module around the piece
            self.budget.end_forward(ForwardRecord(runs=[compiled]))

    def _guarded(
        self, run: Callable[..., Any], gm: fx.GraphModule, overlap: OverlapGuard
    ) -> Callable[..., Any]:
        """`run`, but eager PyTorch if an argument that is changed in place may alias another."""
        shared = CannotLower("an argument that is changed in place shares memory with another")
        eager: Callable[..., Any] = restored_on_failure()(gm.forward)

        def guarded(*args: Any) -> Any:
            if overlap(args):
                self.log.report_eager(shared)
                return eager(*args)
            return run(*args)

        return guarded

    def _piece_options(self, training: bool, device: torch.device, sharded: bool) -> Any:
        options, record = _C.PieceOptions(), self.record()
        options.device = str(device)
        options.emulate_cuda = self.options.emulate_cuda
        options.cuda_graph = self.options.cuda_graph and not sharded
        kernels = "cuda" if self.options.emulate_cuda else device.type
        if self.options.generated_code != "0":
            enable_generated_code(kernels, self.options.generated_code, self.logger)
        options.generated_code = self.options.generated_code != "0"
        choose_graph_convolutions(kernels, self.options.graph_convolutions, self.logger)
        choose_product_epilogues(kernels, self.options.product_epilogues, self.logger)
        options.trained_attention = attention_form(
            self.options.fused_attention,
            on_gpu=device.type == "cuda",
            emulated=self.options.emulate_cuda,
            configured=bool(self.options.memory.config),
        )
        if self.options.cuda_graph and sharded and not self.moving:
            self.moving = MOVING
            self.logger.warning("ortmodule_py: ORTMODULE_CUDA_GRAPH: %s", MOVING)
        options.training = training
        options.verify = self.options.verify
        options.fuel = self.options.fuel
        options.disabled_passes = set(self.options.disabled_passes)
        if self.options.convolution_search:
            options.convolution_search = self.options.convolution_search
        memory = self.budget.memory_options(
            device,
            [piece.compiled for piece in self.pieces],
            _C.engine_runs() if record is None else record.first_run,
            is_part=bool(self.log.graph_breaks),
            why_no_offload=why_not(
                kernels,
                self.options.memory.offload,
                in_parts=bool(self.log.graph_breaks),
                cuda_graph=options.cuda_graph,
            ),
        )
        if sharded:
            memory.gathered_parameters = True
            memory.other_runs = count_of_units() - 1
        options.memory = memory
        if self.options.dump is not None:
            options.dump = self._dump
        return options

    def _dump(self, stage: int, name: str, text: str) -> None:
        assert self.options.dump is not None
        self.options.dump.mkdir(parents=True, exist_ok=True)
        path = self.options.dump / f"{len(self.pieces):02d}_{stage:02d}_{name}.txt"
        path.write_text(text)


def _is_of_transform(value: Any) -> bool:
    """Whether this is a tensor of a transform of torch.func, which has no memory of its own.

    Backward of a user's function sees those that forward saved, when `vjp` itself has long returned.
    """
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def _refuse_results_of_transforms(gm: fx.GraphModule) -> None:
    """A graph break between `vjp` and the call of what it returns needs torch's own tensors there."""
    for node in gm.graph.find_nodes(op="output")[0].all_input_nodes:
        if _is_of_transform(node.meta.get("example_value")):
            reason = "a transform of torch.func whose result is called behind a graph break"
            raise CannotLower(reason, origin_of(node))


def _with_types(run: Callable[..., Any], types: dict[int, torch.dtype]) -> Callable[..., Any]:
    """`run` with these arguments cast to the dtypes that it was compiled for."""

    def cast(*args: Any) -> Any:
        given = list(args)
        for position, dtype in types.items():
            given[position] = given[position].to(dtype)
        return run(*given)

    return cast


def _checked(
    run: Callable[..., Any],
    checks: list[Callable[[torch.Tensor], object]],
    forward: Callable[..., Any],
) -> Callable[..., Any]:
    """`run` without its last outputs, which go to `checks`: they raise the errors of eager's assertions.

    What a check forbids may fail before, as an index beyond a table: the graph's forward then has eager's error.
    """

    def checked(*args: Any) -> Any:
        try:
            outputs = run(*args)
        except IndexError:
            forward(*args)
            raise
        first = len(outputs) - len(checks)
        for value, check in zip(outputs[first:], checks, strict=True):
            check(value)
        return outputs[:first]

    return checked
