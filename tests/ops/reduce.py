"""ReduceSum, ReduceMean, ReduceMax and ReduceMin."""

from __future__ import annotations

import torch

from .case import Case, case, flags, integers, normal, small_steps

_SUM = "aten.sum.dim_IntList"
_MEAN = "aten.mean.dim"


def _sums() -> list[Case]:
    return [
        case("aten.sum.default", lambda n: (normal(n, 3),)),
        case("aten.sum.default", lambda n: (flags(n),), label="-bool"),
        case("aten.sum.default", lambda n: (integers(9, n, dtype=torch.int32),), label="-i32"),
        case("aten.sum.default", lambda n: (normal(),), label="-scalar"),
        case(_SUM, lambda n: (normal(n, 3), [0])),
        case(_SUM, lambda n: (normal(n, 3), [-1], True), label="-keep"),
        case(_SUM, lambda n: (normal(n, 3), None), label="-all"),
        case(_SUM, lambda n: (normal(n, 3), []), label="-none"),
        case(_SUM, lambda n: (normal(2, n, 3), [0, 2]), label="-two"),
        case(_SUM, lambda n: (normal(2, n, 1, 3, 2), [1, 3]), label="-5d"),
        case(_SUM, lambda n: (normal(n, 131), [1]), label="-wide"),
        case(_SUM, lambda n: (normal(131, n), [0]), label="-tall"),
        case(
            _SUM,
            lambda n: (normal(n, 3, dtype=torch.bfloat16), [1]),
            dtype=torch.float32,
            label="-widened",
        ),
    ]


def _means() -> list[Case]:
    return [
        case("aten.mean.default", lambda n: (normal(n, 3),)),
        case("aten.mean.default", lambda n: (integers(3, n),), dtype=torch.float32, label="-i64"),
        case(_MEAN, lambda n: (normal(n, 3), [0])),
        case(_MEAN, lambda n: (normal(n, 3), [-1], True), label="-keep"),
        case(_MEAN, lambda n: (normal(2, n, 3), [1, 2]), label="-two"),
    ]


def _extrema() -> list[Case]:
    result = []
    for side in ("max", "min"):
        along = f"aten.a{side}.default"
        result += [
            case(along, lambda n: (normal(n, 3), [-1])),
            case(along, lambda n: (normal(n, 3), [0], True), label="-keep"),
            case(along, lambda n: (small_steps(2, n, 3), [1]), label="-ties"),
            case(along, lambda n: (normal(n, 3),), label="-all"),
            case(along, lambda n: (normal(2, n, 1, 3, 2), [0, 3]), label="-5d"),
            case(f"aten.{side}.default", lambda n: (normal(n, 3),)),
            case(f"aten.{side}.default", lambda n: (small_steps(n, 3),), label="-ties"),
            case(f"aten.{side}.default", lambda n: (integers(9, n),), label="-integers"),
        ]
    return result


def cases() -> list[Case]:
    result = [*_sums(), *_means(), *_extrema()]
    for name in ("any", "all"):
        result += [
            case(f"aten.{name}.default", lambda n: (flags(n),)),
            case(f"aten.{name}.default", lambda n: (normal(n, 3),), label="-float"),
            case(f"aten.{name}.dim", lambda n: (integers(2, n, 3), 1)),
            case(f"aten.{name}.dim", lambda n: (flags(n, 3), 0, True), label="-keep"),
        ]
    return result
