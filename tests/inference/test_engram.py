"""Layers with a memory of n-grams and several residual streams, beside stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.inference.test_data_sizes import compare
from tests.inference.test_operators_of_onnxruntime import MICROSOFT, real, single

GATE = [real(2, 3, 2, 8), real(2, 3, 2, 8, seed=2), real(2, 3, 8, seed=3)]
SCALES = [real(2, 8, seed=seed) for seed in (4, 5, 6)]
STREAMS, BLOCK = real(2, 3, 4, 8), real(2, 3, 8, seed=3)
WORDS = np.random.default_rng(0).integers(0, 6, (2, 7))
HASHES = [np.array([3, 7, -(1 << 62) + 1]), np.array([5, 7, 11, 13])]
BEFORE, OFFSETS, END = np.array([[4, 1], [2, 3]]), np.array([0, 5, 12, 23]), np.array(4)
PARTS = np.array([[0, 0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1, 1]], "int32")


def n_grams(operands: list[Any], **attributes: Any) -> tuple[bytes, dict[str, Any]]:
    sizes = {"pad_id": 1, "n_head_per_ngram": 2, "max_ngram_size": 3}
    return single("NGramHashMapping", operands, 2, domain=MICROSOFT, **sizes, **attributes)


PACKED, BOUNDS = WORDS.reshape(14)[:9], np.array([0, 1, 5, 9], "int32")
STATES = np.array([[4, 1], [2, 3], [5, 4]])
SEGMENTS = np.array([0, 0, 1, 1, 2, 3, 3, 3, 4], "int32")
BEFORE_SEGMENTS = np.array([[0, 0], [7, 0], [3, 3]], "int32")
CAPTURED = np.array([2, 0, 3], "int32")


def packed_n_grams(
    operands: list[Any], outputs: int = 2, **attributes: Any
) -> tuple[bytes, dict[str, Any]]:
    sizes = {"pad_id": 1, "n_head_per_ngram": 2, "max_ngram_size": 3}
    attributes |= {"domain": MICROSOFT, **sizes}
    return single("VarlenNGramHashMapping", operands, outputs, **attributes)


ENGRAM: dict[str, tuple[bytes, dict[str, Any]]] = {
    "EngramGate": single("EngramGate", [*GATE, *SCALES], 2, domain=MICROSOFT, epsilon=0.1),
    "EngramGate alone": single("EngramGate", [*GATE, *SCALES[:2]], domain=MICROSOFT),
    **{
        f"HyperConnectionPreMix by {factors}": single(
            "HyperConnectionPreMix",
            [STREAMS, real(*factors, seed=2)],
            domain=MICROSOFT,
            reduction_scale=0.5,
        )
        for factors in ((2, 3, 4), (2, 3, 4, 1), (2, 3, 4, 8))
    },
    **{
        f"HyperConnectionPostMix by {factors}": single(
            "HyperConnectionPostMix",
            [STREAMS, BLOCK, real(*factors, seed=2), real(2, 3, 4, 4, seed=5)],
            domain=MICROSOFT,
        )
        for factors in ((2, 3, 4), (2, 3, 4, 1), (2, 3, 4, 8))
    },
    "HyperConnectionPreMix of rows": single(
        "HyperConnectionPreMix",
        [real(2, 3, 32), real(2, 3, 32, seed=2)],
        domain=MICROSOFT,
        num_branches=4,
    ),
    "HyperConnectionPostMix of rows": single(
        "HyperConnectionPostMix",
        [real(2, 3, 32), BLOCK, real(2, 3, 4, seed=2)],
        domain=MICROSOFT,
        num_branches=4,
    ),
    "NGramHashMapping": n_grams([WORDS, *HASHES]),
    "NGramHashMapping of int32": n_grams(
        [WORDS.astype("int32"), np.array([3, 7, 11], "int32"), HASHES[1].astype("int32")]
    ),
    "NGramHashMapping behind others": n_grams([WORDS, *HASHES, BEFORE, OFFSETS]),
    "NGramHashMapping up to ends": n_grams([WORDS, *HASHES, BEFORE, OFFSETS, END], reset_on_eos=1),
    "NGramHashMapping filled with ends": n_grams([WORDS, *HASHES, None, None, END]),
    "NGramHashMapping of segments": n_grams([WORDS, *HASHES, None, None, None, PARTS]),
    "NGramHashMapping of all": n_grams(
        [WORDS, *HASHES, BEFORE, OFFSETS, END, PARTS], reset_on_eos=1
    ),
    "VarlenNGramHashMapping": packed_n_grams([PACKED, *HASHES, BOUNDS]),
    "VarlenNGramHashMapping of int32": packed_n_grams(
        [PACKED.astype("int32"), np.array([3, 7, 11], "int32"), HASHES[1].astype("int32"), BOUNDS]
    ),
    "VarlenNGramHashMapping behind others": packed_n_grams(
        [PACKED, *HASHES, BOUNDS, STATES, OFFSETS]
    ),
    "VarlenNGramHashMapping up to ends": packed_n_grams(
        [PACKED, *HASHES, BOUNDS, STATES, OFFSETS, END], reset_on_eos=1
    ),
    "VarlenNGramHashMapping filled with ends": packed_n_grams(
        [PACKED, *HASHES, BOUNDS, None, None, END]
    ),
    "VarlenNGramHashMapping of segments": packed_n_grams(
        [PACKED, *HASHES, BOUNDS, None, None, None, SEGMENTS]
    ),
    "VarlenNGramHashMapping of segments behind others": packed_n_grams(
        [PACKED, *HASHES, BOUNDS, STATES, None, None, SEGMENTS, BEFORE_SEGMENTS], 3
    ),
    "VarlenNGramHashMapping that captures": packed_n_grams(
        [PACKED, *HASHES, BOUNDS, STATES, OFFSETS, END, SEGMENTS, BEFORE_SEGMENTS, CAPTURED],
        4,
        reset_on_eos=1,
        state_update_capacity=3,
    ),
}


@pytest.mark.parametrize("name", ENGRAM)
def test_an_operator_as_in_onnxruntime(name: str) -> None:
    model, feeds = ENGRAM[name]
    compare(model, feeds)


def test_chunks_of_a_text_give_the_numbers_of_the_whole() -> None:
    """The tokens at the end of one chunk come before the next."""
    model, feeds = n_grams([WORDS, *HASHES, BEFORE])
    whole = compare(model, feeds)
    before, found = BEFORE, []
    for chunk in (WORDS[:, :1], WORDS[:, 1:5], WORDS[:, 5:]):
        numbers, before = compare(model, {**feeds, "x0": chunk, "x3": before})
        found.append(numbers)
    np.testing.assert_array_equal(np.concatenate(found, 1), whole[0])
    np.testing.assert_array_equal(before, whole[1])
