"""Limits Dynamo's skipped frames to one ORTModule.

Dynamo marks the code object of a function that it cannot capture and skips it for good, in all modules.
Here each module keeps its own set of skipped code, so that other modules of the class, and other layers
of torch.nn (which share their outermost function), are still captured.

If Dynamo fails on a resume function, or reaches its capture limit there, part of the module has run
already. Only that function then runs in eager PyTorch, and this is reported.

Two kinds of functions that Dynamo skips are captured here: one whose loop breaks the graph (`loops`), and
the forward of a layer of torch.nn that Python calls, as in such a loop or behind a graph break.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ortmodule_py.base.errors import CannotLower
from ortmodule_py.base.torch_state import restored_if_capture_fails
from ortmodule_py.dynamo.errors import (
    BackendCompilerFailed,
    CannotTrace,
    RecompileLimit,
    place_of_failure,
)
from ortmodule_py.dynamo.hooks import has_hooks
from ortmodule_py.dynamo.loops import outline, outline_call, outline_rounds
from ortmodule_py.dynamo.nested_calls import room_for_nested_calls
from ortmodule_py.dynamo.patches.table import capturing_compiler
from ortmodule_py.dynamo.progress import add_captured
from ortmodule_py.dynamo.reasons import line_of_code, why_skipped, why_untraced
from ortmodule_py.dynamo.settings import CONFIG_IS_THREAD_LOCAL, silence_limit_warnings
from ortmodule_py.dynamo.skipped_frames import (
    LAYERS,
    Skipped,
    SkippedFrames,
    is_layer,
    is_of_numpy,
    uses_optimizer,
)
from ortmodule_py.dynamo.transforms import Transforms

_dynamo_errors: Any = torch._dynamo.exc
_eval_frame: Any = torch._C._dynamo.eval_frame
_Action = _eval_frame._FrameAction
_TRACER = os.path.join("torch", "_dynamo", "convert_frame.py")
_RESUMES = "torch_dynamo_resume_in_"
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = (os.path.dirname(torch.__file__), _PACKAGE)
_UNKNOWN = (
    "functions that this torch skips, which are not named, as it converts them in another way"
)
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_TRIES = 3
_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
_NOT_OF_THE_FRAME = (
    BackendCompilerFailed,
    getattr(_dynamo_errors, "ResumePrologueTracingError", BackendCompilerFailed),
)

_AROUND_TORCH = torch._dynamo.external_utils.wrap_inline(lambda: None).__code__
"""Of the frame that Dynamo puts around the forward of a class of torch's, such as `nn.Sequential`."""


class Events(Protocol):
    """The log of a module's captures."""

    graph_breaks: list[str]
    empty_break: str | None
    transforms: Transforms
    loop_break: tuple[types.CodeType, int] | None
    open_loop: tuple[types.CodeType, int] | None
    python_parts: set[types.CodeType]

    def report_empty_break(self) -> None:
        """The capture has ended, perhaps at a graph break without a piece in front of it."""

    def report_eager(self, error: Exception) -> Any:
        """A piece falls back to eager PyTorch."""


class PieceCompiler(Protocol):
    """The part of a module's compiler that is used here."""

    pieces: list[Any]

    @property
    def log(self) -> Events:
        """The log of the module's captures."""


class _Entry(torch._dynamo.convert_frame.CatchErrorsWrapper):
    """Dynamo's entry to the conversion of a frame."""

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        frames: Any = self._torchdynamo_orig_backend
        skip = frames.known_skip(frame)
        if skip is not None:
            return skip
        with frames.settings if CONFIG_IS_THREAD_LOCAL else _NOTHING:
            # Dynamo's own entry skips the code of torch for good.
            if not is_layer(frame) or torch._dynamo.config.disable:
                return super().__call__(frame, cache_entry, frame_state)
            if next(frame.f_locals["self"].parameters(), None) is None:
                return _skip_once()  # nothing to gain from a piece
            with torch._dynamo.convert_frame.compile_lock, _disable_current_modes():
                return frames(frame, cache_entry, self.hooks, frame_state, skip=1)


class _WithCode:
    """A frame with other code of the same variables."""

    def __init__(self, frame: Any, code: types.CodeType) -> None:
        self._frame, self.f_code = frame, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)


class _Observed:
    """Dynamo's conversion of a frame, which keeps the reason of a failure that its caller suppresses."""

    def __init__(self, convert: Any) -> None:
        self._convert = convert
        self.reason: CannotLower | None = None
        self.failed_at: tuple[types.CodeType, int] | None = None
        """Where Dynamo could not break the graph: the function and the offset in it."""

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        self.reason = self.failed_at = None
        try:
            return self._convert(frame, *args, **kwargs)
        except Exception as error:
            self.reason = why_skipped(error, frame.f_code)
            self.failed_at = place_of_failure(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._convert, name)


class _OutermostFailures:
    """Outermost functions on which Dynamo failed, so that eager PyTorch ran the whole module.

    Other arguments may be traced, so a function is tried again, but not at each step: a trace may take a
    hundred times as long as the step. Captures that exist are used all the same.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[types.CodeType, bool], list[CannotLower]] = {}
        """Those of failures in a row, by code and grad mode."""
        self.last: types.CodeType | None = None
        """The function of the current call."""

    def add(self, reason: CannotLower) -> None:
        """Dynamo failed on the current call, and eager PyTorch ran it without an error."""
        if self.last is not None:
            self._reasons.setdefault((self.last, torch.is_grad_enabled()), []).append(reason)
        self.last = None

    def forget(self, code: types.CodeType) -> None:
        """This function was captured."""
        self._reasons.pop((code, torch.is_grad_enabled()), None)

    def given_up(self, frame: Any) -> CannotLower | None:
        """Why Dynamo does not try this frame again."""
        reasons = self._reasons.get((frame.f_code, torch.is_grad_enabled()), [])
        if len(reasons) < _TRIES or _has_run_before(frame):
            return None
        return reasons[-1]

    def clear(self) -> None:
        self._reasons.clear()


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A trace allocates many objects that live on: each collection would look at all of them in vain."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@functools.cache
def _silence_advice() -> None:
    """Drop Dynamo's 15 lines about `Tensor.item()` in captures of ours: our log has the line that breaks the graph."""
    advice = "Graph break from `Tensor.item()`"
    logging.getLogger("torch._dynamo.variables.tensor").addFilter(
        lambda record: capturing_compiler() is None or not str(record.msg).startswith(advice)
    )


class Frames:
    """Wraps Dynamo's conversion of the frames of one module."""

    def __init__(self, compiler: PieceCompiler, fullgraph: bool) -> None:
        self._compiler = compiler
        self._fullgraph = fullgraph
        self._skipped = SkippedFrames()
        self._open_loops: set[types.CodeType] = set()
        self._in_python: list[CannotLower] = []
        """Why functions of the current forward ran in Python."""
        self._failure: CannotLower | None = None
        """Why Dynamo failed last."""
        self._failed = _OutermostFailures()
        self.found_nothing = False
        """Whether Dynamo found a function of the module without anything to capture."""
        self._passed_over = self._passes_over = False
        """Whether the last forward, the current one, ran such a function without asking Dynamo again."""
        self._outermost: types.CodeType | None = None
        self._convert: Any = None
        self._observed: Any = None
        self._torchdynamo_orig_backend: Any = None
        self.settings: contextlib.AbstractContextManager[Any] = _NOTHING
        """Dynamo's configuration while it converts a frame."""
        self._conversion_has_settings = False

    def watch(self, compiled: Any, target: Any, module: nn.Module) -> None:
        """Wrap the conversion of frames in `compiled`, which `torch.compile` made of `target`.

        `target` is or calls `module`.

        If this torch has another structure, Dynamo skips frames for good and names none of them.
        """
        _silence_advice()
        for layer in module.modules():
            _unmark(inspect.getattr_static(type(layer), "forward", None))
        function = getattr(target, "forward", target)
        self._outermost = getattr(getattr(function, "__func__", function), "__code__", None)
        context = getattr(compiled, "dynamo_ctx", None)
        callback = getattr(context, "callback", None)
        if callback is None and inspect.isfunction(compiled):
            callback = inspect.getclosurevars(compiled).nonlocals.get("callback")
        convert = getattr(callback, "_torchdynamo_orig_backend", None)
        inner = getattr(convert, "_inner_convert", None)
        if isinstance(convert, torch._dynamo.convert_frame.ConvertFrame) and inner is not None:
            self._convert = convert
            convert._inner_convert = self._observed = _Observed(inner)
            self._torchdynamo_orig_backend = convert._torchdynamo_orig_backend
            callback._torchdynamo_orig_backend = self  # type: ignore[union-attr]
            if type(callback) is torch._dynamo.convert_frame.CatchErrorsWrapper:
                callback.__class__ = _Entry
                self._conversion_has_settings = CONFIG_IS_THREAD_LOCAL
        elif convert is not None and not self._fullgraph:
            self._compiler.log.report_eager(CannotLower(_UNKNOWN))

    def around_call(self) -> contextlib.AbstractContextManager[Any]:
        """A context around a call of the compiled module: the settings, unless conversions enter them.

        A call whose guards hold does not need the settings, and entering them costs a third of the
        guards of 120 parameters.
        """
        if not self._conversion_has_settings:
            return self.settings
        # `torch.compiler.set_stance` may put a callback of torch before the conversion.
        stance = torch._dynamo.eval_frame._stance
        plain = stance.stance == "default" and stance.backend is None
        return _NOTHING if plain else self.settings

    def known_skip(self, frame: Any) -> Any:
        """The answer for a frame that is known to run in Python; None for others.

        Dynamo asks in each step, and its settings and rules take a tenth of a millisecond.
        """
        code = frame.f_code
        if code in self._compiler.log.python_parts:
            return _skip_once(recursive=code in self._open_loops and _calls_nothing_large(frame))
        if code in self._compiler.log.transforms.in_python:
            return _skip_once(recursive=True)
        if uses_optimizer(frame) or is_of_numpy(frame):
            return _skip_once()
        skipped = self._skipped.find(frame)
        if skipped is None:
            return None
        self._passes_over |= skipped.empty
        return self._skip(skipped)

    def __call__(self, frame: Any, *args: Any, skip: int = 0, **kwargs: Any) -> Any:
        """Convert a frame for Dynamo."""
        code = frame.f_code
        skip_known = self.known_skip(frame)
        if skip_known is not None:
            return skip_known
        reason = self._compiler.log.transforms.refused(code) or self._failed.given_up(frame)
        if reason is not None:
            self._in_python.append(reason)
            return _skip_once(recursive=True)
        counted = torch._dynamo.utils.counters["frames"]
        converted, pieces = counted["ok"], len(self._compiler.pieces)
        breaks = len(self._compiler.log.graph_breaks)
        self._compiler.log.empty_break = None
        try:
            with (
                restored_if_capture_fails(),
                _without_garbage_collection(),
                room_for_nested_calls,
            ):
                result = self._converted(frame, *args, skip=skip + 1, **kwargs)
        except (*CannotTrace, RecompileLimit) as error:
            if isinstance(error, RecompileLimit):
                silence_limit_warnings()
            self._failure = why_untraced(error, code)
            if (
                self._fullgraph
                or isinstance(error, _NOT_OF_THE_FRAME)
                or not _has_run_before(frame)
            ):
                self._failed.last = code
                raise
            return self._skip_newly(frame, self._failure)
        self._compiler.log.report_empty_break()
        if (
            code in (self._outermost, _AROUND_TORCH)
            and result.guarded_code is not None
            and len(self._compiler.pieces) == pieces + 1
            and len(self._compiler.log.graph_breaks) == breaks
        ):
            self._compiler.pieces[-1].whole = True
        if result.guarded_code is not None:
            self._failed.forget(code)
        skips = result.frame_exec_strategy.cur_action == _Action.SKIP
        if result.guarded_code is not None or not result.apply_to_code or not skips:
            return result
        if counted["ok"] == converted or _may_compute(frame):
            self.found_nothing |= counted["ok"] > converted
            reason = self._observed.reason if _is_of_model(frame) else None
            self._skip_newly(frame, reason, empty=counted["ok"] > converted)
            return replace(result, apply_to_code=False)
        return result

    def _skip_newly(self, frame: Any, reason: CannotLower | None, *, empty: bool = False) -> Any:
        return self._skip(self._skipped.add(frame, reason, empty=empty))

    def _skip(self, skipped: Skipped) -> Any:
        if skipped.reason is not None:
            self._in_python.append(skipped.reason)
        return _skip_once()

    def reason(self, error: Exception) -> CannotLower:
        """Why Dynamo failed on the current call, which raised this."""
        failure, self._failure = self._failure, None
        failure = failure or why_untraced(error)
        if not isinstance(error, RecompileLimit):  # Dynamo traces nothing at its limit
            self._failed.add(failure)
        return failure

    @property
    def line(self) -> str:
        """ "file.py:line" of the module's forward."""
        return line_of_code(self._outermost) if self._outermost is not None else ""

    def _converted(self, frame: Any, *args: Any, skip: int, **kwargs: Any) -> Any:
        """Dynamo's conversion; a loop or call that breaks the graph becomes a function that runs in Python."""
        log = self._compiler.log
        log.loop_break = log.open_loop = None
        result = self._convert(frame, *args, skip=skip + 1, **kwargs)
        if result.guarded_code is not None:
            return result
        rounds, broken, failed = log.open_loop, log.loop_break, self._observed.failed_at
        outlined = None
        if rounds is not None and rounds[0] is frame.f_code:
            outlined = outline_rounds(*rounds)
        elif broken is not None and broken[0] is frame.f_code:
            outlined = outline(*broken)
        elif failed is not None and failed[0] is frame.f_code:
            outlined = outline_call(*failed) or outline(*failed)
        if outlined is None:
            return result
        log.python_parts.add(outlined.part)
        if outlined.rounds is not None:
            log.python_parts.add(outlined.rounds)
            self._open_loops.add(outlined.rounds)
        result = self._convert(_WithCode(frame, outlined.code), *args, skip=skip + 1, **kwargs)
        if result.guarded_code is not None:
            add_captured(frame.f_code)
        return result

    def ran_whole(self, runs: Sequence[Any], module: nn.Module) -> bool:
        """Whether `runs` is one run of a piece that is the whole module."""
        if len(runs) != 1 or has_hooks(module):  # hooks are no part of the piece
            return False
        return any(piece.whole and piece.compiled is runs[0] for piece in self._compiler.pieces)

    def succeeded(self) -> bool:
        """A forward succeeded: keep its skipped functions and report them; whether there were any."""
        self._skipped.keep()
        self._passed_over, self._passes_over = self._passes_over, False
        reasons, self._in_python = self._in_python, []
        for reason in reasons:
            self._compiler.log.report_eager(reason)
        return bool(reasons)

    def try_skipped(self) -> None:
        """Capture skipped functions again at the next call, as what Dynamo could not trace has changed."""
        self._skipped.clear()
        self._failed.clear()

    def try_empty(self) -> bool:
        """Capture functions that were empty before at the next call, if the last forward ran one: it may compute
        something by now, as where an attribute has changed."""
        if self._passed_over:
            self._skipped.drop_empty()
        return self._passed_over

    def failed(self) -> None:
        """A forward raised: capture its skipped functions again at the next call."""
        self._passes_over = False
        self._skipped.drop_new()
        self._in_python.clear()


def failed_before_running(error: Exception) -> bool:
    """Whether tracing failed before any user code ran, so that eager may run the whole module."""
    frame = error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if path.endswith(_TRACER):
            return True
        if not path.startswith(_LIBRARIES):
            return False
        frame = frame.tb_next
    return False


def _unmark(forward: Any) -> None:
    """Let Dynamo ask again for a forward that another use has marked as skipped, as `torch.compile` does
    where the graph breaks in a loop."""
    code = getattr(forward, "__code__", None)
    if code is None:
        return
    path = code.co_filename
    if path.startswith(LAYERS) or not path.startswith(_LIBRARIES):
        strategy = _eval_frame._FrameExecStrategy(_Action.DEFAULT, _Action.DEFAULT)
        _eval_frame.set_code_exec_strategy(code, strategy)


def _skip_once(recursive: bool = False) -> Any:
    """Run this frame in Python; `recursive`: also all frames below it."""
    result: Any = torch._dynamo.types.ConvertFrameReturn()
    result.apply_to_code = False
    if recursive:
        strategy = _eval_frame._FrameExecStrategy(_Action.SKIP, _Action.SKIP)
        result.frame_exec_strategy = strategy
    return result


def _may_compute(frame: Any) -> bool:
    """Whether a function without anything to capture has a layer or a tensor, of which it may compute with others."""
    return any(isinstance(v, (nn.Module, torch.Tensor)) for v in frame.f_locals.values())


def _calls_nothing_large(frame: Any) -> bool:
    """Whether a function calls, by name, no layer with parts, layer of the user or other function of the user.

    A piece of one operator for each round of a loop takes longer than eager PyTorch.
    """
    names, held = frame.f_code.co_names, frame.f_locals
    layers = [value for value in held.values() if isinstance(value, nn.Module)]
    called = [getattr(layer, name, None) for layer in layers for name in names]
    called += [frame.f_globals.get(name) for name in names]
    called += [value for name, value in held.items() if name != "self"]
    return not any(map(_is_large, called))


def _is_large(value: Any) -> bool:
    """Whether a call of this value may be worth a piece."""
    if isinstance(value, nn.Module):
        plain = type(value).__module__.startswith("torch.nn.")
        return not plain or next(value.children(), None) is not None
    code = getattr(inspect.unwrap(value), "__code__", None) if inspect.isroutine(value) else None
    return code is not None and not code.co_filename.startswith(_LIBRARIES)


def _is_of_model(frame: Any) -> bool:
    """Whether a function may compute a part of the model.

    A comprehension is a loop: the layers and functions that it calls are frames of their own.
    """
    if frame.f_code.co_name in _COMPREHENSIONS or not _at_hand(frame.f_locals, _is_of_a_model):
        return False
    caller: types.FrameType | None = sys._getframe(2)
    making: Any = frame
    while making is not None and not _is_run(making):
        is_made = isinstance(making.f_locals.get("self"), nn.Module)
        if is_made and making.f_code.co_name == "__init__":
            return _at_hand(making.f_locals, _has_gradient)  # a loss that forward makes, say
        making, caller = caller, caller.f_back if caller is not None else None
    return True


def _at_hand(variables: dict[str, Any], wanted: Callable[[Any], bool]) -> bool:
    """Whether a variable, its attribute or item is one that is wanted."""
    for value in variables.values():
        inside = value.values() if isinstance(value, dict) else value
        known = (
            inside
            if isinstance(value, (dict, list, tuple))
            else getattr(value, "__dict__", {}).values()
        )
        if any(wanted(item) for item in (value, *known)):
            return True
    return False


def _is_of_a_model(value: Any) -> bool:
    return isinstance(value, (nn.Module, torch.Tensor))


def _has_gradient(value: Any) -> bool:
    """Whether this is a value that was computed from parameters."""
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _has_run_before(frame: Any) -> bool:
    """Whether user code ran before this frame: it is a resume function, a layer, or called by user code."""
    code = frame.f_code
    if code.co_name.startswith(_RESUMES) or is_layer(frame):
        return True
    outer: types.FrameType | None = sys._getframe(2)
    while outer is not None and not _is_run(outer):
        if outer.f_code is not code and not outer.f_code.co_filename.startswith(_LIBRARIES):
            return True
        outer = outer.f_back
    return False


def _is_run(frame: types.FrameType) -> bool:
    return frame.f_code.co_name == "_run" and frame.f_code.co_filename == _MODULE


_MODULE = os.path.join(_PACKAGE, "module.py")
