"""Searches for texts (GreedySearch, BeamSearch, Sampling), beside stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession
from ortmodule_py.inference import NotImplemented, RunOptions
from tests.inference.test_data_sizes import stock
from tests.inference.test_operators_of_onnxruntime import MICROSOFT
from tests.inference.test_session import ONE_THREAD

Array = np.ndarray[Any, Any]
TOKENS, SIZE, HEADS, LAYERS = 23, 16, 2, 2
END, PAD = 5, 0
INT32, FLOAT = TensorProto.INT32, TensorProto.FLOAT

node = helper.make_node
info = helper.make_tensor_value_info


def decoder(seed: int) -> GraphProto:
    """A small GPT-2 with random weights."""
    random = np.random.default_rng(seed)
    weights: dict[str, Array] = {
        "tokens": random.standard_normal((TOKENS, SIZE)),
        "places": random.standard_normal((40, SIZE)) * 0.5,
        "one": np.ones(SIZE),
        "head": random.standard_normal((SIZE, TOKENS)),
    }
    nodes = [
        node("Gather", ["tokens", "input_ids"], ["of_tokens"]),
        node("Gather", ["places", "position_ids"], ["of_places"]),
        node("Add", ["of_tokens", "of_places"], ["h0"]),
    ]
    inputs = [info(name, INT32, ["b", "s"]) for name in ("input_ids", "position_ids")]
    inputs.append(info("attention_mask", INT32, ["b", "t"]))
    outputs = [info("logits", FLOAT, ["b", "s", TOKENS])]
    for i in range(LAYERS):
        weights[f"w{i}"] = random.standard_normal((SIZE, 3 * SIZE)) * 0.3
        weights[f"b{i}"] = random.standard_normal(3 * SIZE) * 0.1
        weights[f"o{i}"] = random.standard_normal((SIZE, SIZE)) * 0.3
        nodes += [
            node("LayerNormalization", [f"h{i}", "one"], [f"n{i}"], axis=-1),
            node(
                "Attention",
                [f"n{i}", f"w{i}", f"b{i}", "attention_mask", f"past_{i}"],
                [f"a{i}", f"present_{i}"],
                domain=MICROSOFT,
                num_heads=HEADS,
                unidirectional=1,
            ),
            node("MatMul", [f"a{i}", f"o{i}"], [f"p{i}"]),
            node("Add", [f"h{i}", f"p{i}"], [f"h{i + 1}"]),
        ]
        inputs.append(info(f"past_{i}", FLOAT, [2, "b", HEADS, "p", SIZE // HEADS]))
        outputs.append(info(f"present_{i}", FLOAT, [2, "b", HEADS, "t", SIZE // HEADS]))
    nodes += [
        node("LayerNormalization", [f"h{LAYERS}", "one"], ["last"], axis=-1),
        node("MatMul", ["last", "head"], ["logits"]),
    ]
    stored = [numpy_helper.from_array(w.astype("float32"), name) for name, w in weights.items()]
    return helper.make_graph(nodes, "decoder", inputs, outputs, stored)


def search(
    op: str, operands: list[Any], outputs: int = 1, seed: int = 0, **attributes: Any
) -> tuple[bytes, dict[str, Array]]:
    """A model of a search, and its feeds. An int is one of int32, a float one of float32."""
    arrays: dict[str, Array] = {}
    for i, operand in enumerate(operands):
        if operand is not None and not isinstance(operand, np.ndarray):
            kind = np.float32 if isinstance(operand, float) else np.int32
            arrays[f"x{i}"] = np.array([operand], kind)
        elif operand is not None:
            arrays[f"x{i}"] = operand
    names = [f"x{i}" if f"x{i}" in arrays else "" for i in range(len(operands))]
    results = [f"y{i}" for i in range(outputs)]
    settings: dict[str, Any] = {"eos_token_id": END, "pad_token_id": PAD}
    if op != "WhisperBeamSearch":
        settings["model_type"] = 0
    settings |= {"decoder": decoder(seed), **attributes}
    graph = helper.make_graph(
        [node(op, names, results, domain=MICROSOFT, name="it", **settings)],
        "search",
        [
            info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()
        ],
        [info("y0", INT32, None), *(info(name, FLOAT, None) for name in results[1:])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString(), arrays


def attention(
    weights: dict[str, Array], name: str, queries: str, keys: str, values: str, mask: str = ""
) -> list[Any]:
    """Of `queries` [b, s, size] on keys and values [b, heads, t, size]; the result is `name`."""
    weights[f"{name}_q"] = np.random.default_rng(len(weights)).standard_normal((SIZE, SIZE)) * 0.4
    scores = f"{name}_scores"
    nodes = [
        node("MatMul", [queries, f"{name}_q"], [f"{name}_1"]),
        *heads(f"{name}_1", f"{name}_2"),
        node("Transpose", [keys], [f"{name}_3"], perm=[0, 1, 3, 2]),
        node("MatMul", [f"{name}_2", f"{name}_3"], [scores]),
    ]
    if mask:
        nodes.append(node("Add", [scores, mask], [f"{name}_masked"]))
        scores = f"{name}_masked"
    return [
        *nodes,
        node("Softmax", [scores], [f"{name}_shares"], axis=-1),
        node("MatMul", [f"{name}_shares", values], [f"{name}_4"]),
        node("Transpose", [f"{name}_4"], [f"{name}_5"], perm=[0, 2, 1, 3]),
        node("Reshape", [f"{name}_5", "merged"], [name]),
    ]


def heads(value: str, result: str) -> list[Any]:
    """[b, s, size] as [b, heads, s, size / heads]."""
    return [
        node("Reshape", [value, "split"], [f"{result}_split"]),
        node("Transpose", [f"{result}_split"], [result], perm=[0, 2, 1, 3]),
    ]


def projected(weights: dict[str, Array], value: str, result: str) -> list[Any]:
    weights[f"{result}_w"] = np.random.default_rng(len(weights)).standard_normal((SIZE, SIZE)) * 0.4
    return [node("MatMul", [value, f"{result}_w"], [f"{result}_p"]), *heads(f"{result}_p", result)]


def stored(weights: dict[str, Array]) -> list[Any]:
    shapes = {"split": np.array([0, 0, HEADS, -1]), "merged": np.array([0, 0, SIZE])}
    return [
        *(numpy_helper.from_array(w.astype("float32"), name) for name, w in weights.items()),
        *(numpy_helper.from_array(shape, name) for name, shape in shapes.items()),
    ]


def masked(mask: str) -> list[Any]:
    """Of [b, t], what is added to scores [b, heads, s, t]."""
    return [
        node("Cast", [mask], ["seen"], to=FLOAT),
        node("Sub", ["seen", "one"], ["hidden"]),
        node("Mul", ["hidden", "much"], ["less"]),
        node("Unsqueeze", ["less", "places"], ["bias"]),
    ]


def decoder_parts(
    weights: dict[str, Array], tokens: str, mask: str, past: str, text: str
) -> list[Any]:
    """A layer of T5's kind for each of LAYERS: keys and values `past`_{key,value}_self_i (none if
    that is empty) and `text`_{key,value}_cross_i, new ones present_{key,value}_self_i, and logits."""
    nodes = [node("Gather", ["tokens", tokens], ["d0"]), *(masked(mask) if mask else [])]
    for i in range(LAYERS):
        for kind in ("key", "value"):
            present = f"present_{kind}_self_{i}"
            new = f"new_{kind}_{i}" if past else present
            nodes += projected(weights, f"d{i}", new)
            if past:
                nodes.append(node("Concat", [f"{past}_{kind}_self_{i}", new], [present], axis=2))
        self_keys = (f"present_key_self_{i}", f"present_value_self_{i}")
        text_keys = (f"{text}_key_cross_{i}", f"{text}_value_cross_{i}")
        nodes += attention(weights, f"self{i}", f"d{i}", *self_keys)
        nodes.append(node("Add", [f"d{i}", f"self{i}"], [f"e{i}"]))
        nodes += attention(weights, f"cross{i}", f"e{i}", *text_keys, "bias" if mask else "")
        nodes.append(node("Add", [f"e{i}", f"cross{i}"], [f"d{i + 1}"]))
    return [*nodes, node("MatMul", [f"d{LAYERS}", "head"], ["logits"])]


def encoded_models(seed: int, steps: bool, sounds: bool = False) -> dict[str, GraphProto]:
    """An encoder and a decoder with random weights. `steps`: the encoder makes the first step, and the
    decoder reads what it made of the texts, as older files have it. `sounds`: the encoder reads features
    [b, t, SIZE], without a mask."""
    random = np.random.default_rng(seed)
    shared: dict[str, Array] = {
        "tokens": random.standard_normal((TOKENS, SIZE)),
        "head": random.standard_normal((SIZE, TOKENS)),
        "one": np.ones(1),
        "much": np.full(1, 10000.0),
    }
    shape = [HEADS, "t", SIZE // HEADS]
    cross = [f"{k}_cross_{i}" for i in range(LAYERS) for k in ("key", "value")]
    own = [f"{k}_self_{i}" for i in range(LAYERS) for k in ("key", "value")]
    weights = dict(shared)
    nodes = [node("Gather", ["tokens", "encoder_input_ids"], ["encoder_hidden_states"])]
    mask = "encoder_attention_mask"
    if sounds:
        nodes = [node("Tanh", ["encoder_input_ids"], ["encoder_hidden_states"])]
        mask = ""
    for name in cross:
        nodes += projected(weights, "encoder_hidden_states", f"present_{name}")
    masks = [info(mask, INT32, ["b", "t"])] if mask else []
    texts = info("encoder_input_ids", INT32, ["b", "t"])
    if sounds:
        texts = info("encoder_input_ids", FLOAT, ["b", "t", SIZE])
    inputs = [texts, *masks]
    outputs = [info(f"present_{name}", FLOAT, ["b", *shape]) for name in cross]
    places = numpy_helper.from_array(np.array([1, 2]), "places")
    decoder_weights = dict(shared)
    decoder_nodes = decoder_parts(decoder_weights, "input_ids", mask, "past", "past")
    if steps:
        # With the weights that the decoder has, whose names do not depend on the past.
        first = decoder_parts(dict(shared), "decoder_input_ids", mask, "", "present")
        nodes += first
        for name, weight in decoder_weights.items():
            weights.setdefault(name, weight)
        for i in range(LAYERS):
            for kind in ("key", "value"):
                weights[f"present_{kind}_self_{i}_w"] = decoder_weights[f"new_{kind}_{i}_w"]
        inputs.append(info("decoder_input_ids", INT32, ["b", "s"]))
        hidden = info("encoder_hidden_states", FLOAT, ["b", "t", SIZE])
        of_tokens = ["b", HEADS, "s", SIZE // HEADS]
        selves = [info(f"present_{name}", FLOAT, of_tokens) for name in own]
        outputs = [info("logits", FLOAT, ["b", "s", TOKENS]), hidden, *selves, *outputs]
    encoder = helper.make_graph(nodes, "encoder", inputs, outputs, [*stored(weights), places])
    reads = [info("encoder_hidden_states", FLOAT, ["b", "t", SIZE])] if steps else []
    graph = helper.make_graph(
        decoder_nodes,
        "decoder",
        [
            info("input_ids", INT32, ["b", 1]),
            *masks,
            *reads,
            *(info(f"past_{name}", FLOAT, ["b", HEADS, "p", SIZE // HEADS]) for name in own),
            *(info(f"past_{name}", FLOAT, ["b", *shape]) for name in cross),
        ],
        [
            info("logits", FLOAT, ["b", 1, TOKENS]),
            *(info(f"present_{name}", FLOAT, ["b", HEADS, "q", SIZE // HEADS]) for name in own),
        ],
        [*stored(decoder_weights), places],
    )
    return {"encoder": encoder, "decoder": graph}


def prompts(seed: int = 0) -> Array:
    return np.random.default_rng(seed + 100).integers(6, TOKENS, (2, 4)).astype(np.int32)


def tokens_mask(seed: int, *shape: int) -> Array:
    mask = np.random.default_rng(seed).integers(0, 2, shape).astype(np.int32)
    mask[..., 7] = 1
    return mask


PADDED = np.array([[PAD, PAD, 9, 10], [8, 7, 6, 9]], np.int32)
LONG = 12  # tokens in all


def written(tokens: Array, like: Array) -> Array:
    """Without what follows the end of a text, which onnxruntime leaves unwritten."""
    kept = tokens.copy()
    for row, ours in zip(kept, like, strict=True):
        row[np.flatnonzero(ours).max() + 2 :] = PAD
    return kept


GREEDY: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "plain": ([prompts(), LONG], {}),
    "repetitions": ([prompts(), LONG, None, 1.5], {}),
    "no pairs twice": ([prompts(), LONG], {"no_repeat_ngram_size": 2}),
    "longer": ([prompts(2), LONG, 9], {"seed": 2}),
    "some tokens": ([prompts(), LONG, None, None, tokens_mask(0, TOKENS)], {}),
    "some first tokens": ([prompts(), LONG, None, None, None, tokens_mask(1, 2, TOKENS)], {}),
    "padded": ([PADDED, LONG], {}),
    "masked": ([PADDED, LONG, None, None, None, None, (PADDED != 9).astype(np.int32)], {}),
    "without an end": ([prompts(), LONG], {"eos_token_id": -1}),
}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_search(name: str) -> None:
    operands, attributes = GREEDY[name]
    model, feeds = search("GreedySearch", operands, **attributes)
    (y,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    (expected,) = stock(model).run(None, feeds)
    np.testing.assert_array_equal(y, written(expected, y))


def beams(
    tokens: Array, beams: int = 3, returned: int = 2, length: float = 1.0, repeated: float = 1.0
) -> list[Any]:
    return [tokens, LONG, 1, beams, returned, length, repeated]


BEAMS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{f"plain {i}": (beams(prompts(i)), {"seed": i}) for i in range(4)},
    **{
        f"early {i}": (beams(prompts(i)), {"seed": i, "early_stopping": 1, "eos_token_id": 7})
        for i in range(3)
    },
    "one": (beams(prompts(), beams=1, returned=1), {}),
    "all": (beams(prompts(), returned=3), {}),
    "repetitions": (beams(prompts(), repeated=1.5), {}),
    "long ones": (beams(prompts(), length=2.0), {}),
    "short ones": (beams(prompts(), length=-1.0), {}),
    "no pairs twice": (beams(prompts()), {"no_repeat_ngram_size": 2}),
    "some tokens": ([*beams(prompts()), tokens_mask(0, TOKENS)], {}),
    "some first tokens": ([*beams(prompts()), None, tokens_mask(1, 2, TOKENS)], {}),
    "padded": (beams(PADDED), {}),
    "more beams than tokens": (beams(prompts(), beams=20, returned=5), {}),
}


@pytest.mark.parametrize("name", BEAMS)
def test_beam_search(name: str) -> None:
    operands, attributes = BEAMS[name]
    model, feeds = search("BeamSearch", operands, 2, **attributes)
    y, scores = InferenceSession(model, ONE_THREAD).run(None, feeds)
    expected, expected_scores = stock(model).run(None, feeds)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [False, True], ids=["two inputs", "three inputs"])
@pytest.mark.parametrize(
    ("seed", "tokens", "options"),
    [
        (0, prompts(0), {}),
        (1, prompts(1), {"early_stopping": 1}),
        (2, PADDED, {"no_repeat_ngram_size": 2}),
        (3, PADDED[:, ::-1].copy(), {}),
    ],
)
def test_beam_search_with_an_encoder(
    seed: int, tokens: Array, options: dict[str, Any], steps: bool
) -> None:
    settings = {"model_type": 1, "decoder_start_token_id": PAD, **options}
    operands = beams(tokens, length=0.8, repeated=1.2)
    if seed == 1:
        operands += [None, None, (tokens != tokens[0, 0]).astype(np.int32)]
    model, feeds = search("BeamSearch", operands, 2, **settings, **encoded_models(seed, steps))
    y, scores = InferenceSession(model, ONE_THREAD).run(None, feeds)
    expected, expected_scores = stock(model).run(None, feeds)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("op", "model_type"), [("BeamSearch", 2), ("WhisperBeamSearch", 2)])
@pytest.mark.parametrize("given", [False, True])
def test_beam_search_of_sounds(op: str, model_type: int, given: bool) -> None:
    sounds = np.random.default_rng(3).standard_normal((2, 7, SIZE)).astype("float32")
    settings = {"model_type": model_type, "decoder_start_token_id": 4, "early_stopping": 1}
    operands: list[Any] = beams(sounds, repeated=1.1)
    if given:
        operands += [None, None, None, np.array([[4, 9, 8], [4, 7, 6]], np.int32)]
    if given and op == "WhisperBeamSearch":
        operands += [None, None, None, 0.7]
    model, feeds = search(op, operands, 2, **settings, **encoded_models(5, True, sounds=True))
    y, scores = InferenceSession(model, ONE_THREAD).run(None, feeds)
    expected, expected_scores = stock(model).run(None, feeds)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-5)


def test_sounds_and_first_tokens_must_have_one_batch() -> None:
    sounds = np.zeros((2, 7, SIZE), "float32")
    operands = [*beams(sounds), None, None, None, np.full((3, 2), 6, np.int32)]
    models = encoded_models(5, True, sounds=True)
    model, feeds = search("WhisperBeamSearch", operands, 2, **models)
    with pytest.raises(RuntimeError):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


def test_timestamps_must_be_named() -> None:
    """A model without attributes for them, and without a model_type, which Whisper's search has."""
    sounds = np.zeros((1, 3, SIZE), "float32")
    operands = [*beams(sounds), None, None, None, None, 1]
    models = encoded_models(5, True, sounds=True)
    model, feeds = search("WhisperBeamSearch", operands, 2, **models)
    with pytest.raises(RuntimeError, match="must know beginning_timestamp_token_id"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


def test_a_decoder_must_keep_its_rows() -> None:
    """What it returns of the past is chosen by row, so that it must have all of them."""
    models = encoded_models(0, False)
    outputs = models["decoder"].output
    halved = node("Slice", ["whole", "first", "behind", "first"], [outputs[1].name])
    for made in models["decoder"].node:
        for i, name in enumerate(made.output):
            if name == outputs[1].name:
                made.output[i] = "whole"
        for i, name in enumerate(made.input):
            if name == outputs[1].name:
                made.input[i] = "whole"
    models["decoder"].node.append(halved)
    for name, value in (("first", 0), ("behind", 1)):
        models["decoder"].initializer.append(numpy_helper.from_array(np.array([value]), name))
    model, feeds = search(
        "BeamSearch", beams(prompts()), 2, model_type=1, decoder_start_token_id=0, **models
    )
    with pytest.raises(RuntimeError, match="must have 6 rows in dimension 0"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


@pytest.mark.parametrize("seed", range(6))
def test_rules_for_timestamps(seed: int) -> None:
    """The last eleven tokens say times."""
    sounds = np.random.default_rng(seed).standard_normal((2, 5, SIZE)).astype("float32")
    settings = {
        "model_type": 2,
        "decoder_start_token_id": 6,
        "translate_token_id": 7,
        "transcribe_token_id": 8,
        "start_of_lm_token_id": 9,
        "no_timestamps_token_id": 11,
        "beginning_timestamp_token_id": 12,
        "eos_token_id": 5,
    }
    first = np.array([[6, 7], [6, 8]], np.int32)
    operands = [*beams(sounds), None, None, None, first, 1]
    models = encoded_models(seed, True, sounds=True)
    model, feeds = search("WhisperBeamSearch", operands, 2, **settings, **models)
    y, scores = InferenceSession(model, ONE_THREAD).run(None, feeds)
    expected, expected_scores = stock(model).run(None, feeds)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-5)
    assert (y[:, :, 2:] >= 12).any()


def test_scores_of_all_steps() -> None:
    model, feeds = search("BeamSearch", beams(prompts(1)), 3, seed=1, eos_token_id=-1)
    *_, scores = InferenceSession(model, ONE_THREAD).run(None, feeds)
    *_, expected = stock(model).run(None, feeds)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "attributes",
    [
        {"top_p": 0.9},
        {"top_p": 0.5, "temperature": 0.7, "filter_value": -100.0, "min_tokens_to_keep": 2},
        {"top_p": 0.9, "custom": 1},
    ],
    ids=str,
)
def test_sampling_draws_as_onnxruntime_does(attributes: dict[str, Any], seed: int) -> None:
    operands = [prompts(), LONG, None, None, None, None, None, None, seed]
    model, feeds = search("Sampling", operands, **{"temperature": 1.0, **attributes})
    (y,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    (expected,) = stock(model).run(None, feeds)
    np.testing.assert_array_equal(y, written(expected, y))


def test_a_search_can_be_ended_and_its_length_is_checked() -> None:
    model, feeds = search("GreedySearch", [prompts(), LONG], eos_token_id=-1)
    session = InferenceSession(model, ONE_THREAD)
    options = RunOptions()
    options.terminate = True
    with pytest.raises(RuntimeError, match="terminate flag"):
        session.run(None, feeds, options)
    with pytest.raises(RuntimeError, match=r"must be \[batch, length\]"):
        open_sizes = search("GreedySearch", [np.zeros((0, 4), np.int32), LONG])
        InferenceSession(open_sizes[0], ONE_THREAD).run(None, open_sizes[1])
    for length in (4, 10**6):
        with pytest.raises(RuntimeError, match="max_length must be above 4"):
            session.run(None, {**feeds, "x1": np.array([length], np.int32)})


def test_another_search_with_an_encoder_is_named() -> None:
    model, feeds = search("GreedySearch", [prompts(), LONG], model_type=1)
    with pytest.raises(NotImplemented, match=r"a decoder alone \(model_type 0\), or one for beams"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)
