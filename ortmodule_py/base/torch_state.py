"""The state of torch in a thread: autocast, grad and inference mode, levels of `torch.func`.

A captured graph enters and leaves these by separate calls. An exception between the two would leave the
thread in the wrong state: with gradients off, or with a cache of cast weights that outlives the step.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

_functorch = torch._C._functorch
_kinds = _functorch.TransformType
_LEAVE_LEVEL = {
    _kinds.Vmap: _functorch._vmap_decrement_nesting,
    _kinds.Grad: _functorch._grad_decrement_nesting,
    _kinds.Jvp: _functorch._jvp_decrement_nesting,
    _kinds.Functionalize: _functorch._func_decrement_nesting,
}
_saved_tensors_hooks = torch._C._autograd


def _settings() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """The getter and setter of each setting."""
    for device in ("cpu", "cuda", "xpu"):
        for name in ("enabled", "dtype"):
            read = getattr(torch, f"{'is' if name == 'enabled' else 'get'}_autocast_{name}")
            yield partial(read, device), partial(getattr(torch, f"set_autocast_{name}"), device)
    yield torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable"):  # of attention
        read = getattr(torch._C, f"_get_{name}_sdp_enabled")
        yield read, getattr(torch._C, f"_set_sdp_use_{name}")
    yield (
        _functorch.get_inplace_requires_grad_allowed,
        _functorch.set_inplace_requires_grad_allowed,
    )
    yield torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled
    yield torch.is_grad_enabled, torch._C._set_grad_enabled


_SETTINGS = tuple(_settings())


def thread_state() -> tuple[Any, ...]:
    """Equal before and after a block that leaves the state as it was."""
    return _ThreadState().key()


@contextlib.contextmanager
def restored_on_failure() -> Iterator[None]:
    """Restores the state of this thread if the block raises."""
    before = _ThreadState()
    try:
        yield
    except BaseException as error:
        before.restore(error)
        raise


@contextlib.contextmanager
def restored_if_capture_fails() -> Iterator[None]:
    """Like `restored_on_failure`, around a capture by Dynamo.

    Its frames, and cycles that it leaves, hold context managers: freed later, they would set grad modes
    and leave transforms in the midst of other code. The dispatch keys are restored after each capture:
    an error inside of a transform that Dynamo handles leaves them changed (torch 2.14).
    """
    before = _ThreadState()
    try:
        with _dispatch_keys_restored():
            yield
    except BaseException as error:
        seen: set[int] = set()  # a chain of exceptions may have a cycle
        cause: BaseException | None = error
        while cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        gc.collect()
        before.restore(error)
        raise


def _dispatch_keys_restored() -> contextlib.AbstractContextManager[None]:
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(included, excluded)


@contextlib.contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Saved tensors hooks, of the user or of an enclosing checkpoint, are not called in the block."""
    before = _saved_tensors_hooks._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        _saved_tensors_hooks._saved_tensors_hooks_set_tracing(before)


class _ThreadState:
    """A snapshot."""

    def __init__(self) -> None:
        self.settings = [read() for read, _ in _SETTINGS]
        self.inference_mode = torch.is_inference_mode_enabled()
        self.autocasts = _autocasts()
        self.transforms = _functorch.get_dynamic_layer_stack_depth()
        self.dual_level = forward_ad._current_level
        self.saves_with_hooks = _saved_tensors_hooks._saved_tensors_hooks_is_enabled()

    def key(self) -> tuple[Any, ...]:
        """Equal for equal states."""
        nesting = (self.autocasts, self.transforms, self.dual_level)
        return *self.settings, self.inference_mode, *nesting, self.saves_with_hooks

    def restore(self, error: BaseException) -> None:
        """Leaves what was entered since, innermost first."""
        while forward_ad._current_level > self.dual_level:
            forward_ad.exit_dual_level()
        if self.dual_level < 0:
            _leave_dual_level()
        # One by one: the function of torch 2.11 that leaves several levels fails after the last one.
        while _functorch.get_dynamic_layer_stack_depth() > self.transforms:
            _LEAVE_LEVEL[_functorch.peek_interpreter_stack().key()]()
        if torch.is_inference_mode_enabled() != self.inference_mode:
            # The frames hold its guards, which would set the grad mode again when they are freed.
            traceback.clear_frames(error.__traceback__)
        for _ in range(_autocasts() - self.autocasts):
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
        if self.saves_with_hooks and not _saved_tensors_hooks._saved_tensors_hooks_is_enabled():
            _saved_tensors_hooks._saved_tensors_hooks_enable()
        for (read, change), value in zip(_SETTINGS, self.settings, strict=True):
            if read() != value:
                change(value)


def _leave_dual_level() -> None:
    """Leaves a level of forward-mode AD that was entered in C++, whose number Python does not know."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:  # at most one level is allowed
        level = 0
    torch._C._exit_dual_level(level=level)


def _autocasts() -> int:
    """The number of autocast regions that this thread is in."""
    count = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return count


class SharedPatch:
    """A patch of state that all threads share, such as Dynamo's configuration before torch 2.13.

    The first thread to enter applies it, the last one to leave reverts it.
    """

    def __init__(self, patch: Any) -> None:
        self._patch = patch
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._patch.__enter__()
            self._inside += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._patch.__exit__(*error)
