"""Attention over masks and caches, of ONNX and of onnxruntime's own domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ortmodule_py import InferenceSession
from tests.inference.test_data_sizes import stock
from tests.inference.test_operators_of_onnxruntime import MICROSOFT, Array, real, single
from tests.inference.test_session import ONE_THREAD

CAUSAL = np.tril(np.ones((12, 12), bool))
FLOATS = np.where(CAUSAL, 0, -np.inf).astype("float32")
BLIND = np.where(np.arange(12)[:, None] == 3, -np.inf, FLOATS).astype("float32")
LEFT, RIGHT = (
    np.where(seen, 0, -np.inf).astype("float32")[None].repeat(12, 0)
    for seen in (np.arange(12) > 4, np.arange(12) < 7)
)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mask", [None, CAUSAL, FLOATS, BLIND, LEFT, RIGHT])
def test_attention_with_a_mask_is_one_step(mask: Array | None, softcap: float) -> None:
    operands = [real(2, 4, 12, 8, seed=seed) for seed in range(3)]
    model, feeds = single("Attention", [*operands, mask], opset=23, fixed=True, softcap=softcap)
    session = InferenceSession(model, ONE_THREAD)
    np.testing.assert_allclose(
        session.run(None, feeds)[0], stock(model).run(None, feeds)[0], rtol=1e-5, atol=1e-6
    )
    assert "Softmax" not in session.plan(feeds)


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("float16", "float32")])
def test_a_mask_of_another_float_type(dtypes: tuple[str, str]) -> None:
    operands = [real(2, 4, 12, 8, seed=seed, dtype=dtypes[0]) for seed in range(3)]
    bias = real(12, 12, seed=9, dtype=dtypes[1])
    model, feeds = single("Attention", [*operands, bias], opset=23)
    np.testing.assert_allclose(
        InferenceSession(model, ONE_THREAD).run(None, feeds)[0],
        stock(model).run(None, feeds)[0],
        rtol=2e-3,
        atol=2e-3,
    )


def test_attention_in_16_bits_keeps_its_sums_in_32() -> None:
    operands = [real(1, 2, 12, 8, seed=seed, dtype="float16") for seed in range(3)]
    model, feeds = single("Attention", [*operands, FLOATS.astype("float16")], opset=23)
    exact = InferenceSession(
        single("Attention", [*(x.astype("float32") for x in operands), FLOATS], opset=23)[0]
    )
    wanted = exact.run(None, {name: x.astype("float32") for name, x in feeds.items()})[0]
    got = InferenceSession(model, ONE_THREAD).run(None, feeds)[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def grouped(
    past: list[Array], total: int, chunk: int, dtype: str = "float32", **attributes: Any
) -> tuple[bytes, dict[str, Any]]:
    """GroupQueryAttention of 4 heads, 2 of keys, whose last `chunk` of `total` keys are new."""
    width, angles = 16, np.arange(40)[:, None] / 3.0 ** np.arange(8)
    tables = [np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)]
    ends = [np.array([total - 1], "int32"), np.array(total, "int32")]
    x = real(1, chunk, 8 * width, seed=total, dtype=dtype)
    sink = attributes.pop("sink", None)
    return single(
        "GroupQueryAttention",
        [x, None, None, *past, *ends, *tables, None, None, sink],
        3,
        domain=MICROSOFT,
        num_heads=4,
        kv_num_heads=2,
        do_rotary=1,
        **attributes,
    )


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"local_window_size": 3},
        {"local_window_size": 6, "sliding_window_cache": 1},
        {"softcap": 2.0},
        {"smooth_softmax": 1},
        {"sink": real(4)},
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_unwritten_rows_of_a_cache_may_be_anything(
    attributes: dict[str, Any], chunk: int, dtype: str
) -> None:
    """A buffer for the longest text is seldom cleared when it is made."""
    held = [real(1, 2, 20, 16, seed=seed, dtype=dtype) for seed in (5, 6)]
    results = []
    for unwritten in (0.0, np.nan):
        past = [x.copy() for x in held]
        for x in past:
            x[:, :, 7:] = unwritten
        model, feeds = grouped(past, 7 + chunk, chunk, dtype, **attributes)
        results.append(InferenceSession(model, ONE_THREAD).run(None, feeds)[0])
    np.testing.assert_array_equal(*results)
    assert not np.isnan(results[0]).any()


@pytest.mark.parametrize(
    ("rows", "chunks"), [(4, (3, 1, 1, 9, 1)), (6, (1,) * 14), (9, (20, 7, 1))]
)
def test_a_cache_of_a_window(rows: int, chunks: tuple[int, ...]) -> None:
    """GroupQueryAttention that drops what its window has left: rows of the cache behind the last key
    have no meaning, all others are onnxruntime's."""
    window = 4
    past = [np.zeros((1, 2, rows, 16), "float32")] * 2
    total = 0
    for chunk in chunks:
        total += chunk
        model, feeds = grouped(past, total, chunk, local_window_size=window, sliding_window_cache=1)
        wanted = stock(model).run(None, feeds)
        got = InferenceSession(model, ONE_THREAD).run(None, feeds)
        dropped = rows - window + 1
        kept = total - -(-max(total - rows, 0) // dropped) * dropped
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(got[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(ours[:, :, :kept], theirs[:, :, :kept], rtol=1e-5, atol=1e-5)
        past = wanted[1:]


def test_a_cache_smaller_than_its_window_is_refused() -> None:
    past = [np.zeros((1, 2, 3, 16), "float32")] * 2
    model, feeds = single(
        "GroupQueryAttention",
        [real(1, 1, 128), None, None, *past, np.array([0], "int32"), np.array(1, "int32")],
        3,
        domain=MICROSOFT,
        num_heads=4,
        kv_num_heads=2,
        local_window_size=4,
        sliding_window_cache=1,
    )
    with pytest.raises(RuntimeError, match="at least local_window_size rows, 4"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


def chunk_of(
    past: list[Array], ends: list[int], total: int, chunk: int, more: dict[int, Array], **kinds: Any
) -> tuple[bytes, dict[str, Any]]:
    """GroupQueryAttention of 4 heads, 2 of keys, with operands behind the caches by position."""
    operands: list[Any] = [real(len(ends), chunk, 128, seed=total), None, None, *past]
    operands += [np.array(ends, "int32") - 1, np.array(total, "int32")]
    operands += [more.get(i) for i in range(7, max(more, default=6) + 1)]
    return single(
        "GroupQueryAttention",
        operands,
        3,
        domain=MICROSOFT,
        num_heads=4,
        kv_num_heads=2,
        **kinds,
    )


def compare_chunk(model: bytes, feeds: dict[str, Any], rows: int, keys: list[int]) -> None:
    """What is behind these rows of the result and keys of the caches has no meaning."""
    got = InferenceSession(model, ONE_THREAD).run(None, feeds)
    wanted = stock(model).run(None, feeds)
    np.testing.assert_allclose(got[0][:, :rows], wanted[0][:, :rows], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got[1:], wanted[1:], strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        for one, other, count in zip(ours, theirs, keys, strict=True):
            np.testing.assert_allclose(one[:, :count], other[:, :count], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("chunk", "total"), [(5, 5), (1, 6), (3, 9)])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("attributes", [{}, {"local_window_size": 3}, {"smooth_softmax": 1}])
def test_quantized_caches(
    kind: str, bits: int, chunk: int, total: int, attributes: dict[str, Any]
) -> None:
    random = np.random.default_rng(total)
    dtype, size = ("int8", 16) if bits == 8 else ("uint8", 8)
    past = [random.integers(0, 100, (1, 2, 24, size)).astype(dtype) for _ in range(2)]
    shape = (1,) if kind == "PER_TENSOR" else (1, 2, 1, 16)
    span = 0.04 if bits == 8 else 0.5
    scales = [(span * (0.3 + random.random(shape))).astype("float32") for _ in range(2)]
    model, feeds = chunk_of(
        past,
        [total],
        total,
        chunk,
        {12: scales[0], 13: scales[1]},
        k_quant_type=kind,
        v_quant_type=kind,
        kv_cache_bit_width=bits,
        **attributes,
    )
    compare_chunk(model, feeds, chunk, [total])


def test_a_quantized_cache_without_scales_is_refused() -> None:
    past = [np.zeros((1, 2, 24, 16), "int8")] * 2
    model, feeds = chunk_of(past, [5], 5, 5, {}, k_quant_type="PER_TENSOR")
    with pytest.raises(RuntimeError, match="must be given together"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


@pytest.mark.parametrize("window", [-1, 4])
def test_chunks_that_are_padded(window: int) -> None:
    past = [real(2, 2, 24, 16, seed=seed) for seed in (5, 6)]
    model, feeds = chunk_of(
        past, [9, 15], 24, 5, {16: np.array([3, 2], "int32")}, local_window_size=window
    )
    compare_chunk(model, feeds, 2, [9, 15])


@pytest.mark.parametrize(("chunk", "total"), [(5, 5), (1, 6), (3, 9)])
def test_queries_that_see_all_keys(chunk: int, total: int) -> None:
    past = [real(1, 2, 24, 16, seed=seed) for seed in (5, 6)]
    compare_chunk(*chunk_of(past, [total], total, chunk, {}, causal=0), chunk, [total])


@pytest.mark.parametrize("rows", [9, 24])
def test_a_bias_of_the_keys_that_are_there(rows: int) -> None:
    """A buffer for the longest text has more rows than the bias has columns."""
    past = [real(1, 2, rows, 16, seed=seed) for seed in (5, 6)]
    compare_chunk(*chunk_of(past, [9], 9, 3, {10: real(1, 4, 3, 9)}), 3, [9])


def test_a_bias_of_the_keys_of_a_window() -> None:
    past = [real(1, 2, 6, 16, seed=seed) for seed in (5, 6)]
    more = {10: real(1, 4, 2, 11)}
    model, feeds = chunk_of(past, [11], 11, 2, more, local_window_size=4, sliding_window_cache=1)
    compare_chunk(model, feeds, 2, [5])


def test_normalized_heads() -> None:
    """The norms of Qwen3: what nodes in front of the operator would give."""
    past = [real(1, 2, 24, 16, seed=seed) for seed in (5, 6)]
    weights = [np.abs(real(16, seed=seed)) for seed in (7, 8)]
    model, feeds = chunk_of(past, [9], 9, 3, {14: weights[0], 15: weights[1]}, qk_norm_epsilon=0.1)
    got = InferenceSession(model, ONE_THREAD).run(None, feeds)
    plain, feeds = chunk_of(past, [9], 9, 3, {})
    heads = feeds["x0"].reshape(1, 3, 8, 16)
    for first, last, weight in ((0, 4, weights[0]), (4, 6, weights[1])):
        part = heads[:, :, first:last]
        part *= weight / np.sqrt((part**2).mean(-1, keepdims=True) + 0.1)
    for one, other in zip(got, InferenceSession(plain, ONE_THREAD).run(None, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def sparse(held: list[int], chunk: int, rows: int = 64, **attributes: Any) -> Any:
    """SparseAttention of 4 heads, 2 of keys, with two layouts of blocks of 16 keys, whose last
    `chunk` keys are new in a batch that holds as many as `held` says."""
    width, angles = 16, np.arange(rows)[:, None] / 3.0 ** np.arange(8)
    tables = [np.cos(angles).astype("float32"), np.sin(angles).astype("float32")]
    ends = np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], "int32")
    columns = np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], "int32")
    lengths = np.array(held, "int32") + chunk
    x = real(len(held), chunk, 8 * width, seed=chunk)
    past = [real(len(held), 2, rows, width, seed=seed) for seed in (5, 6)]
    for cache in past:
        for row, count in zip(cache, held, strict=True):
            row[:, count:] = np.nan
    operands = [x, None, None, *past, ends, columns, lengths.max(), lengths, *tables]
    operands[7] = np.array([operands[7]], "int32")
    return single(
        "SparseAttention",
        operands,
        3,
        domain=MICROSOFT,
        num_heads=4,
        kv_num_heads=2,
        sparse_block_size=16,
        do_rotary=1,
        **attributes,
    )


def in_place(session: Any, module: Any, feeds: dict[str, Array], caches: list[str]) -> list[Array]:
    """A run whose second and further outputs are written over these feeds."""
    binding = session.io_binding()
    values = {name: module.OrtValue.ortvalue_from_numpy(x.copy()) for name, x in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0")
    for i, name in enumerate(caches):
        binding.bind_ortvalue_output(f"y{i + 1}", values[name])
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("held", "chunk"), [([0], 40), ([37], 1), ([30], 5)])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_sparse_attention(held: list[int], chunk: int, interleaved: int) -> None:
    """onnxruntime's, which wants the caches to be changed in place; what is behind is not read."""
    import onnxruntime

    import ortmodule_py.onnxruntime as ours

    model, feeds = sparse(held, chunk, rotary_interleaved=interleaved)
    session = InferenceSession(model, ONE_THREAD)
    got = session.run(None, feeds)
    wanted = in_place(stock(model), onnxruntime, feeds, ["x3", "x4"])
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    assert not np.isnan(got[0]).any()
    for mine, theirs in zip(in_place(session, ours, feeds, ["x3", "x4"]), got, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_sparse_attention_of_texts_of_different_lengths() -> None:
    """Each has the result that it has alone, of which onnxruntime has that of the longest only."""
    model, feeds = sparse([30, 7, 19], 5)
    together = InferenceSession(model, ONE_THREAD).run(None, feeds)
    assert not np.isnan(together[0]).any()
    for i, held in enumerate([30, 7, 19]):
        alone, own = sparse([held], 5)
        for name in ("x0", "x3", "x4"):
            own[name] = feeds[name][i : i + 1]
        for one, all_of_them in zip(
            InferenceSession(alone, ONE_THREAD).run(None, own), together, strict=True
        ):
            np.testing.assert_allclose(one, all_of_them[i : i + 1], rtol=1e-5, atol=1e-5)


def test_sparse_attention_that_does_not_fit_is_refused() -> None:
    model, feeds = sparse([60], 5)
    with pytest.raises(RuntimeError, match="a row for each key of total_sequence_length"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)
