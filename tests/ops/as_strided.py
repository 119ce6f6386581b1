"""AsStrided: windows of a tensor's memory."""

from __future__ import annotations

from torch import Tensor

from .case import Case, case, normal

_WINDOWS = "aten.as_strided.default"


def _overlapping(x: Tensor) -> Tensor:
    """Windows of four rows, each two rows behind the last, as Longformer makes chunks."""
    x = x.contiguous()
    rows, width = x.shape
    return x.as_strided((rows // 2 - 1, 4, width), (2 * width, width, 1))


def _shifted(x: Tensor) -> Tensor:
    """Scores of relative positions, as icefall reads them."""
    x = x.contiguous()
    heads, time, places = x.shape
    stride = (time * places, places - 1, 1)
    return x.as_strided((heads, time, (places + 1) // 2), stride, (places - 1) // 2)


def cases() -> list[Case]:
    return [
        case(_WINDOWS, lambda n: (normal(2 * n, 3),), function=_overlapping, sizes=(2,)),
        case(_WINDOWS, lambda n: (normal(n, 4, 7),), function=_shifted, label="-shifted"),
        case(_WINDOWS, lambda n: (normal(3, 4), [2, 2], [4, 1], 5), label="-fixed",
             symbolic=False),
    ]  # fmt: skip
