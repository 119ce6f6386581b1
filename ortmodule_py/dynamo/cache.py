"""Frees Dynamo's captures of an ORTModule with the module.

Dynamo keeps captures, and with them compiled pieces, in the code object of a class's `forward`, shared
by all instances, for ever, and up to a limit.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from typing import Any

import torch
from torch._C._dynamo import eval_frame


class Captures:
    """The code objects captured for one ORTModule."""

    def __init__(self) -> None:
        self.codes: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


class _Unused:
    """An object that no frame refers to, so that a dropped capture matches no call."""


_unused = _Unused()


def drop_with(owner: object, captures: Captures, compiler: Any) -> None:
    """When `owner` is collected, drop the captures that `compiler` compiled for these codes."""
    weakref.finalize(owner, _drop, captures, weakref.ref(compiler)).atexit = False


def _drop(captures: Captures, compiler: weakref.ref[Any]) -> None:
    backend = compiler()
    if backend is None:
        return
    forget(captures, backend)
    # Dynamo keeps the backend alive, as guards compare its id.
    backend.release()


def forget(captures: Captures, backend: Any) -> None:
    """Drop the captures that `backend` compiled for these codes: the next call captures anew."""
    # A private API of torch: if it changes, captures stay until the process ends.
    with contextlib.suppress(AttributeError, ImportError, TypeError):
        for code in list(captures.codes):
            for entry in eval_frame._debug_get_cache_entry_list(code):
                if innermost_backend(entry.backend) is backend:
                    _invalidate(entry.guard_manager)


def innermost_backend(backend: Any) -> Any:
    """The backend inside the wrappers that Dynamo puts around it."""
    for name in ("_torchdynamo_orig_backend", "compiler_fn"):
        while hasattr(backend, name):
            backend = getattr(backend, name)
    return backend


def _invalidate(guards: Any) -> None:
    if guards.cache_entry is None or guards.extra_state is None:
        return
    dropped = torch._dynamo.guards.DeletedGuardManagerWrapper("dropped by its ORTModule")
    dropped.id_matched_objs = {"self": weakref.ref(_unused)}
    guards.extra_state.invalidate(guards.cache_entry, dropped)
