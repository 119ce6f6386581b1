"""LinearAttention and GatedDeltaNet, beside stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortmodule_py import InferenceSession
from tests.inference.test_data_sizes import compare
from tests.inference.test_operators_of_onnxruntime import MICROSOFT, real, single

Array = np.ndarray[Any, Any]
RULES = ["linear", "gated", "delta", "gated_delta"]


def units(*shape: int, seed: int) -> Array:
    rows = real(*shape, seed=seed)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def decays(*shape: int) -> Array:
    return -0.3 * np.abs(real(*shape, seed=4))


def rates(*shape: int) -> Array:
    return np.random.default_rng(5).random(shape, np.float32)


def linear(rule: str, steps: int, keys: int, values: int, by_key: bool, past: bool) -> Any:
    queries, heads, batch = 4, 2, 2
    operands = [
        real(batch, steps, queries * keys, seed=1),
        units(batch, steps, heads, keys, seed=2).reshape(batch, steps, -1),
        real(batch, steps, heads * values, seed=3),
        real(batch, heads, keys, values, seed=6) if past else None,
        decays(batch, steps, heads * (keys if by_key else 1)) if "gated" in rule else None,
        rates(batch, steps, 1 if by_key else heads) if "delta" in rule else None,
    ]
    attributes = {"q_num_heads": queries, "kv_num_heads": heads, "update_rule": rule}
    return single("LinearAttention", operands, 2, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(("keys", "values"), [(8, 6), (5, 16), (16, 83)])
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("rule", RULES)
def test_steps_of_linear_attention(
    rule: str, steps: int, keys: int, values: int, by_key: bool
) -> None:
    compare(*linear(rule, steps, keys, values, by_key, past=steps > 1), rtol=1e-4)


def test_any_number_of_steps() -> None:
    compare(*linear("gated_delta", 700, 4, 4, False, past=True), rtol=1e-3)


def delta_net(
    rule: str = "gated_delta",
    steps: int = 5,
    heads: int = 4,
    by_key: bool = False,
    has_time: bool = True,
    packed: bool = False,
    gated: bool = False,
    **attributes: Any,
) -> tuple[bytes, dict[str, Any]]:
    batch, shared, keys, values = 2, 2, 8, 6
    rows = (batch, steps) if has_time else (batch * steps,)
    width = (heads, keys) if by_key else (heads,)
    parts = [
        real(*rows, shared, keys, seed=1),
        units(*rows, shared, keys, seed=2),
        real(*rows, heads, values, seed=3),
    ]
    if packed:
        matrix = np.concatenate([part.reshape(batch * steps, -1) for part in parts], 1)
    operands = [
        *([matrix, None, None] if packed else parts),
        None,
        decays(*rows, *width) if "gated" in rule else None,
        rates(*rows, heads) if "delta" in rule else None,
        real(batch, heads, values, keys, seed=6),
        real(heads, seed=7) if gated else None,
        real(*width, seed=8) if gated else None,
    ]
    return single("GatedDeltaNet", operands, 2, domain=MICROSOFT, update_rule=rule, **attributes)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "options",
    [{}, {"by_key": True}, {"heads": 2}, {"steps": 1}, {"has_time": False}, {"scale": 0.5}],
    ids=str,
)
def test_gated_delta_net(rule: str, options: dict[str, Any]) -> None:
    compare(*delta_net(rule, **options), rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"packed": True, "has_time": False},
        {"qk_l2_norm": 1},
        {"beta_activation": "sigmoid"},
        {"gated": True, "gate_activation": "softplus"},
        {"gated": True, "gate_activation": "softplus", "by_key": True},
        {"gated": True, "gate_activation": "sigmoid", "gate_lower_bound": -2.0},
        {"gated": True, "gate_activation": "kda", "by_key": True},
    ],
    ids=str,
)
def test_gates_of_a_delta_net(options: dict[str, Any]) -> None:
    compare(*delta_net(**options), rtol=1e-4)


@pytest.mark.parametrize("ends", [[0, 7], [0, 1, 5, 7], [0, 3, 6, 7], [0, 0, 7, 7]])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gated", [False, True])
def test_sequences_of_different_lengths(rule: str, ends: list[int], gated: bool) -> None:
    """Those of a state; without tokens it stays as it was."""
    tokens, shared, heads, keys, values = ends[-1], 2, 4, 8, 6
    operands = [
        real(tokens, shared, keys, seed=1),
        units(tokens, shared, keys, seed=2),
        real(tokens, heads, values, seed=3),
        np.array(ends, "int32"),
        decays(tokens, heads) if "gated" in rule else None,
        rates(tokens, heads) if "delta" in rule else None,
        real(len(ends) - 1, heads, values, keys, seed=6),
    ]
    attributes: dict[str, Any] = {"update_rule": rule}
    if gated and "gated" in rule:
        operands += [real(heads, seed=7), real(heads, seed=8)]
        attributes["gate_activation"] = "softplus"
    model, feeds = single("GatedDeltaNet", operands, 2, domain=MICROSOFT, **attributes)
    others = {**feeds, "x3": np.array([0, *sorted(tokens - end for end in ends[:-1])], "int32")}
    compare(model, feeds, others, rtol=1e-4)


@pytest.mark.parametrize(("operand", "width"), [(4, 0), (4, 1), (4, 3), (4, 64), (5, 0), (5, 3)])
def test_gates_of_another_width_are_refused(operand: int, width: int) -> None:
    """Two heads of four keys: a decay of 2 or 8 numbers, a rate of 1 or 2."""
    shapes = [(2, 4, 16), (2, 4, 8), (2, 4, 6), (2, 2, 4, 3), (2, 4, 2), (2, 4, 2)]
    shapes[operand] = (2, 4, width)
    model, feeds = single(
        "LinearAttention",
        [real(*shape) for shape in shapes],
        2,
        domain=MICROSOFT,
        q_num_heads=4,
        kv_num_heads=2,
    )
    with pytest.raises(RuntimeError, match=f"operand {operand} must have sizes"):
        InferenceSession(model).run(None, feeds)
