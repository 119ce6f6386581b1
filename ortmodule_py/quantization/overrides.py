"""TensorQuantOverrides: what a script gives for single tensors, as onnxruntime takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ortmodule_py import _inference
from ortmodule_py.inference.notices import did_you_mean
from ortmodule_py.quantization.kinds import QuantType, integer_type

_KEYS = ("quant_type", "axis", "symmetric", "reduce_range", "rmin", "rmax", "scale", "zero_point")
_WITHOUT_SCALE = ("symmetric", "reduce_range", "rmin", "rmax")
_OF_TENSOR = ("quant_type", "axis", "symmetric", "reduce_range")


def set_overrides(
    options: _inference.StaticQuantization, given: Any, allowed: tuple[QuantType, ...]
) -> None:
    """Sets what `given` has by tensor: a dict, or one for each channel of an initializer.

    Raises ValueError for a key that is unknown, and for keys that contradict each other.
    """
    for name, channels in dict(given or {}).items():
        if isinstance(channels, Mapping) or not isinstance(channels, Sequence):
            raise ValueError(
                f"[quantization] TensorQuantOverrides of {name!r} must be a list of dicts, but found "
                f"{channels!r}"
            )
        for i, channel in enumerate(channels):
            _check(name, channels[0], channel)
            options.add_override(name, **_arguments(channel, allowed, first=i == 0))


def _check(name: str, first: Mapping[str, Any], channel: Mapping[str, Any]) -> None:
    def refuse(rule: str, found: Any) -> ValueError:
        return ValueError(
            f"[quantization] TensorQuantOverrides of {name!r} {rule}, but found {found!r}"
        )

    for key in channel:
        if key == "convert":
            raise refuse("must not change a value's type between its readers", key)
        if key not in _KEYS:
            raise refuse(f"must have keys among {_KEYS}{did_you_mean(key, list(_KEYS))}", key)
    if ("scale" in channel) != ("zero_point" in channel):
        raise refuse("must have both scale and zero_point or neither", sorted(channel))
    if "scale" in channel and any(key in channel for key in _WITHOUT_SCALE):
        raise refuse(f"must have none of {_WITHOUT_SCALE} beside scale", sorted(channel))
    if ("scale" in channel) != ("scale" in first):
        raise refuse("must have a scale for all channels or for none", sorted(channel))
    if channel is first:
        return
    if "axis" not in first:
        raise refuse("must have an axis with the first channel", sorted(first))
    for key in _OF_TENSOR:
        if key in channel and channel[key] != first.get(key):
            raise refuse(f"must have one {key} for all channels", channel[key])


def _arguments(
    channel: Mapping[str, Any], allowed: tuple[QuantType, ...], *, first: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if first and channel.get("quant_type") is not None:
        kind = integer_type(channel["quant_type"], allowed, "quant_type")
        found["type"] = kind.tensor_type
    if first and "axis" in channel:
        found["axis"] = int(channel["axis"])
    for key in ("symmetric", "reduce_range"):
        if first and channel.get(key) is not None:
            found[key] = bool(channel[key])
    for key, name in (("rmin", "least"), ("rmax", "most"), ("scale", "scale")):
        if channel.get(key) is not None:
            found[name] = float(channel[key])
    if "zero_point" in channel:
        found["zero_point"] = int(channel["zero_point"])
    return found
