"""What a graph enters and leaves by calls of its own: autocast, inference mode, levels of `torch.func`.

An exception between the two calls skips the second one, and the thread would stay as it is: with
gradients off, or with a cache of cast weights that outlives the step.
"""

from __future__ import annotations

import contextlib
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
    """How each setting is read, and how it is set."""
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


@contextlib.contextmanager
def restored_on_failure() -> Iterator[None]:
    """The state of this thread is as before once an exception has left the block."""
    before = _ThreadState()
    try:
        yield
    except BaseException as error:
        before.restore(error)
        raise


@contextlib.contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Hooks of the user's, or of a checkpoint that is around, do not see what is traced in the block."""
    before = _saved_tensors_hooks._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        _saved_tensors_hooks._saved_tensors_hooks_set_tracing(before)


class _ThreadState:
    """What holds now."""

    def __init__(self) -> None:
        self.settings = [read() for read, _ in _SETTINGS]
        self.inference_mode = torch.is_inference_mode_enabled()
        self.autocasts = _autocasts()
        self.transforms = _functorch.get_dynamic_layer_stack_depth()
        self.dual_level = forward_ad._current_level
        self.saves_with_hooks = _saved_tensors_hooks._saved_tensors_hooks_is_enabled()

    def restore(self, error: BaseException) -> None:
        """Leave what was entered, innermost first."""
        while forward_ad._current_level > self.dual_level:
            forward_ad.exit_dual_level()
        if self.dual_level < 0:
            _leave_dual_level()
        # One by one: what torch has to leave several at once fails behind the last one in torch 2.11.
        while _functorch.get_dynamic_layer_stack_depth() > self.transforms:
            _LEAVE_LEVEL[_functorch.peek_interpreter_stack().key()]()
        if torch.is_inference_mode_enabled() != self.inference_mode:
            # Its guards end with the frames that hold them, and would set the grad mode once more.
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
    """Of forward-mode gradients, where it was entered in C++ alone, which does not say its level."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:  # there can be one
        level = 0
    torch._C._exit_dual_level(level=level)


def _autocasts() -> int:
    """How many regions of autocast this thread is in."""
    count = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return count


class SharedPatch:
    """A patch of what all threads share, as Dynamo's configuration is in torch before 2.13:
    the first thread in makes the patch, the last one out takes it back."""

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
