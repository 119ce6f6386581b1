"""Scaled dot product attention, which is a composition."""

from __future__ import annotations

from .case import Case, case, flags, normal

_ATTENTION = "aten.scaled_dot_product_attention.default"
_FUSED = "fused attention"


def _qkv(n: int):
    return normal(2, 2, n, 4), normal(2, 2, n, 4), normal(2, 2, n, 4)


def cases() -> list[Case]:
    return [
        case(_ATTENTION, _qkv, aten=_FUSED),
        case(_ATTENTION, _qkv, is_causal=True, label="-causal", aten=_FUSED),
        case(_ATTENTION, _qkv, scale=0.3, label="-scale", aten=_FUSED),
        case(_ATTENTION, lambda n: (*_qkv(n), normal(n, n)), label="-bias"),
        case(_ATTENTION, lambda n: (*_qkv(n), flags(n, n)), label="-mask", aten=_FUSED),
    ]
