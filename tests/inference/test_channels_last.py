"""Convolutional networks run channels-last inside, without copies between layouts on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_graph
from onnx.reference import ReferenceEvaluator

from ortmodule_py import InferenceSession, SessionOptions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Network:
    """A graph in onnx's text notation that makes y of x, and its weights by size."""

    nodes: str
    weights: dict[str, tuple[int, ...]]
    convolutions: int
    copies: int = 1  # of row-major tensors: x at the start


SIZES = (2, 3, 20, 28)
STEM = "a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, stem)"

NETWORKS = {
    "depthwise with squeeze and excitation": Network(
        f"""
        {STEM}
        e = Conv (a, expand, expand_b)
        es = Sigmoid (e)
        f = Mul (e, es)
        g = Conv <group = 36, pads = [2, 2, 2, 2]> (f, depthwise, depthwise_b)
        h = Relu (g)
        mean = GlobalAveragePool (h)
        s = Conv (mean, squeeze)
        r = Relu (s)
        t = Conv (r, excite)
        gate = HardSigmoid <alpha = 0.16666667> (t)
        i = Mul (h, gate)
        p = Conv (i, project)
        q = Add (p, a)
        k = Conv <group = 16, strides = [2, 2], pads = [1, 1, 1, 1]> (q, shrink)
        y = GlobalAveragePool (k)
        """,
        {
            "stem": (16, 3, 3, 3),
            "expand": (36, 16, 1, 1),
            "expand_b": (36,),
            "depthwise": (36, 1, 5, 5),
            "depthwise_b": (36,),
            "squeeze": (8, 36, 1, 1),
            "excite": (36, 8, 1, 1),
            "project": (16, 36, 1, 1),
            "shrink": (16, 1, 3, 3),
        },
        convolutions=7,
    ),
    "pixels between convolutions": Network(
        f"""
        {STEM}
        p = Transpose <perm = [0, 2, 3, 1]> (a)
        r = Relu (p)
        b = Transpose <perm = [0, 3, 1, 2]> (r)
        c = Conv <pads = [1, 1, 1, 1]> (b, first)
        d = Transpose <perm = [0, 2, 3, 1]> (c)
        s = Add (d, r)
        e = Transpose <perm = [0, 3, 1, 2]> (s)
        f = Conv <pads = [1, 1, 1, 1]> (e, second)
        y = GlobalAveragePool (f)
        """,
        {"stem": (16, 3, 3, 3), "first": (16, 16, 3, 3), "second": (16, 16, 3, 3)},
        convolutions=3,
    ),
    "parts of the channels, pools and upsampling": Network(
        f"""
        {STEM}
        u, v = Split <axis = 1, num_outputs = 2> (a)
        b = Conv <pads = [1, 1, 1, 1]> (v, left)
        c = Conv <pads = [1, 1, 1, 1]> (b, right)
        d = Add (c, v)
        e = Concat <axis = 1> (u, v, d)
        f = Conv (e, join)
        m = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (f)
        g = Concat <axis = 1> (f, m)
        h = Conv <pads = [0, 0, 1, 1], strides = [2, 2]> (g, down)
        r = Resize <mode = "nearest"> (h, , scales)
        t = ConvTranspose <strides = [2, 2]> (h, up)
        o = Concat <axis = 1> (r, t, f)
        y = Conv <auto_pad = "SAME_UPPER"> (o, last, last_b)
        """,
        {
            "stem": (12, 3, 3, 3),
            "left": (6, 6, 3, 3),
            "right": (6, 6, 3, 3),
            "join": (10, 18, 1, 1),
            "down": (20, 20, 2, 2),
            "up": (20, 5, 2, 2),
            "last": (3, 35, 3, 3),
            "last_b": (3,),
        },
        convolutions=7,
        copies=3,  # and the half that is added, and y at the end
    ),
    "dense, in groups": Network(
        f"""
        {STEM}
        n = BatchNormalization (a, scale, offset, mean, variance)
        l = LeakyRelu <alpha = 0.2> (n)
        b = Conv <pads = [1, 1, 1, 1], group = 2> (l, first)
        c = Concat <axis = 1> (a, b)
        d = Conv <pads = [2, 2, 2, 2], dilations = [2, 2], group = 4> (c, second)
        e = Clip (d, zero, six)
        g = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (e)
        y = Conv (g, third)
        """,
        {
            "stem": (12, 3, 3, 3),
            "scale": (12,),
            "offset": (12,),
            "mean": (12,),
            "variance": (12,),
            "first": (8, 6, 3, 3),
            "second": (24, 5, 3, 3),
            "third": (9, 24, 1, 1),
        },
        convolutions=4,
        copies=2,
    ),
}


def model_of(network: Network, dtype: str, rounded: str = "float32") -> onnx.ModelProto:
    """The network with weights that are `rounded` numbers."""
    random = np.random.default_rng(5)
    kind = {"float16": "float16", "float32": "float", "float64": "double"}[dtype]
    sizes = ", ".join(map(str, SIZES[1:]))
    graph = parse_graph(f"g ({kind}[n, {sizes}] x) => ({kind}[n, c, h, w] y) {{{network.nodes}}}")
    for name, shape in network.weights.items():
        value = 0.4 * random.standard_normal(shape)
        if name == "variance":
            value = np.abs(value) + 0.5
        value = value.astype(rounded).astype(dtype)  # the same numbers in all
        graph.initializer.append(numpy_helper.from_array(value, name))
    for name, number in {"zero": 0.0, "six": 6.0}.items():
        graph.initializer.append(numpy_helper.from_array(np.array(number, dtype), name))
    scales = np.array([1, 1, 2, 2], "float32")
    graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])


def session_of(network: Network, level: int = 99, **options: Any) -> InferenceSession:
    settings = SessionOptions()
    settings.graph_optimization_level = level
    settings.intra_op_num_threads = 1
    return InferenceSession(model_of(network, "float32").SerializeToString(), settings, **options)


def half_session(model: onnx.ModelProto) -> InferenceSession:
    settings = SessionOptions()
    settings.intra_op_num_threads = 1
    return InferenceSession(model.SerializeToString(), settings)


def feeds_of(batch: int) -> dict[str, Array]:
    x = np.random.default_rng(batch).standard_normal((batch, *SIZES[1:]))
    return {"x": x.astype("float32")}


@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_those_of_float64(name: str) -> None:
    network = NETWORKS[name]
    session = session_of(network)
    for batch in (2, 1):
        feeds = feeds_of(batch)
        reference = ReferenceEvaluator(model_of(network, "float64"))
        (wanted,) = reference.run(None, {"x": feeds["x"].astype("float64")})
        (found,) = session.run(None, feeds)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_is_copied_between_layouts(name: str) -> None:
    network = NETWORKS[name]
    plan = str(session_of(network).plan(feeds_of(2)))
    assert plan.count("conv_pixels_cpu") + plan.count("conv_transpose_pixels_cpu") == (
        network.convolutions
    )
    copies = [line for line in plan.splitlines() if "contiguous_cpu" in line]
    assert len(copies) == network.copies, "\n".join(copies)
    row_major = str(session_of(network, level=2).plan(feeds_of(2)))
    assert "pixels" not in row_major


@pytest.mark.parametrize("name", NETWORKS)
def test_float16_is_computed_as_float32(name: str) -> None:
    network = NETWORKS[name]
    session = half_session(model_of(network, "float16", "float16"))
    x = feeds_of(2)["x"].astype("float16")
    reference = ReferenceEvaluator(model_of(network, "float64", "float16"))
    (wanted,) = reference.run(None, {"x": x.astype("float64")})
    (found,) = session.run(None, {"x": x})
    assert found.dtype == np.float16
    # The result and that of a BatchNormalization are rounded, no others.
    np.testing.assert_allclose(found, wanted, rtol=6e-4, atol=2e-4 * np.abs(wanted).max())
    plan = str(session.plan({"x": x}))
    assert plan.count("conv_pixels_cpu") + plan.count("conv_transpose_pixels_cpu") == (
        network.convolutions
    )


def test_weights_of_float16_stay_so() -> None:
    weights = {"w": (512, 128, 3, 3), "v": (64, 512, 1, 1)}
    nodes = "a = Conv <pads = [1, 1, 1, 1]> (x, w)  b = Relu (a)  c = Conv (b, v)  y = GlobalAveragePool (c)"
    network = Network(nodes, weights, convolutions=2)
    model = model_of(network, "float16", "float16")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 128
    session = half_session(model)
    x = 60 * np.random.default_rng(0).standard_normal((1, 128, *SIZES[2:])).astype("float16")
    session.run(None, {"x": x})
    count = sum(int(np.prod(shape)) for shape in weights.values())
    report = session.memory({"x": x})
    assert report.weights_bytes < 2.05 * count
    assert report.peak_bytes < 4 * (512 + 3 * 128) * SIZES[2] * SIZES[3], "no weight is widened"


def test_sums_beyond_float16_stay_finite_inside() -> None:
    nodes = "a = Conv (x, w)  b = Conv (a, w)  c = Relu (b)  y = Mul (c, small)"
    network = Network(nodes, {"w": (3, 3, 1, 1), "small": (1,)}, convolutions=2)
    model = model_of(network, "float16", "float16")
    for tensor, value in (("w", 300.0), ("small", 1e-4)):
        (weight,) = (t for t in model.graph.initializer if t.name == tensor)
        full = np.full(weight.dims, value, "float16")
        weight.CopyFrom(numpy_helper.from_array(full, tensor))
    x = np.ones((1, *SIZES[1:]), "float16")
    (y,) = half_session(model).run(None, {"x": x})
    np.testing.assert_allclose(y, 900.0 * 900.0 * float(np.float16(1e-4)), rtol=1e-3)
