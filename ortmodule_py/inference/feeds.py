"""What users pass to sessions, as the engine takes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from ortmodule_py.inference.errors import InvalidArgument, NoSuchFile
from ortmodule_py.inference.model_facts import NodeArg
from ortmodule_py.inference.ort_value import OrtValue, numpy_type, value_of

T = TypeVar("T")


def checked_kind(value: T | None, kind: type[T], name: str) -> T:
    """The value, or a new one for None. Raises TypeError for objects of other classes.

    Providers are easily passed in the place of options.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise TypeError(
            f"[{name}] must be a {kind.__name__} of this package, but found {value!r}; other "
            "arguments are passed by name, as providers=[...]"
        )
    return value


def given_model(model: Any) -> tuple[str | None, bytes | None]:
    """The path of a model, or its content. Raises NoSuchFile or TypeError."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return None, bytes(model)
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"Unable to load from type '{type(model)}'")
    path = os.fspath(model)
    if not os.path.isfile(path):
        raise NoSuchFile(f"[InferenceSession] the model must be a file, but found {path!r}")
    return path, None


def check_mapping(given: Any, argument: str) -> None:
    """Raises TypeError for lists and None in the place of a dict."""
    if not isinstance(given, Mapping):
        found = type(given).__name__
        raise TypeError(f"[run] {argument} must be a dict by name of an input, but found {found}")


def as_feed(value: Any, wanted: NodeArg, on_device: bool = False) -> Any:
    """An array, a list of arrays for a sequence, a dict, or None for an optional without an element.

    `on_device`: the session can read tensors on its GPU there.
    """
    if isinstance(value, dict):
        return value
    if value is None and wanted.type.startswith("optional("):
        return None
    if "seq(" in wanted.type and isinstance(value, (list, tuple)):
        return [as_array(element, wanted, on_device) for element in value]
    return as_array(value, wanted, on_device)


def as_array(value: Any, wanted: NodeArg, on_device: bool = False) -> Any:
    """An array, or a native value for an OrtValue and for types that numpy lacks."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, OrtValue):
        return value._ortvalue
    if hasattr(value, "detach"):  # a tensor of torch
        return _of_torch(value, wanted, on_device)
    if value is None:  # which numpy takes for a NaN
        raise InvalidArgument(f"[run] input '{wanted.name}' must have a value, but found None")
    try:
        return np.asarray(value, dtype=numpy_type(wanted.type))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"[run] input '{wanted.name}' must be an array of {wanted.type}, or what numpy makes one "
            f"of, but found {type(value).__name__}: {error}"
        ) from None


def _of_torch(value: Any, wanted: NodeArg, on_device: bool) -> Any:
    layout = str(getattr(value, "layout", "torch.strided"))
    if value.device.type == "meta" or layout != "torch.strided":
        raise InvalidArgument(
            f"[run] input '{wanted.name}' must be a dense tensor with data, but found one of layout "
            f"{layout} on device {value.device}"
        )
    if on_device and value.device.type == "cuda":
        return value_of(value)
    try:
        return value.numpy(force=True)
    except TypeError:  # a type that numpy lacks
        return value_of(value.cpu())
