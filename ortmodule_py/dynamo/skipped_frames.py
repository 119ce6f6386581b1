"""What Dynamo does not try again in one ORTModule: functions that it cannot capture, or that compute nothing."""

from __future__ import annotations

import os
import sys
import types
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ortmodule_py.base.errors import CannotLower

LAYERS = os.path.join(os.path.dirname(torch.__file__), "nn", "modules", "")
"""The folder of torch's layers."""
_OPTIMIZERS = os.path.join(os.path.dirname(torch.__file__), "optim", "")
_KINDS = 8
"""With so many kinds of arguments a function without anything to capture is tried."""
_PLAIN = (bool, int, float, str, type(None))
_EMPTY_CELL = types.CellType()


@dataclass(frozen=True)
class Skipped:
    """A function or a layer of torch.nn that runs in Python."""

    what: Any
    """The code, kept as it is known by its id; the layer, as others of its class share its code."""
    reason: CannotLower | None
    """Why Dynamo cannot capture it; None if there is nothing to report."""
    empty: bool
    """Whether Dynamo found nothing to capture."""
    kinds: frozenset[Any] = field(default=frozenset(), compare=False)
    """The kinds of arguments with which an empty function was called."""


class SkippedFrames:
    """What Dynamo does not try again in one module: functions by code, layers of torch.nn by instance."""

    def __init__(self) -> None:
        self._codes: dict[int, Skipped] = {}
        self._layers: weakref.WeakKeyDictionary[nn.Module, tuple[CannotLower | None, bool]] = (
            weakref.WeakKeyDictionary()
        )
        self._new: list[Skipped] = []
        """Those of the current forward, which count if it succeeds."""

    def find(self, frame: Any) -> Skipped | None:
        """What is known of this frame; None if Dynamo shall try it."""
        known = self._known(_what_runs(frame))
        if known is None or not 0 < len(known.kinds) < _KINDS:
            return known
        return known if _kind(frame) in known.kinds else None

    def _known(self, what: Any) -> Skipped | None:
        for new in reversed(self._new):
            if new.what is what:
                return new
        if not isinstance(what, nn.Module):
            return self._codes.get(id(what))
        return Skipped(what, *self._layers[what]) if what in self._layers else None

    def add(self, frame: Any, reason: CannotLower | None, *, empty: bool = False) -> Skipped:
        """Do not try this frame again; an empty function not with arguments of this kind."""
        what = _what_runs(frame)
        kinds: frozenset[Any] = frozenset()
        if empty and not isinstance(what, nn.Module):
            known = self._known(what)
            kinds = (known.kinds if known is not None else kinds) | {_kind(frame)}
        self._new.append(Skipped(what, reason, empty, kinds))
        return self._new[-1]

    def keep(self) -> None:
        for new in self._new:
            if isinstance(new.what, nn.Module):
                self._layers[new.what] = new.reason, new.empty
            else:
                self._codes[id(new.what)] = new
        self._new.clear()

    def drop_new(self) -> None:
        self._new.clear()

    def drop_empty(self) -> None:
        """Forget those in which there was nothing to capture."""
        self._codes = {key: known for key, known in self._codes.items() if not known.empty}
        for layer in [layer for layer, (_, empty) in self._layers.items() if empty]:
            del self._layers[layer]

    def clear(self) -> None:
        self._codes.clear()
        self._layers.clear()


def is_layer(frame: Any) -> bool:
    """Whether this is the forward of a layer of torch.nn."""
    code = frame.f_code
    if code.co_name != "forward" or not code.co_filename.startswith(LAYERS):
        return False
    return isinstance(frame.f_locals.get("self"), nn.Module)


def uses_optimizer(frame: Any) -> bool:
    """Whether this is a function of an optimizer, or has one as a variable.

    Dynamo guards which optimizer it is, and one that forward makes is another in each call.
    """
    if frame.f_code.co_filename.startswith(_OPTIMIZERS):
        return True
    return any(isinstance(value, torch.optim.Optimizer) for value in frame.f_locals.values())


def is_of_numpy(frame: Any) -> bool:
    """Whether this is a function of numpy on numbers and arrays: nothing in it has a gradient, and each size would be
    a capture of its own."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not all(map(_is_number_or_array, frame.f_locals.values())):
        return False
    code, names = frame.f_code, frame.f_globals
    return any(names.get(name) is numpy for name in code.co_names)


def _is_number_or_array(value: Any, functions: bool = True) -> bool:
    """Also lists and tuples of such, and functions of such: those of these may be without an end."""
    if isinstance(value, (list, tuple)):
        return all(_is_number_or_array(part, functions=False) for part in value)
    if isinstance(value, types.FunctionType):
        cells = [cell for cell in value.__closure__ or () if cell != _EMPTY_CELL]
        return functions and all(_is_number_or_array(c.cell_contents, False) for c in cells)
    return isinstance(value, _PLAIN) or type(value).__module__ == "numpy"


def _what_runs(frame: Any) -> Any:
    """The layer of torch.nn, as others of its class share its code; the code of another function."""
    return frame.f_locals["self"] if is_layer(frame) else frame.f_code


def _kind(frame: Any) -> tuple[Any, ...]:
    """What may decide whether a function computes anything: its plain arguments, and flags of its module."""
    return tuple(_plain(value, parts=True) for value in frame.f_locals.values())


def _plain(value: Any, parts: bool = False) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if parts and isinstance(value, nn.Module):
        return tuple(_plain(part) for part in vars(value).values())
    return type(value)
