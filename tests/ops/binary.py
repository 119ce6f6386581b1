"""Arithmetic of two operands: broadcasting, promotion, numbers, rounding."""

from __future__ import annotations

import torch

from .case import Case, case, flags, integers, normal, numbers, positive, small_steps

_BF16 = torch.bfloat16


def _arithmetic(name: str) -> list[Case]:
    target = f"aten.{name}.Tensor"
    return [
        case(target, lambda n: (normal(n, 3), positive(3))),
        case(target, lambda n: (normal(n, 3), positive(n, 1)), label="-column"),
        case(target, lambda n: (normal(1, 3), positive(n, 1)), label="-both"),
        case(target, lambda n: (normal(3), positive(2, n, 1, 3)), label="-rank"),
        case(target, lambda n: (normal(n, 3), 2.5), label="-number"),
        case(target, lambda n: (normal(n, 3), n), label="-size"),
        case(target, lambda n: (integers(6, n, 3, low=1), integers(6, n, 3, low=1)), label="-i64"),
        case(target, lambda n: (integers(5, n, 3), positive(n, 3)), label="-mixed"),
        case(target, lambda n: (integers(6, n, low=1), 1.5), label="-promoted"),
        case(target, lambda n: (normal(n, dtype=_BF16), positive(n, dtype=torch.float32))),
        case(target, lambda n: (normal(n, dtype=_BF16), torch.tensor(1.5)), label="-bf16_scalar"),
        case(target, lambda n: (normal(n, 3), torch.tensor(1.5)), label="-scalar_tensor"),
        case(target, lambda n: (normal(2, n, 1, 3, 2), positive(n, 5, 1, 2)), label="-5d"),
        case(f"aten.{name}.Scalar", lambda n: (normal(n, 3), 2)),
    ]


def _division() -> list[Case]:
    result = []
    for mode in ("floor", "trunc", None):
        options = {"rounding_mode": mode, "label": f"-{mode}"}
        target = "aten.div.Tensor_mode"
        result += [
            case(target, lambda n: (5 * normal(n, 3), positive(n, 3)), **options),
            case(target, lambda n: (integers(5, n, low=-4), integers(4, n, low=1)), **options),
            case("aten.div.Scalar_mode", lambda n: (5 * normal(n), 2), **options),
        ]
    by_zero = [
        case(
            "aten.div.Tensor_mode",
            lambda n: (numbers(1.0, 0.0, -2.5), numbers(0.0, 0.0, 2.0)),
            rounding_mode=mode,
            label=f"-zero_{mode}",
        )
        for mode in ("floor", "trunc")
    ]
    return [
        *result,
        *by_zero,
        case("aten.floor_divide.default", lambda n: (5 * normal(n), positive(n)), gradient=False),
        case("aten.floor_divide.Scalar", lambda n: (5 * normal(n), 2), gradient=False),
        case("aten.remainder.Tensor", lambda n: (5 * normal(n), positive(n))),
        case("aten.remainder.Scalar", lambda n: (5 * normal(n), 2.0)),
        case("aten.remainder.Scalar", lambda n: (integers(5, n, low=-4), 3), label="-integers"),
        case("aten.remainder.Scalar_Tensor", lambda n: (7, integers(5, n, low=1))),
        case("aten.fmod.Tensor", lambda n: (5 * normal(n), positive(n))),
        case("aten.fmod.Scalar", lambda n: (integers(5, n, low=-4), 3), label="-integers"),
    ]


def _powers() -> list[Case]:
    target = "aten.pow.Tensor_Scalar"
    exponents = (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.7, -1.5)
    return [
        *(case(target, lambda n, e=e: (positive(n, 3), e), label=f"-{e}") for e in exponents),
        case(target, lambda n: (normal(n), 2), label="-signed"),
        case(target, lambda n: (integers(5, n), 2), label="-integers"),
        case(target, lambda n: (integers(5, n), 5), label="-integers"),
        case(target, lambda n: (integers(6, n, low=1), 0.5), label="-promoted"),
        case("aten.pow.Tensor_Tensor", lambda n: (positive(n, 3), normal(3))),
        case(
            "aten.pow.Tensor_Tensor",
            lambda n: (numbers(0.0, 0.0, 2.0), numbers(0.0, 2.0, 0.0)),
            label="-zeros",
        ),
        case("aten.pow.Scalar", lambda n: (10000.0, normal(n))),
        case("aten.pow.Scalar", lambda n: (2, integers(4, n)), label="-integers"),
        case("aten.pow.Scalar", lambda n: (0.0, positive(n)), label="-zero"),
    ]


def _extrema() -> list[Case]:
    result = []
    for name, other in (("maximum", "max.other"), ("minimum", "min.other")):
        target = f"aten.{name}.default"
        result += [
            case(target, lambda n: (normal(n, 3), normal(3))),
            case(target, lambda n: (small_steps(n), small_steps(n)), label="-ties"),
            case(target, lambda n: (flags(n), flags(n)), label="-bool"),
            case(f"aten.{other}", lambda n: (normal(n), normal(n))),
        ]
    return result


def cases() -> list[Case]:
    result = [c for name in ("add", "sub", "mul", "div") for c in _arithmetic(name)]
    return [
        *result,
        *_division(),
        *_powers(),
        *_extrema(),
        case("aten.add.Tensor", lambda n: (normal(n, 3), normal(n, 3)), alpha=2, label="-alpha"),
        case("aten.sub.Tensor", lambda n: (normal(n, 3), normal(3)), alpha=0.5, label="-alpha"),
        case("aten.rsub.Scalar", lambda n: (normal(n), 1.0)),
        case("aten.rsub.Tensor", lambda n: (normal(n), normal(n)), alpha=3),
        case("aten.add.Tensor", lambda n: (flags(n), flags(n)), label="-bool"),
        case("aten.mul.Tensor", lambda n: (flags(n), flags(n)), label="-bool"),
        case("aten.mul.Tensor", lambda n: (flags(n), normal(n)), label="-mask"),
        case("aten.add.Tensor", lambda n: (integers(3, n), True), label="-true"),
        case("aten.atan2.default", lambda n: (normal(n), normal(n))),
        case("aten.addcmul.default", lambda n: (normal(n, 3), normal(n, 3), normal(3)), value=0.5),
        case("aten.addcdiv.default", lambda n: (normal(n, 3), normal(n, 3), positive(3))),
    ]
