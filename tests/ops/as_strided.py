"""AsStrided: windows of a tensor's memory."""

from __future__ import annotations

from torch import Tensor

from .case import Case, case, normal

_WINDOWS = "aten.as_strided.default"
_ELSEWHERE = "windows are views on CPUs"


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


def _repeated(x: Tensor) -> Tensor:
    return x.contiguous().as_strided((2, 9), (1, 0))


def _later(x: Tensor) -> Tensor:
    return x.contiguous().as_strided((2, 2), (4, 1), 5)


def _one(x: Tensor) -> Tensor:
    return x.contiguous().as_strided((), (), 2)


def cases() -> list[Case]:
    return [
        case(_WINDOWS, lambda n: (normal(2 * n, 3),), function=_overlapping, sizes=(2,)),
        case(_WINDOWS, lambda n: (normal(n, 4, 7),), function=_shifted, label="-shifted"),
        case(_WINDOWS, lambda n: (normal(n, 4),), function=_later, label="-later", sizes=(3,)),
        case(_WINDOWS, lambda n: (normal(n),), function=_repeated, label="-repeated", sizes=(2,)),
        case(_WINDOWS, lambda n: (normal(n),), function=_one, label="-scalar", sizes=(3,)),
        case("aten.unfold.default", lambda n: (normal(2, n + 5, 3), 1, 4, 1), aten=_ELSEWHERE),
        case("aten.unfold.default", lambda n: (normal(n, 9), -1, 3, 3), label="-apart", aten=_ELSEWHERE),
        case("aten.unfold.default", lambda n: (normal(n, 9), -1, 2, 5), label="-gaps", aten=_ELSEWHERE),
    ]  # fmt: skip
