"""Resize."""

from __future__ import annotations

from .case import Case, case, normal


def _of_rank(rank: int, n: int):
    return normal(n, 3, *[6] * rank)


def cases() -> list[Case]:
    found = []
    for rank, modes in (
        (1, ("upsample_nearest1d", "_upsample_nearest_exact1d")),
        (2, ("upsample_nearest2d", "_upsample_nearest_exact2d")),
        (3, ("upsample_nearest3d", "_upsample_nearest_exact3d")),
    ):
        for mode in modes:
            target = f"aten.{mode}.default"
            found += [
                case(target, lambda n, r=rank: (_of_rank(r, n), [9] * r)),
                case(target, lambda n, r=rank: (_of_rank(r, n), [10] * r, *[1.7] * r),
                     label="-scaled"),
            ]  # fmt: skip
    for rank, mode in (
        (1, "upsample_linear1d"),
        (2, "upsample_bilinear2d"),
        (3, "upsample_trilinear3d"),
        (2, "upsample_bicubic2d"),
        (2, "_upsample_bilinear2d_aa"),
        (2, "_upsample_bicubic2d_aa"),
    ):
        target = f"aten.{mode}.default"
        found += [
            case(target, lambda n, r=rank: (_of_rank(r, n), [4] * r, False)),
            case(target, lambda n, r=rank: (_of_rank(r, n), [11] * r, True), label="-corners"),
            case(target, lambda n, r=rank: (_of_rank(r, n), [10] * r, False, *[1.7] * r),
                 label="-scaled"),
        ]  # fmt: skip
    return found
