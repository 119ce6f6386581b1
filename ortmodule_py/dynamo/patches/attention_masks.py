"""Masks of `nn.Transformer`, its encoder and its decoder, as part of one graph.

They ask of the values of a mask whether it is the causal one, to choose a kernel that needs no mask:
a question that no graph can hold, and nothing of them would be captured. While ORTModules run, a
capture takes the mask as it is, which gives the same results; `is_causal=True` (`tgt_is_causal`) says
what the values would.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.modules import transformer

from ortmodule_py.base.torch_state import SharedPatch

_NAME = "_detect_is_causal_mask"
_ask = getattr(transformer, _NAME, None)


def _is_causal(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    if torch.compiler.is_dynamo_compiling():
        return is_causal is True
    return bool(_ask(mask, is_causal, size))  # type: ignore[misc]


class _Replaced:
    def __enter__(self) -> None:
        setattr(transformer, _NAME, _is_causal)

    def __exit__(self, *_: Any) -> None:
        setattr(transformer, _NAME, _ask)


taken_as_they_are: Any = contextlib.nullcontext() if _ask is None else SharedPatch(_Replaced())
"""Around each run of an ORTModule."""
