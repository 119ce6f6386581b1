"""What files of others spell out becomes one op, with results as close to float64 as before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_graph
from onnx.reference import ReferenceEvaluator

from ortmodule_py import InferenceSession, SessionOptions

from .models import model_bytes

Array = np.ndarray[Any, Any]
ATTENTION = """
    kt = Transpose <perm = [0, 1, 3, 2]> (k)
    p = MatMul (q, kt)
    s = Div (p, root)
    {mask}
    a = Softmax <axis = -1> (m)
    {guard}
    y = MatMul (g, v)
"""
HEADS = {"q": (2, 3, 5, 8), "k": (2, 3, 7, 8), "v": (2, 3, 7, 8)}
NORM = """
    mean = ReduceMean <axes = [-1]> (x)
    d = Sub (x, mean)
    square = Pow (d, two)
    variance = ReduceMean <axes = [-1]> (square)
    sum = Add (variance, small)
    root = Sqrt (sum)
"""
NORM_WEIGHTS = {"two": 2.0, "small": 1e-5, "w": (8,), "b": (8,)}


@dataclass(frozen=True)
class Case:
    """A graph in onnx's text notation, sizes of its inputs, and weights by size or as a number."""

    nodes: str
    inputs: dict[str, tuple[int, ...]]
    weights: dict[str, tuple[int, ...] | float]
    there: str  # in the plan
    gone: tuple[str, ...] = ()


CASES = {
    "batch norm in a convolution": Case(
        """
        c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
        y = BatchNormalization (c, scale, offset, mean, variance)
        """,
        {"x": (2, 3, 6, 6)},
        {
            "w": (4, 3, 3, 3),
            "b": (4,),
            "scale": (4,),
            "offset": (4,),
            "mean": (4,),
            "variance": (4,),
        },
        "Conv",
        ("Mul", "Add"),
    ),
    "batch norm in a transposed convolution": Case(
        """
        c = ConvTranspose <strides = [2, 2]> (x, w)
        y = BatchNormalization (c, scale, offset, mean, variance)
        """,
        {"x": (2, 3, 6, 6)},
        {"w": (3, 4, 2, 2), "scale": (4,), "offset": (4,), "mean": (4,), "variance": (4,)},
        "ConvTranspose",
        ("Mul", "Add"),
    ),
    "scale and offset in a product": Case(
        "p = Gemm <transB = 1> (x, w, b)  m = Mul (p, f)  y = Sub (m, o)",
        {"x": (5, 8)},
        {"w": (4, 8), "b": (4,), "f": (4,), "o": (1, 4)},
        "",
        ("Mul", "Sub"),
    ),
    "gelu": Case(
        "d = Div (x, root)  e = Erf (d)  a = Add (e, one)  m = Mul (x, a)  y = Mul (m, half)",
        {"x": (3, 50)},
        {"root": 2**0.5, "one": 1.0, "half": 0.5},
        "Gelu",
        ("Erf",),
    ),
    "gelu by tanh": Case(
        """
        h = Mul (x, half)  c = Pow (x, three)  b = Mul (c, cubic)  s = Add (x, b)
        i = Mul (s, root)  t = Tanh (i)  a = Add (t, one)  y = Mul (h, a)
        """,
        {"x": (3, 50)},
        {"half": 0.5, "three": 3.0, "cubic": 0.044715, "root": (2 / np.pi) ** 0.5, "one": 1.0},
        "Gelu",
        ("Tanh",),
    ),
    "silu": Case("s = Sigmoid (x)  y = Mul (x, s)", {"x": (3, 50)}, {}, "Silu", ("Sigmoid",)),
    "hard swish": Case(
        "h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x)  y = Mul (x, h)",
        {"x": (3, 50)},
        {},
        "HardSwish",
        ("Clip",),
    ),
    "layer norm": Case(
        NORM + "n = Div (d, root)  s = Mul (n, w)  y = Add (s, b)",
        {"x": (2, 3, 8)},
        NORM_WEIGHTS,
        "LayerNormalization",
        ("ReduceMean",),
    ),
    "layer norm as factor and offset": Case(
        NORM
        + """
        i = Reciprocal (root)  f = Mul (i, w)  z = Mul (x, f)  t = Mul (mean, f)  o = Sub (b, t)
        y = Add (z, o)
        """,
        {"x": (2, 3, 8)},
        NORM_WEIGHTS,
        "LayerNormalization",
        ("ReduceMean",),
    ),
    "root mean square norm": Case(
        """
        q = Pow (x, two)  m = ReduceMean <axes = [-1]> (q)  s = Add (m, small)  r = Sqrt (s)
        i = Div (one, r)  n = Mul (x, i)  y = Mul (w, n)
        """,
        {"x": (2, 3, 8)},
        {"two": 2.0, "small": 1e-5, "one": 1.0, "w": (8,)},
        "SimplifiedLayerNormalization",
        ("ReduceMean",),
    ),
    "softmax": Case(
        """
        m = ReduceMax <axes = [1]> (x)  d = Sub (x, m)  e = Exp (d)
        s = ReduceSum <keepdims = 1> (e, axes)  y = Div (e, s)
        """,
        {"x": (2, 9, 3)},
        {"axes": 1.0},
        "Softmax",
        ("Exp",),
    ),
    "attention": Case(
        ATTENTION.format(mask="m = Identity (s)", guard="g = Identity (a)"),
        HEADS,
        {"root": 8**0.5},
        "ScaledDotProductAttention",
        ("Softmax", "MatMul"),
    ),
    "attention with a mask": Case(
        ATTENTION.format(mask="m = Add (s, mask)", guard="g = Identity (a)"),
        HEADS | {"mask": (2, 1, 1, 7)},
        {"root": 8**0.5},
        "ScaledDotProductAttention",
        ("Softmax", "MatMul"),
    ),
    "attention with scaled operands": Case(
        """
        r = Mul (q, small)  kt = Transpose <perm = [0, 2, 3, 1]> (k)  u = Mul (kt, small)
        p = MatMul (r, u)  a = Softmax <axis = -1> (p)  y = MatMul (a, v)
        """,
        {"q": (2, 3, 5, 8), "k": (2, 7, 3, 8), "v": (2, 3, 7, 8)},
        {"small": 0.5},
        "ScaledDotProductAttention",
        ("Softmax", "MatMul"),
    ),
}


def model_of(case: Case, dtype: str, opset: int = 15) -> onnx.ModelProto:
    """The graph with random weights, of one element type."""
    random = np.random.default_rng(0)
    kind = {"float32": "float", "float64": "double"}[dtype]
    inputs = ", ".join(f"{kind}[{','.join(map(str, s))}] {n}" for n, s in case.inputs.items())
    graph = parse_graph(f"g ({inputs}) => ({kind}[N] y) {{ {case.nodes} }}")
    graph.output[0].ClearField("type")
    for name, size in case.weights.items():
        if isinstance(size, tuple):  # positive, for a variance and a divisor
            array = (0.5 + random.random(size)).astype("float32").astype(dtype)
        else:
            array = np.asarray(size, "float32").astype(dtype)
        if name == "axes":
            array = np.asarray([1], "int64")
        graph.initializer.append(numpy_helper.from_array(array, name))
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds_of(case: Case, dtype: str) -> dict[str, Array]:
    random = np.random.default_rng(1)
    return {
        name: random.standard_normal(size).astype("float32").astype(dtype)
        for name, size in case.inputs.items()
    }


def ops_of(plan: str) -> set[str]:
    """The operators in the steps of a plan."""
    lines = [line for line in plan.splitlines() if " F " in line]
    return {op for line in lines for op in line.partition("[")[2].partition("]")[0].split()}


@pytest.mark.parametrize("name", CASES)
def test_spelled_out(name: str) -> None:
    case = CASES[name]
    session = InferenceSession(model_of(case, "float32").SerializeToString())
    feeds = feeds_of(case, "float32")
    (result,) = session.run(None, feeds)
    (wanted,) = ReferenceEvaluator(model_of(case, "float64")).run(None, feeds_of(case, "float64"))
    np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-6)
    ops = ops_of(str(session.plan(feeds)))
    assert case.there in ops or not case.there, ops
    assert not ops & set(case.gone), ops


@pytest.mark.parametrize("guarded", [False, True])
def test_rows_without_keys_are_nan_unless_guarded(guarded: bool) -> None:
    guard = "n = IsNaN (a)  g = Where (n, zero, a)" if guarded else "g = Identity (a)"
    case = Case(
        ATTENTION.format(mask="m = Add (s, mask)", guard=guard),
        HEADS | {"mask": (2, 1, 5, 7)},
        {"root": 8**0.5, "zero": 0.0},
        "ScaledDotProductAttention",
    )
    session = InferenceSession(model_of(case, "float32").SerializeToString())
    feeds = feeds_of(case, "float32")
    feeds["mask"][1, 0, 3] = -np.inf
    (result,) = session.run(None, feeds)
    assert case.there in ops_of(str(session.plan(feeds)))
    blind = result[1, :, 3]
    assert (blind == 0).all() if guarded else np.isnan(blind).all()
    assert np.isfinite(np.delete(result.reshape(2, 3, 5, 8)[1], 3, axis=1)).all()


def test_a_tied_weight_is_not_held_twice() -> None:
    """Scaling it for one reader would make a second one."""
    case = Case(
        "c = Conv (x, w)  y = Mul (c, f)  z = Conv (x, w)  s = ReduceSum <keepdims = 0> (z)",
        {"x": (1, 64, 4, 4)},
        {"w": (64, 64, 3, 3), "f": (64, 1, 1)},
        "Conv",
    )
    model = model_of(case, "float32")
    model.graph.output.append(onnx.ValueInfoProto(name="s"))
    session = InferenceSession(model.SerializeToString())
    weights = session.memory({"x": (1, 64, 4, 4)}).weights_bytes
    assert weights == 4 * (64 * 64 * 9 + 64)


PRODUCTS = {
    "bias": "p = MatMul (x, w)  y = Add (p, b)",
    "transposed": "y = Gemm <alpha = 0.5, transB = 1> (x, w, b)",
    "plain": "y = MatMul (x, w)",
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
def test_packed_weights(name: str, threads: int) -> None:
    """Any number of rows, a long inner dimension, and columns that fill no whole panel."""
    inner, columns = 700, 400 if name == "plain" else 500
    size = (columns, inner) if name == "transposed" else (inner, columns)
    weights = {"w": size, "b": (columns,)}
    if name == "plain":
        del weights["b"]
    options = SessionOptions()
    options.intra_op_num_threads = threads
    for rows in (1, 2, 7, 45):
        case = Case(PRODUCTS[name], {"x": (rows, inner)}, dict(weights), "PackedMatMul")
        session = InferenceSession(model_of(case, "float32").SerializeToString(), options)
        feeds = feeds_of(case, "float32")
        (result,) = session.run(None, feeds)
        assert ops_of(str(session.plan(feeds))) == {"PackedMatMul"}
        wide = {key: array.astype("float64") for key, array in feeds.items()}
        (wanted,) = ReferenceEvaluator(model_of(case, "float64")).run(None, wide)
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=2e-4)


def test_packed_weights_take_the_place_of_the_original() -> None:
    case = Case("y = MatMul (x, w)", {"x": (9, 640)}, {"w": (640, 320)}, "PackedMatMul")
    sessions = [InferenceSession(model_of(case, "float32").SerializeToString()) for _ in range(2)]
    for session in sessions:
        assert session.memory({"x": (9, 640)}).weights_bytes == 4 * 640 * 320


@pytest.mark.parametrize("pads", [[0, 0, 1, 2, 0, 0, 2, 1], [0] * 8])
def test_padding_by_a_number_that_is_dequantized(pads: list[int]) -> None:
    """As a quantizer writes it: one step if it pads, none if it does not."""
    weights = {"value": np.float32(1.3), "scale": np.float32(0.5), "zero": np.uint8(4)}
    nodes = [
        helper.make_node("QuantizeLinear", ["value", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["number"]),
        helper.make_node("Pad", ["x", "pads", "number"], ["padded"]),
        helper.make_node("Relu", ["padded"], ["y"]),
    ]
    weights["pads"] = np.array(pads)
    session = InferenceSession(model_bytes(nodes, {"x": (1, [1, 2, "h", "w"])}, ["y"], weights))
    x = np.random.default_rng(1).standard_normal((1, 2, 4, 5)).astype(np.float32)
    around = list(zip(pads[:4], pads[4:], strict=True))
    wanted = np.maximum(np.pad(x, around, constant_values=1.5), 0)
    assert np.array_equal(session.run(None, {"x": x})[0], wanted)
    steps = session.plan({"x": x}).count(" F ")
    assert steps == (2 if any(pads) else 1)
