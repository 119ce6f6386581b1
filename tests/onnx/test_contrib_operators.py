"""Operators of com.microsoft and ai.onnx.ml, and standard ones that ONNX's backend tests cover
sparsely, against stock onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from ortmodule_py.inference import InferenceSession

onnxruntime = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def byte(*shape: int) -> Array:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def signed_byte(*shape: int) -> Array:
    """In 7 bits: without VNNI, stock's products of more saturate."""
    return RNG.integers(-64, 64, shape, dtype=np.int8)


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


SCALE, ZERO = scalar(0.02), scalar(120, np.uint8)


@dataclass
class Case:
    op: str
    inputs: Sequence[Array | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = "com.microsoft"
    atol: float = 2e-5
    constants: tuple[int, ...] = ()  # inputs that are initializers

    def model(self) -> onnx.ModelProto:
        names = ["" if value is None else f"in{i}" for i, value in enumerate(self.inputs)]
        outputs = [f"out{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attrs)
        inputs: list[onnx.ValueInfoProto] = []
        initializers: list[onnx.TensorProto] = []
        for i, value in enumerate(self.inputs):
            if value is None:
                continue
            if i in self.constants:
                initializers.append(onnx.numpy_helper.from_array(value, names[i]))
                continue
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            dims = [f"{names[i]}_{axis}" for axis in range(value.ndim)]
            inputs.append(helper.make_tensor_value_info(names[i], kind, dims))
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "test", inputs, results, initializers)
        versions = {"": 20, "com.microsoft": 1, "ai.onnx.ml": 3}
        opsets = [helper.make_opsetid(domain, versions[domain]) for domain in {"", self.domain}]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def check(self) -> None:
        model = self.model().SerializeToString()
        feeds = {
            f"in{i}": value
            for i, value in enumerate(self.inputs)
            if value is not None and i not in self.constants
        }
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        peer = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        wanted = peer.run(None, feeds)
        found = InferenceSession(model).run(None, feeds)
        assert len(found) == len(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            found_wide, wanted_wide = np.float64(ours), np.float64(theirs)
            np.testing.assert_allclose(found_wide, wanted_wide, rtol=1e-4, atol=self.atol)


def attention_cases() -> list[Case]:
    q, k, v = real(2, 3, 8), real(2, 5, 8), real(2, 5, 8)
    heads = {"num_heads": 2}
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    past = [real(2, 2, 4, 4), real(2, 2, 4, 4)]
    op = "MultiHeadAttention"
    cases = [
        Case(op, [q, k, v], heads),
        Case(op, [q, k, v, real(24)], {**heads, "scale": 0.3}),
        Case(op, [q, k, v, None, mask], heads),
        Case(op, [q, k, v, None, np.array([3, 5], np.int32)], heads),
        Case(op, [q, k, v, None, None, real(1, 2, 3, 5)], heads),
        Case(op, [q, q, q, None, None, None, *past], {**heads, "unidirectional": 1}, 3),
        # An encoder's keys and values have their bias already; the first query sees the first key.
        Case(op, [q, real(2, 2, 5, 4), real(2, 2, 5, 4), real(24)], heads),
        Case(op, [q, k, v, None, mask], {**heads, "unidirectional": 1}),
        # Ends of the keys, then where the queries and keys of each row begin in a packed batch.
        Case(op, [q, k, v, None, np.array([3, 5, 0, 3, 6, 0, 5, 10], np.int32)], heads),
    ]
    op, x = "Attention", real(2, 3, 6)
    weights, bias = real(6, 24), real(24)
    cases += [
        Case(op, [x, weights, bias], heads),
        Case(op, [x, weights, bias, np.array([2, 3], np.int32)], heads),
        Case(op, [x, weights, bias, np.array([3, 3, 1, 0], np.int32)], heads),
        Case(op, [x, weights, bias, np.array([[1, 1, 0], [1, 1, 1]], np.int32)], heads),
        Case(op, [x, weights, bias, None, real(2, 2, 2, 4, 4)], {**heads, "unidirectional": 1}, 2),
        Case(op, [x, real(6, 20), real(20)], {**heads, "qkv_hidden_sizes": [8, 8, 4]}),
    ]
    cases.append(
        Case(
            "QAttention",
            [byte(2, 3, 6), byte(6, 24), bias, SCALE, SCALE, None, ZERO, ZERO],
            heads,
            atol=1e-4,
        )
    )
    return cases


def grouped_query_cases() -> list[Case]:
    op = "GroupQueryAttention"
    attrs = {"num_heads": 4, "kv_num_heads": 2}
    tables = [real(16, 8), real(16, 8)]
    cases = []
    for rotary, window, packed in itertools.product((0, 1), (-1, 3), (False, True)):
        more = {**attrs, "do_rotary": rotary, "local_window_size": window}
        qkv: list[Array | None] = [real(2, 5, 128), None, None]
        if not packed:
            qkv = [real(2, 5, 64), real(2, 5, 32), real(2, 5, 32)]
        lengths = [np.array([4, 4], np.int32), scalar(5, np.int32)]
        empty: list[Array] = [np.zeros((2, 2, 0, 16), np.float32)] * 2
        cases.append(Case(op, [*qkv, *empty, *lengths, *tables], more, 3))
        one: list[Array | None] = [real(2, 1, 64), real(2, 1, 32), real(2, 1, 32)]
        past = [real(2, 2, 6, 16), real(2, 2, 6, 16)]
        lengths = [np.array([6, 6], np.int32), scalar(7, np.int32)]
        cases.append(Case(op, [*one, *past, *lengths, *tables], more, 3))
    capped = {**attrs, "softcap": 2.0, "scale": 0.4}
    cases.append(Case(op, [*one, *past, *lengths], capped, 3))
    return cases


def sink_cases() -> list[Case]:
    """A score beside those of the keys: 0, or one for each head."""
    op, attrs = "GroupQueryAttention", {"num_heads": 4, "kv_num_heads": 2}
    one: list[Array | None] = [real(2, 1, 64), real(2, 1, 32), real(2, 1, 32)]
    past = [real(2, 2, 6, 16), real(2, 2, 6, 16)]
    lengths = [np.array([6, 6], np.int32), scalar(7, np.int32)]
    return [
        Case(op, [*one, *past, *lengths], {**attrs, "smooth_softmax": 1}, 3),
        Case(op, [*one, *past, *lengths], {**attrs, "smooth_softmax": 1, "softcap": 2.0}, 3),
        Case(op, [*one, *past, *lengths, None, None, None, None, real(4)], attrs, 3),
    ]


def rotary_cases() -> list[Case]:
    op, tables = "RotaryEmbedding", [real(9, 2), real(9, 2)]
    positions = np.array([[0, 3, 4], [2, 5, 8]])
    return [
        Case(op, [real(2, 3, 8), positions, *tables]),
        Case(op, [real(2, 3, 8), np.array([5]), *tables], {"interleaved": 1}),
        Case(op, [real(2, 2, 3, 4), positions, *tables]),
        Case(op, [real(2, 3, 8), positions, *tables], {"is_packed_batching": 1}),
        Case(op, [real(2, 3, 12), positions, *tables], {"num_heads": 2, "rotary_embedding_dim": 4}),
        Case(op, [real(2, 3, 8), positions, *tables], {"scale": 2.0}),  # which no kernel reads
    ]


def layer_cases() -> list[Case]:
    ids = np.array([[1, 0, 3], [2, 2, 1]], np.int32)
    tables = [real(5, 6), real(4, 6), real(4, 6), real(6), real(6)]
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    x, weights = real(2, 3, 6, 5), real(4, 3, 3, 2)
    gemm = [real(3, 4), real(4, 5), real(5)]
    return [
        Case(
            "EmbedLayerNormalization",
            [ids, ids % 2, *tables, mask],
            outputs=2,
            constants=(2, 3, 4, 5, 6),
        ),
        Case(
            "EmbedLayerNormalization",
            [ids, None, *tables[:2], None, *tables[3:]],
            outputs=2,
            constants=(2, 3, 5, 6),
        ),
        Case("FusedConv", [x, weights, real(4)], {"activation": "Relu", "pads": [1, 0, 1, 0]}),
        Case(
            "FusedConv",
            [x, weights, real(4), real(2, 4, 4, 4)],
            {"activation": "LeakyRelu", "activation_params": [0.2]},
        ),
        Case("FusedGemm", gemm, {"activation": "Tanh", "alpha": 0.5}),
        Case("FusedGemm", gemm, {"activation": "LeakyRelu", "activation_alpha": 0.3}),
        Case("ExpandDims", [real(2, 3), scalar(-1, np.int32)], constants=(1,)),
        Case("Trilu", [real(3, 4), scalar(1, np.int64)], {"upper": 0}),
        Case("Trilu", [real(3, 4)]),
    ]


def packed_weight_cases() -> list[Case]:
    cases = []
    for bits, with_zero in itertools.product((4, 8), (False, True)):
        k, n, block = 40, 6, 16
        blocks = -(-k // block)
        packed = byte(n, blocks, block * bits // 8)
        scales = (RNG.random((n, blocks)) * 0.1).astype(np.float32)
        zero = byte(n, -(-blocks * bits // 8)) if with_zero else None
        attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
        cases.append(
            Case("MatMulNBits", [real(2, 3, k), packed, scales, zero], attrs, constants=(1, 2, 3))
        )
    return cases


def looked_up_weight_cases() -> list[Case]:
    op, rows = "GatherBlockQuantized", np.array([[0, 3], [-1, 2]])
    cases = []
    for bits, zeros in itertools.product((2, 4, 8), (False, True)):
        data, points = byte(10, 40 * bits // 8), byte(10, -(-3 * bits // 8))
        inputs: list[Array | None] = [data, rows, real(10, 3), points if zeros else None]
        attrs = {"bits": bits, "block_size": 16}
        cases.append(Case(op, inputs, attrs, constants=(0, 2, 3)))
    for dtype, (gathered, axis) in itertools.product(
        (ml_dtypes.int4, ml_dtypes.uint4), itertools.product((0, 1), repeat=2)
    ):
        shape, blocks = ((10, 40), (10, 3)) if axis == 1 else ((40, 10), (3, 10))
        inputs = [
            RNG.integers(0, 8, shape).astype(dtype),
            rows.astype(np.int32),
            real(*blocks),
            RNG.integers(0, 8, blocks).astype(dtype),
        ]
        attrs = {"gather_axis": gathered, "quantize_axis": axis, "block_size": 16}
        cases.append(Case(op, inputs, attrs, constants=(0, 2, 3)))
    for kind, columns in itertools.product((0, 1), (6, 7)):
        attrs = {"K": 45, "N": columns, "block_size": 16, "quant_type": kind}
        count = 45 * columns
        inputs = [real(3, 45), byte(-(-count // 2)), np.abs(real(-(-count // 16)))]
        cases.append(Case("MatMulBnb4", inputs, attrs, constants=(1, 2)))
    return cases


def product_of_bits_cases() -> list[Case]:
    op, k, n, block = "MatMulNBits", 330, 37, 64
    blocks = -(-k // block)
    groups = RNG.permutation(np.arange(k) // block).astype(np.int32)
    cases = []
    for bits, rows in itertools.product((2, 4, 8), (1, 3, 4, 8, 9, 40)):
        packed = byte(n, blocks, block * bits // 8)
        scales = (RNG.random((n, blocks)) * 0.1).astype(np.float32)
        attrs = {"K": k, "N": n, "bits": bits, "block_size": block}
        x, zero = real(rows, k), byte(n, -(-blocks * bits // 8))
        constants = (1, 2, 3, 4, 5)
        inputs: list[list[Array | None]] = [[x, packed, scales, zero]]
        if rows < 4:
            half = [x.astype(np.float16), packed, scales.astype(np.float16)]
            cases.append(Case(op, [*half, zero], attrs, atol=0.2, constants=constants))
        if rows < 4 and bits == 4:  # onnxruntime reads others in other ways, or not at all
            points = (RNG.random((n, blocks)) * 3).astype(np.float32)
            inputs.append([x, packed, scales, points])
            inputs.append([x, packed, scales, points, groups])
            inputs.append([x, packed, scales, None, groups, real(n)])
        cases += [Case(op, each, attrs, atol=2e-3, constants=constants) for each in inputs]
    return cases


def quantized_cases() -> list[Case]:
    a, b, c = [byte(2, 3, 4), SCALE, ZERO], [byte(3, 4), scalar(0.03), ZERO], [scalar(0.05), ZERO]
    image = [byte(1, 3, 6, 5), SCALE, ZERO]
    gemm = [byte(3, 4), SCALE, ZERO, signed_byte(4, 5), scalar(0.01), scalar(3, np.int8)]
    bias = RNG.integers(-500, 500, 5, dtype=np.int32)
    window = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}
    step = 1.001  # a result halfway between two numbers may become either
    return [
        Case("QLinearAdd", [*a, *b, *c], atol=step),
        Case("QLinearMul", [*a, *b, *c], atol=step),
        Case("QLinearSigmoid", [*a, scalar(1 / 256), scalar(0, np.uint8)], atol=step),
        Case("QLinearLeakyRelu", [*a, *c], {"alpha": 0.1}, atol=step, constants=(1, 2, 3, 4)),
        Case(
            "QLinearSoftmax",
            [*a, scalar(1 / 256), scalar(0, np.uint8)],
            {"opset": 13, "axis": -1},
            atol=step,
            constants=(1, 2, 3, 4),
        ),
        Case("QLinearGlobalAveragePool", [*image, *c], {"channels_last": 0}, atol=step),
        Case("QLinearAveragePool", [*image, *c], window, atol=step),
        Case(
            "QLinearConcat",
            [*c, *a, byte(2, 1, 4), scalar(0.1), ZERO],
            {"axis": 1},
            atol=step,
            constants=(0, 1, 3, 4, 6, 7),
        ),
        Case("QGemm", [*gemm, bias, *c], {"alpha": 0.5}, atol=step),
        Case("QGemm", [*gemm, bias], atol=1e-4),
        Case("QGemm", [*gemm, bias, c[0]], atol=1e-4),
        Case("QGemm", [*gemm[:3], signed_byte(5, 4), *gemm[4:], bias], {"transB": 1}, atol=1e-4),
        Case("QuantizeLinear", [real(2, 3), SCALE, ZERO]),
        Case("DequantizeLinear", [byte(2, 3), SCALE, ZERO]),
        Case("DynamicQuantizeMatMul", [real(2, 3, 4), signed_byte(4, 5), SCALE], atol=1e-4),
        Case(
            "DynamicQuantizeMatMul",
            [real(3, 4), byte(4, 5), SCALE, ZERO, real(5)],
            atol=1e-4,
        ),
        Case(
            "MatMulIntegerToFloat",
            [byte(3, 4), byte(4, 5), SCALE, scalar(0.03), ZERO, ZERO, real(5)],
            atol=1e-4,
        ),
        Case(
            "DynamicQuantizeLSTM",
            [
                real(3, 2, 4),
                byte(1, 4, 12),
                byte(1, 3, 12),
                real(1, 24),
                *[None] * 4,
                *[scalar(0.01).reshape(1), ZERO.reshape(1)] * 2,
            ],
            {"hidden_size": 3},
            3,
            atol=0.02,  # onnxruntime quantizes the activations, too
            constants=(1, 2, 8, 9, 10, 11),
        ),
    ]


def learned_cases() -> list[Case]:
    def case(op: str, inputs: list[Array | None], outputs: int = 1, **attrs: Any) -> Case:
        return Case(op, inputs, attrs, outputs, "ai.onnx.ml")

    x = real(4, 3)
    holes = np.array([[1, np.nan, 3], [np.nan, 5, 6]], np.float32)
    numbers = np.array([3, 1, 7, 3], np.int64)
    two = {"coefficients": [0.5, -1.0, 2.0], "intercepts": [0.1], "classlabels_ints": [4, 9]}
    three = {
        "coefficients": list(np.linspace(-1, 1, 9)),
        "intercepts": [0.1, 0.2, -0.1],
        "classlabels_ints": [4, 9, 2],
    }
    cases = [
        case("Scaler", [x], offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, -1.0]),
        case("Scaler", [numbers.reshape(2, 2)], offset=[1.5], scale=[0.5]),
        case("Binarizer", [x], threshold=0.3),
        case("Imputer", [holes], imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=np.nan),
        case("Imputer", [numbers.reshape(2, 2)], imputed_value_int64s=[5], replaced_value_int64=3),
        case("ArrayFeatureExtractor", [x, np.array([2, 0])]),
        case("FeatureVectorizer", [x, real(4, 2)], inputdimensions=[3, 2]),
        case("OneHotEncoder", [numbers], cats_int64s=[1, 3, 5]),
        case("LabelEncoder", [numbers], keys_int64s=[1, 3], values_floats=[0.5, 2.5]),
        case("LabelEncoder", [numbers], keys_int64s=[1, 7], values_int64s=[5, 6], default_int64=8),
        case("LinearRegressor", [x], coefficients=[1.0, 2.0, 3.0], intercepts=[0.5]),
        case("LinearRegressor", [x], coefficients=[1.0, 2.0, 3.0, -1.0, 0.0, 1.0], targets=2),
        case("LinearClassifier", [x], 2, **three),
        case("LinearClassifier", [x], 2, **three, post_transform="SOFTMAX"),
        case("LinearClassifier", [x], 2, **three, post_transform="LOGISTIC"),
        case("LinearClassifier", [x], 2, **two, post_transform="LOGISTIC"),
        case("LinearClassifier", [x], 2, **two),
    ]
    # Two trees of depth 2 and 1; the second weighs two targets.
    trees = {
        "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
        "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0],
        "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ"] * 2 + ["LEAF"] * 3 + ["BRANCH_LEQ"] + ["LEAF"] * 2,
        "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
        "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 1, 0, 0],
    }

    def weights(kind: str) -> dict[str, Any]:
        """Leaves of the first tree weigh targets 0 and 1, those of the second 0 and 2."""
        return {
            f"{kind}_treeids": [0] * 6 + [1] * 4,
            f"{kind}_nodeids": [2, 2, 3, 3, 4, 4, 1, 1, 2, 2],
            f"{kind}_ids": [0, 1, 0, 1, 0, 1, 0, 2, 0, 2],
            f"{kind}_weights": [0.5, -0.25, 0.25, 0.125, -1.0, 2.0, 2.0, 0.75, -0.5, 1.5],
        }

    rows = np.concatenate([real(20, 3), [[np.nan] * 3]]).astype(np.float32)
    regression = {**trees, **weights("target"), "n_targets": 3}
    classes = {**trees, **weights("class"), "classlabels_int64s": [4, 9, 2]}
    cases += [
        case("TreeEnsembleRegressor", [rows], **regression, base_values=[0.5, -0.5, 0.0]),
        case("TreeEnsembleRegressor", [rows], **regression, aggregate_function="AVERAGE"),
        case("TreeEnsembleClassifier", [rows], 2, **classes),
    ]
    cases += [case("Normalizer", [x], norm=norm) for norm in ("MAX", "L1", "L2")]
    return cases


def sampling_cases() -> list[Case]:
    cases = []
    for mode, padding, corners in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        grid = real(2, 4, 7, 2) * np.float32(1.5)
        cases.append(Case("GridSample", [real(2, 3, 5, 6), grid], attrs, domain=""))
    rois = np.array([[0, 0, 9, 9], [2.3, 1.2, 7.7, 5.1], [-3, -2, 30, 4]], np.float32)
    attrs = {"output_height": 3, "output_width": 2, "spatial_scale": 0.8}
    for mode, samples in itertools.product(("avg", "max"), (2, 0)):
        cases.append(
            Case(
                "RoiAlign",
                [real(2, 3, 10, 12), rois, np.array([0, 1, 1])],
                {**attrs, "mode": mode, "sampling_ratio": samples},
                domain="",
            )
        )
    boxes = np.array([[0, 0, 0, 9, 9], [1, 2, 1, 7, 5], [1, 8, 8, 30, 20]], np.float32)
    attrs = {"pooled_shape": [3, 2], "spatial_scale": 0.7}
    cases.append(Case("MaxRoiPool", [real(2, 3, 10, 12), boxes], attrs, domain=""))
    offsets = [real(2, 36, 5, 6), real(6), real(2, 18, 5, 6)]
    cases.append(
        Case(
            "DeformConv",
            [real(2, 4, 7, 8), real(6, 2, 3, 3), *offsets],
            {"group": 2, "offset_group": 2},
            domain="",
            atol=1e-4,
        )
    )
    return cases


def product_cases() -> list[Case]:
    equations: list[tuple[str, list[Array | None]]] = [
        ("bhwc,hkc->bhwk", [real(2, 3, 4, 5), real(3, 6, 5)]),
        ("ij,jk,kl->il", [real(2, 3), real(3, 4), real(4, 5)]),
        ("iij->j", [real(4, 4, 3)]),
        ("i,j->ji", [real(2), real(3)]),
        ("ba", [real(2, 3)]),
        ("...ij,...jk->...ik", [real(2, 3, 4), real(2, 4, 5)]),
    ]
    cases = [Case("Einsum", x, {"equation": text}, domain="") for text, x in equations]
    for inverse, length in itertools.product((0, 1), (6, 12)):
        inputs: list[Array | None] = [
            real(2, 9, 3, 2),
            scalar(length, np.int64),
            scalar(1, np.int64),
        ]
        cases.append(Case("DFT", inputs, {"inverse": inverse}, domain="", constants=(1, 2)))
    cases.append(Case("DFT", [real(2, 9, 1)], {"onesided": 1}, domain=""))
    cases.append(Case("Det", [real(3, 6, 6)], domain="", atol=1e-3))
    return cases


FAMILIES: list[Callable[[], list[Case]]] = [
    attention_cases,
    grouped_query_cases,
    rotary_cases,
    layer_cases,
    packed_weight_cases,
    quantized_cases,
    learned_cases,
    sampling_cases,
    product_cases,
    looked_up_weight_cases,
    product_of_bits_cases,
    sink_cases,
]


@pytest.mark.parametrize(
    "case", [case for family in FAMILIES for case in family()], ids=lambda case: case.op
)
def test_operator_agrees_with_onnxruntime(case: Case) -> None:
    case.check()


def test_packed_operands_of_attention_are_their_parts() -> None:
    """onnxruntime runs packed operands on GPUs only, so that their parts are the reference."""
    packed = real(2, 3, 2, 3, 4)  # batch, length, heads, parts, width

    def run(inputs: Sequence[Array | None]) -> Array:
        model = Case("MultiHeadAttention", inputs, {"num_heads": 2}).model().SerializeToString()
        feeds = {f"in{i}": value for i, value in enumerate(inputs) if value is not None}
        result: Array = InferenceSession(model).run(None, feeds)[0]
        return result

    q, k, v = (packed[:, :, :, i].reshape(2, 3, 8) for i in range(3))
    wanted = run([q, k, v])
    np.testing.assert_allclose(run([packed]), wanted, rtol=1e-6)
    np.testing.assert_allclose(run([q, packed[:, :, :, 1:].copy()]), wanted, rtol=1e-6)
    bias = real(24)
    np.testing.assert_allclose(run([packed, None, None, bias]), run([q, k, v, bias]), rtol=1e-5)


@pytest.mark.parametrize("attrs", [{}, {"unidirectional": 1}, {"scale": 0.3}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_scores_of_attention(attrs: dict[str, Any], masked: bool) -> None:
    """Of Whisper's alignments: all that is added to them, and the lowest number for hidden keys."""
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32) if masked else None
    inputs = [real(2, 3, 8), real(2, 3, 8), real(2, 3, 8), None, mask]
    model = Case("MultiHeadAttention", inputs, {"num_heads": 2, **attrs}, 4).model()
    del model.graph.output[1:3]
    kind = model.graph.output[1].type.tensor_type  # which onnxruntime does not infer
    kind.elem_type = onnx.TensorProto.FLOAT
    feeds = {f"in{i}": value for i, value in enumerate(inputs) if value is not None}
    content = model.SerializeToString()
    wanted = onnxruntime.InferenceSession(content).run(None, feeds)
    for ours, theirs in zip(InferenceSession(content).run(None, feeds), wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
