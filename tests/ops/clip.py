"""Clip and its named relatives."""

from __future__ import annotations

from .case import Case, case, integers, normal, numbers

_CLAMP = "aten.clamp.default"


def cases() -> list[Case]:
    return [
        case(_CLAMP, lambda n: (normal(n, 3), -0.5, 0.5)),
        case(_CLAMP, lambda n: (normal(n), None, 0.5), label="-upper"),
        case(_CLAMP, lambda n: (integers(9, n), 2, 5), label="-integers"),
        case(_CLAMP, lambda n: (integers(9, n), 2.5, None), label="-promoted"),
        case(_CLAMP, lambda n: (numbers(0.0, 6.0, 3.0, 7.0, -1.0), 0, 6), label="-edges"),
        case(_CLAMP, lambda n: (normal(n, 3), float("nan"), 0.5), label="-nan", aten="NaN"),
        case(_CLAMP, lambda n: (integers(9, 9), 1, n), label="-size"),
        case(_CLAMP, lambda n: (numbers(0.0, 2.0, 3.0, 3.5, 9.0), n, n + 1), label="-sizes"),
        case("aten.clamp_min.default", lambda n: (normal(n), 0)),
        case("aten.clamp_max.default", lambda n: (normal(n), 0.1)),
        case("aten.clamp_max.default", lambda n: (integers(9, 9), n), label="-size"),
        case("aten.hardtanh.default", lambda n: (3 * normal(n, 3),)),
        case("aten.hardtanh.default", lambda n: (3 * normal(n), -0.5, 2), label="-bounds"),
        case(
            "aten.hardtanh.default",
            lambda n: (normal(n), -0.5, float("nan")),
            label="-nan",
            aten="NaN",
            # 0 in torch's vectors of the CPU, dy in its single elements and on CUDA
            gradient=False,
        ),
        case("aten.relu6.default", lambda n: (5 * normal(n, 3),)),
        case("aten.relu6.default", lambda n: (numbers(0.0, 6.0, 3.0, 7.0, -1.0),), label="-edges"),
    ]
