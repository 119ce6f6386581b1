"""Searches and sums along axes whose elements lie apart, of widths around those of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortmodule_py import InferenceSession
from tests.inference.test_data_sizes import stock
from tests.inference.test_operators_of_onnxruntime import single
from tests.inference.test_session import ONE_THREAD


def numbers(*sizes: int) -> Any:
    """With equal elements, and two zeros."""
    x = np.round(np.random.default_rng(len(sizes)).standard_normal(sizes) * 3).astype("float32")
    x[x == 2] = -0.0
    return x


def assert_equal(op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> None:
    model, feeds = single(op, inputs, outputs, **attributes)
    theirs = stock(model).run(None, feeds)
    for ours, wanted in zip(
        InferenceSession(model, ONE_THREAD).run(None, feeds), theirs, strict=True
    ):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("columns", [1, 2, 15, 16, 17, 70, 131])
def test_between_other_dimensions(columns: int) -> None:
    x = numbers(2, 9, columns)
    for op in ("ArgMax", "ArgMin"):
        assert_equal(op, [x], axis=1)
        assert_equal(op, [x], axis=1, select_last_index=1)
    for op in ("ReduceMax", "ReduceMin"):
        assert_equal(op, [x, np.array([1])])
    for exclusive in (0, 1):
        for reverse in (0, 1):
            assert_equal("CumSum", [x, np.array(1)], exclusive=exclusive, reverse=reverse)


def test_nan_wins_between_other_dimensions() -> None:
    x = numbers(2, 9, 40)
    x[0, 4, 3:30] = np.nan
    x[0, 7, 5:9] = np.nan
    for op, wanted in (("ReduceMax", x.max(1)), ("ReduceMin", x.min(1))):
        model, feeds = single(op, [x, np.array([1])], keepdims=0)
        (found,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
        np.testing.assert_array_equal(found, wanted)
    model, feeds = single("ArgMax", [x], axis=1, keepdims=0)
    (found,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    np.testing.assert_array_equal(found, x.argmax(1))


@pytest.mark.parametrize("kept", [1, 5, 16, 17])
@pytest.mark.parametrize("largest", [0, 1])
def test_a_few_first_elements(largest: int, kept: int) -> None:
    for n in (kept, 18, 40, 333):
        assert_equal("TopK", [numbers(3, n), np.array([min(kept, n)])], 2, largest=largest)
    x = numbers(2, 60, 3).astype("float64")
    assert_equal("TopK", [x, np.array([kept])], 2, largest=largest, axis=1)


def test_elements_of_the_last_axis() -> None:
    x = numbers(5, 300)
    for count in (1, 16, 255, 256, 600):
        places = np.random.default_rng(count).integers(-300, 300, count)
        assert_equal("Gather", [x, places], axis=1)
    model, feeds = single("Gather", [x, np.array([0, 300])], axis=1)
    with pytest.raises(RuntimeError, match="found 300 at position 1"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


def test_halves_of_every_kind() -> None:
    """Also where a vector has NaN."""
    edges = [np.nan, np.inf, -np.inf, 65504, 65519, 65520, 6e-8, 2.9e-8, 3e-8, -0.0, 1.0009766]
    x = np.array((edges + [0.1 * i for i in range(40)]) * 3, "float32")
    model, feeds = single("Cast", [x], to=10)
    (found,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    with np.errstate(over="ignore"):
        wanted = x.astype("float16")
    np.testing.assert_array_equal(found, wanted)
    model, feeds = single("Cast", [wanted], to=1)
    (wide,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    np.testing.assert_array_equal(wide, wanted.astype("float32"))


@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_windows_that_are_added_at_their_places(strides: list[int]) -> None:
    blocks = [(9 + 2 - 2 * 2 - 1) // strides[0] + 1, (11 + 1 - 1 - 1) // strides[1] + 1]
    x = np.random.default_rng(0).standard_normal((2, 4 * 6, blocks[0] * blocks[1]))
    model, feeds = single(
        "Col2Im",
        [x.astype("float32"), np.array([9, 11]), np.array([3, 2])],
        strides=strides,
        dilations=[2, 1],
        pads=[1, 0, 1, 1],
    )
    (theirs,) = stock(model).run(None, feeds)
    (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
