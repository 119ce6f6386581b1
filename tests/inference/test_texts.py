"""Operators that make texts of texts, beside stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import StringTensorType
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from ortmodule_py import InferenceSession
from ortmodule_py.inference import InvalidGraph, NotImplemented, RuntimeException
from tests.inference.models import model_bytes
from tests.inference.test_operators_of_onnxruntime import MICROSOFT, single
from tests.inference.test_session import ONE_THREAD

Array = np.ndarray[Any, Any]
LINES = ["Hello, World  ab", "", "é ab", "aab,abé x", "12 a.b_c"]


def texts(*values: str) -> Array:
    return np.array(values, object)


def compare(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    ours = InferenceSession(model, ONE_THREAD).run(None, feeds)
    for mine, other in zip(ours, stock.run(None, feeds), strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        np.testing.assert_array_equal(mine, other)
    return ours


TOKENIZERS: list[dict[str, Any]] = [
    {"separators": [" "]},
    {"separators": [" ", ","]},
    {"separators": ["ab", "a"]},
    {"separators": [r"\W"], "mincharnum": 2},
    {"separators": [r"\b"]},
    {"separators": ["x*"]},
    {"separators": [""]},
    {"separators": [" "], "mark": 1},
    {"tokenexp": "."},
    {"tokenexp": "[a-zA-Z0-9_]+"},
    {"tokenexp": r"\b\w\w+\b", "mark": 1},
    {"tokenexp": "a|ab"},
    {"tokenexp": "x*"},
]


@pytest.mark.parametrize("attributes", TOKENIZERS, ids=str)
def test_tokens(attributes: dict[str, Any]) -> None:
    given = {"mark": 0, "pad_value": "#", "mincharnum": 1, **attributes}
    for x in (texts(*LINES), texts(*LINES[:4]).reshape(2, 2), texts("", " "), texts()):
        compare(*single("Tokenizer", [x], domain=MICROSOFT, **given))


PATTERNS = [
    r"\w+",
    r"[a-c]+@x",
    "(?i)AB",
    "a|ab",
    "^ab$",
    ".",
    "(?s).",
    r"\p{L}+",
    "(?P<n>a)b",
    "a{2,3}",
    "[^a]*",
    r"\babc?\b",
    "[[:alpha:]]+",
    "[[:^digit:]]+",
    "(?:ab)+|12",
    r"a\.b",
    r"\x41|\x{e9}",
    r"[a\]]+",
    "[]a]+",
    "a{1",
    "(a*)*",
    r"\Qa.b\E",
    "(?i:a)b",
    "(?i)[é-ü]",
    "",
    "(|a)+",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_whole_matches(pattern: str) -> None:
    x = texts("ab", "AB", "é", "É", "aa", "abab", "a@x", "12", "a.b", "A", "\n", "", "a]", "a{1")
    compare(*single("RegexFullMatch", [x], opset=20, pattern=pattern))


@pytest.mark.parametrize("pattern", ["(", "[", "a**", r"\N", "(?=a)", "[b-a]", "a{1001}", "x)"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    model, feeds = single("RegexFullMatch", [texts("a")], opset=20, pattern=pattern)
    with pytest.raises(InvalidGraph, match="must be one of RE2's, but found"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)
    model, feeds = single("RegexFullMatch", [texts("a")], opset=20, pattern=r"\p{Greek}")
    with pytest.raises(NotImplemented, match="properties L, Ll and Lu"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


@pytest.mark.parametrize(
    "attributes",
    [{}, {"delimiter": ","}, {"maxsplit": 1}, {"delimiter": ", ", "maxsplit": 1}, {"maxsplit": 0}],
    ids=str,
)
def test_parts_of_texts(attributes: dict[str, Any]) -> None:
    lines = texts("a, b,,c", "  x  y z ", "", ",", " ", "a\tb\nc")
    for x in (lines, lines.reshape(2, 3), texts(), texts("")):
        compare(*single("StringSplit", [x], 2, opset=20, **attributes))


def test_joined_texts() -> None:
    column, row = texts("a", "é").reshape(2, 1), texts("x", "", "a")
    compare(*single("StringConcat", [column, row], opset=20))
    compare(*single("StringConcat", [np.array("a", object), row], opset=20))


def test_texts_without_stopwords() -> None:
    words = ["mon", "AB"]
    exactly = {"stopwords": words, "is_case_sensitive": 1}
    compare(*single("StringNormalizer", [texts("Ab", "cD", "mon")], fixed=True, **exactly))
    compare(*single("StringNormalizer", [texts("mon").reshape(1, 1)], fixed=True, **exactly))
    # Stock needs a locale of the system to change cases.
    model, feeds = single(
        "StringNormalizer",
        [texts("Ab", "cD", "MON", "É", "straße")],
        stopwords=words,
        case_change_action="UPPER",
    )
    (y,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    np.testing.assert_array_equal(y, ["CD", "É", "STRAßE"])


FLOATS = np.array([1.5, 0.1, 1e-7, 1e10, 123456789.0, np.nan, np.inf, -0.0, 1 / 3, 3e-40, 1e6])


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int64", "uint64", "bool"]
)
def test_numbers_as_texts_and_back(dtype: str) -> None:
    with np.errstate(over="ignore"):
        x = (FLOATS if dtype.startswith("float") else np.arange(5)).astype(dtype)
    compare(*single("Cast", [x], to=TensorProto.STRING))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    compare(*single("Cast", [texts("-4", " 7 ", "1.9", "1e1", "0x1")], to=kind))
    compare(*single("CastLike", [texts("1", "0"), x], opset=19))


def test_a_text_that_is_no_number() -> None:
    model, feeds = single("Cast", [texts("1", "one")], to=TensorProto.FLOAT)
    with pytest.raises(RuntimeException, match=r"must begin with a number of type f32.*'one'"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


@pytest.mark.parametrize("positive", [0, 1])
def test_hashes(positive: int) -> None:
    words = texts("abc", "", "a", "hello world", "é")
    for x in (words, np.arange(-2, 3), np.arange(3, dtype=np.int32), np.float32([1, 2.5])):
        attributes = {"positive": positive, "seed": 42}
        compare(*single("MurmurHash3", [x], domain=MICROSOFT, **attributes))


def test_texts_in_any_order_of_memory() -> None:
    x = texts("1", "2", "3", "4", "5", "6").reshape(2, 3)
    model, _ = single("Cast", [x.T], to=TensorProto.FLOAT)
    compare(model, {"x0": x.T})
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=TensorProto.INT64),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.STRING, [2, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, [3, 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    compare(model.SerializeToString(), {"x": x})


def test_texts_pass_from_segment_to_segment() -> None:
    """Outputs, inputs and constants that later segments read are texts there, too."""
    nodes = [
        helper.make_node("StringSplit", ["x"], ["parts", "counts"], delimiter=" "),
        helper.make_node("NonZero", ["counts"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["parts", "rows"], ["some"]),
        helper.make_node("StringConcat", ["some", "end"], ["y"]),
        helper.make_node("Identity", ["x"], ["again"]),
        helper.make_node("Equal", ["some", "word"], ["is_word"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in [
                ("y", TensorProto.STRING),
                ("again", TensorProto.STRING),
                ("parts", TensorProto.STRING),
                ("is_word", TensorProto.BOOL),
            ]
        ],
        [
            helper.make_tensor("end", TensorProto.STRING, [1], [b"!"]),
            helper.make_tensor("word", TensorProto.STRING, [], [b"c"]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    session = InferenceSession(model.SerializeToString(), ONE_THREAD)
    for lines in (["a b", "c", ""], ["c d e"], ["a b", "c", ""]):
        results = compare(model.SerializeToString(), {"x": texts(*lines)})
        for mine, other in zip(results, session.run(None, {"x": texts(*lines)}), strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("attributes", [{}, {"sorted": 0}, {"axis": 1}, {"axis": 0, "sorted": 0}])
def test_different_texts(attributes: dict[str, Any]) -> None:
    x = texts("b", "a", "b", "é", "", "a", "b", "a", "b").reshape(3, 3)
    compare(*single("Unique", [x], 4, **attributes))


@pytest.mark.parametrize("attributes", [{}, {"axis": 0}, {"axis": 1}])
def test_chosen_texts(attributes: dict[str, Any]) -> None:
    x = texts("b", "a", "", "é", "d", "a").reshape(2, 3)
    compare(*single("Compress", [x, np.array([True, False])], 1, **attributes))


@pytest.mark.parametrize("body_op", ["StringNormalizer", "Identity"])
@pytest.mark.parametrize("count", [1, 4])
def test_texts_in_a_scan(count: int, body_op: str) -> None:
    """A converter of scikit-learn normalizes text by text, so that empty ones are kept."""
    strings = TensorProto.STRING
    body = helper.make_graph(
        [helper.make_node(body_op, ["one"], ["made"])],
        "body",
        [helper.make_tensor_value_info("one", strings, [1])],
        [helper.make_tensor_value_info("made", strings, [1])],
    )
    nodes = [
        helper.make_node("Scan", ["x"], ["all"], body=body, num_scan_inputs=1),
        helper.make_node("StringConcat", ["all", "x"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", strings, ["n", 1])],
        [helper.make_tensor_value_info("y", strings, ["n", 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    compare(model.SerializeToString(), {"x": texts(*LINES[:count]).reshape(count, 1)})


DOCUMENTS = [
    "This is the first document.",
    "This document is the second document.",
    "And this is the third one.",
    "Is this the first document?",
    "",
]


@pytest.mark.parametrize("vectorizer", [CountVectorizer, TfidfVectorizer])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": False, "ngram_range": (1, 2)},
        {"stop_words": ["the", "is"]},
        {"analyzer": "char", "ngram_range": (2, 3)},
        {"token_pattern": "[a-z]+"},
    ],
    ids=str,
)
def test_documents_of_scikit_learn(vectorizer: Any, options: dict[str, Any]) -> None:
    model = make_pipeline(vectorizer(**options), LogisticRegression())
    model.fit(DOCUMENTS, [0, 1, 0, 1, 1])
    file = convert_sklearn(
        model,
        initial_types=[("x", StringTensorType([None, 1]))],
        options={"zipmap": False},
        target_opset=17,
    ).SerializeToString()
    session = InferenceSession(file, ONE_THREAD)
    lines = [*DOCUMENTS, "a word that is new"]
    labels, shares = session.run(None, {"x": texts(*lines).reshape(-1, 1)})
    np.testing.assert_array_equal(labels, model.predict(lines))
    np.testing.assert_allclose(shares, model.predict_proba(lines), rtol=1e-4, atol=1e-5)


def test_texts_are_fed_as_raw_bytes() -> None:
    """Elements of numpy's void have one length, and zeros at their end belong to the text."""
    node = helper.make_node("Identity", ["x"], ["y"])
    model = model_bytes([node], {"x": (TensorProto.STRING, [2, 1])}, ["y"])
    for words in ([b"must", b"have"], [b"a\0b\0", b"c\0d\0"]):
        (y,) = compare(model, {"x": np.array(words, np.void).reshape(2, 1)})
        assert y.tolist() == [[word.decode()] for word in words]
    fields = np.zeros((2, 1), [("a", "int8")])
    with pytest.raises(RuntimeError, match="must have type string"):
        InferenceSession(model).run(None, {"x": fields})
