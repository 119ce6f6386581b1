"""Activations but Relu, Gelu and the clips."""

from __future__ import annotations

from .case import Case, case, integers, normal

_NAMES = [
    "tanh",
    "sigmoid",
    "silu",
    "hardswish",
    "mish",
    "log_sigmoid",
    "elu",
    "leaky_relu",
    "softplus",
]


def cases() -> list[Case]:
    result = [case(f"aten.{name}.default", lambda n: (3 * normal(n, 3),)) for name in _NAMES]
    for name in ("tanh", "sigmoid"):
        target = f"aten.{name}.default"
        result.append(case(target, lambda n: (integers(5, n, low=-2),), label="-integers"))
    return [
        *result,
        # Eager's gradient multiplies by a sixth that was rounded to float32.
        case("aten.hardsigmoid.default", lambda n: (3 * normal(n, 3),), tolerance=30),
        case("aten.softplus.default", lambda n: (20 * normal(n), 2, 10), label="-beta"),
        case("aten.elu.default", lambda n: (normal(n), 0.5, 1.7, 1), label="-scales"),
        case(
            "aten.elu.default",
            lambda n: (normal(n), 1, 1, 0.7),
            label="-input_scale",
            aten="input_scale",
        ),
        case("aten.leaky_relu.default", lambda n: (normal(n), 0.2), label="-slope"),
        case("aten.leaky_relu.default", lambda n: (normal(n), -0.2), label="-negative"),
        case("aten.softshrink.default", lambda n: (normal(n, 3),)),
        case("aten.softshrink.default", lambda n: (normal(n, 3), 0.1), label="-lambda"),
        case("aten.glu.default", lambda n: (normal(n, 6),)),
        case("aten.glu.default", lambda n: (normal(2 * n, 3), 0), label="-first"),
        case("aten.silu.default", lambda n: (normal(2, n, 1, 3, 2),), label="-5d"),
    ]
