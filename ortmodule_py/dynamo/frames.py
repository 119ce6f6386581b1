"""What Dynamo leaves to eager PyTorch, it leaves for one ORTModule alone.

Dynamo marks the code of a function that it cannot capture, and never looks at that code again, for
whatever module it runs. Here the mark is the module's own: another module of the same class, or of
another class of torch.nn, which all begin in the same function, is captured as ever.

Where Dynamo fails on what stands behind a graph break, or has captured it too often, part of the
module has run, so that eager cannot run it all: that function alone is left to eager, and said.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from ortmodule_py.base.torch_state import restored_on_failure
from ortmodule_py.dynamo.errors import BackendCompilerFailed, CannotTrace, RecompileLimit
from ortmodule_py.dynamo.hooks import has_hooks
from ortmodule_py.dynamo.settings import CONFIG_IS_THREAD_LOCAL

_dynamo_errors: Any = torch._dynamo.exc
_TRACER = os.path.join("torch", "_dynamo", "convert_frame.py")
_RESUMES = "torch_dynamo_resume_in_"
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = (os.path.dirname(torch.__file__), _PACKAGE)
_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
_NOT_OF_THE_FRAME = (
    BackendCompilerFailed,
    getattr(_dynamo_errors, "ResumePrologueTracingError", BackendCompilerFailed),
)


class Events(Protocol):
    """What is reported of a module's captures."""

    graph_breaks: list[str]

    def report_eager(self, error: Exception) -> None:
        """A piece falls back to eager PyTorch."""

    def report_untraced(self, error: Exception) -> None:
        """Dynamo failed on a call."""


class PieceCompiler(Protocol):
    """The compiler of a module's pieces, as far as it matters here."""

    pieces: list[Any]

    @property
    def log(self) -> Events:
        """The events of the module's captures."""


class _Settled(torch._dynamo.convert_frame.CatchErrorsWrapper):
    """Dynamo's way into the conversion of a frame, under the settings of the module."""

    def __call__(self, *args: Any) -> Any:
        frames: Any = self._torchdynamo_orig_backend
        with frames.settings:
            return super().__call__(*args)


class Frames:
    """Stands between Dynamo and its conversion of the frames of one module."""

    def __init__(self, compiler: PieceCompiler, fullgraph: bool) -> None:
        self._compiler = compiler
        self._fullgraph = fullgraph
        self._left: dict[int, types.CodeType] = {}
        self._new: dict[int, types.CodeType] = {}
        self._failures: list[Exception] = []
        self.found_nothing = False
        """Whether Dynamo found a function of the module in which there is nothing to capture."""
        self._outermost: types.CodeType | None = None
        self._convert: Any = None
        self._torchdynamo_orig_backend: Any = None
        self.settings: contextlib.AbstractContextManager[Any] = _NOTHING
        """Dynamo's configuration while it converts a frame."""
        self._settled = False

    def watch(self, compiled: Any, target: Any) -> None:
        """See the frames of what `torch.compile` made of `target`; another torch may hide them, and
        marks stay."""
        function = getattr(target, "forward", target)
        self._outermost = getattr(getattr(function, "__func__", function), "__code__", None)
        context = getattr(compiled, "dynamo_ctx", None)
        callback = getattr(context, "callback", None)
        if callback is None and inspect.isfunction(compiled):
            callback = inspect.getclosurevars(compiled).nonlocals.get("callback")
        convert = getattr(callback, "_torchdynamo_orig_backend", None)
        if isinstance(convert, torch._dynamo.convert_frame.ConvertFrame):
            self._convert = convert
            self._torchdynamo_orig_backend = convert._torchdynamo_orig_backend
            callback._torchdynamo_orig_backend = self  # type: ignore[union-attr]
            if (
                type(callback) is torch._dynamo.convert_frame.CatchErrorsWrapper
                and CONFIG_IS_THREAD_LOCAL
            ):
                callback.__class__ = _Settled
                self._settled = True

    def around_call(self) -> contextlib.AbstractContextManager[Any]:
        """To be entered around a call of what was compiled: the settings, unless each conversion
        enters them itself. A call whose guards hold reads none of them, and they cost as much as a
        third of the guards of 120 parameters."""
        if not self._settled:
            return self.settings
        # `torch.compiler.set_stance` may put something of torch's in front of the conversion.
        stance = torch._dynamo.eval_frame._stance
        plain = stance.stance == "default" and stance.backend is None
        return _NOTHING if plain else self.settings

    @property
    def watched(self) -> bool:
        """Whether Dynamo's marks are kept here, so that no code has one to take back."""
        return self._convert is not None

    def __call__(self, frame: Any, *args: Any, skip: int = 0, **kwargs: Any) -> Any:
        """Convert a frame, as Dynamo asks."""
        code = frame.f_code
        if id(code) in self._left or id(code) in self._new:
            return _left()
        counted = torch._dynamo.utils.counters["frames"]
        converted, pieces = counted["ok"], len(self._compiler.pieces)
        breaks = len(self._compiler.log.graph_breaks)
        try:
            with restored_on_failure():
                result = self._convert(frame, *args, skip=skip + 1, **kwargs)
        except (*CannotTrace, RecompileLimit) as error:
            if self._fullgraph or isinstance(error, _NOT_OF_THE_FRAME) or not _is_behind(code):
                raise
            self._failures.append(error)
            self._new[id(code)] = code
            return _left()
        if (
            code is self._outermost
            and result.guarded_code is not None
            and len(self._compiler.pieces) == pieces + 1
            and len(self._compiler.log.graph_breaks) == breaks
        ):
            self._compiler.pieces[-1].whole = True
        if result.guarded_code is not None or not result.apply_to_code or not _skips(result):
            return result
        if counted["ok"] == converted or _holds_module(frame):
            self._new[id(code)] = code
            self.found_nothing |= counted["ok"] > converted
            return replace(result, apply_to_code=False)
        return result

    def ran_whole(self, runs: Sequence[Any], module: nn.Module) -> bool:
        """Whether these runs of compiled pieces are one, and all of the module."""
        if len(runs) != 1 or has_hooks(module):  # hooks run beside it
            return False
        return any(piece.whole and piece.compiled is runs[0] for piece in self._compiler.pieces)

    def succeeded(self) -> None:
        """A forward ended well: what was left stays so."""
        if self._new:
            self._left.update(self._new)
            self._new.clear()
        while self._failures:
            error = self._failures.pop()
            log, limited = self._compiler.log, isinstance(error, RecompileLimit)
            (log.report_eager if limited else log.report_untraced)(error)

    def failed(self) -> None:
        """A forward raised: what was left for that reason is tried again."""
        self._new.clear()
        self._failures.clear()


def failed_before_running(error: Exception) -> bool:
    """Whether tracing failed before any of the user's code has run, so that eager may run it all."""
    frame = error.__traceback__
    while frame is not None:
        path = frame.tb_frame.f_code.co_filename
        if path.endswith(_TRACER):
            return True
        if not path.startswith(_LIBRARIES):
            return False
        frame = frame.tb_next
    return False


def _left() -> Any:
    result = torch._dynamo.types.ConvertFrameReturn()
    result.apply_to_code = False
    return result


def _skips(result: Any) -> bool:
    action: Any = torch._C._dynamo.eval_frame._FrameAction.SKIP
    return bool(result.frame_exec_strategy.cur_action == action)


def _holds_module(frame: Any) -> bool:
    return any(isinstance(value, nn.Module) for value in frame.f_locals.values())


def _is_behind(code: types.CodeType) -> bool:
    """Whether some of the user's code has run before this frame."""
    if code.co_name.startswith(_RESUMES):
        return True
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and not _is_run(frame):
        if frame.f_code is not code and not frame.f_code.co_filename.startswith(_LIBRARIES):
            return True
        frame = frame.f_back
    return False


def _is_run(frame: types.FrameType) -> bool:
    return frame.f_code.co_name == "_run" and frame.f_code.co_filename == _MODULE


_MODULE = os.path.join(_PACKAGE, "module.py")
