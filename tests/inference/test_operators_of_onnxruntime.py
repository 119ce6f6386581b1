"""Operators of onnxruntime's own domain and of early ONNX, and versions that mean something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ValueInfoProto, helper

from ortmodule_py import InferenceSession
from ortmodule_py.inference import InvalidGraph
from tests.inference.test_data_sizes import compare, node
from tests.inference.test_session import ONE_THREAD

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"


def real(*shape: int, seed: int = 1, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def single(
    op: str,
    inputs: list[Any],
    outputs: int = 1,
    *,
    opset: int = 18,
    domain: str = "",
    fixed: bool = False,
    **attributes: Any,
) -> tuple[bytes, dict[str, Any]]:
    """A model of one node whose outputs have no type, and its feeds."""
    names = [f"y{i}" for i in range(outputs)]
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    operands = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    graph = helper.make_graph(
        [node(op, operands, names, name="it", domain=domain, **attributes)],
        "single",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape if fixed else None
            )
            for name, x in feeds.items()
        ],
        [ValueInfoProto(name=name) for name in names],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString(), feeds


IMAGE = real(2, 3, 6, 7)
BOUNDS = np.array([0, 1, 5, 9], "int32")
# Words of two, five, six and one letters, with a gap in one.
LETTERS = np.array(
    [[3, 1, 0, 0, 0, 0], [2, 5, 0, 8, 1, 1], [1, 2, 3, 4, 5, 6], [7, 0, 0, 0, 0, 0]], "int32"
)
# A token of each of four beams, and caches of twelve.
STEP = [real(4, 1, 32, seed=seed) for seed in (1, 2, 3)]
DECODED = [real(4, 4, 12, 8, seed=seed) for seed in (4, 5)]
MOVED = np.array([[[1, 0]], [[2, -1]]])
PLACES = np.random.default_rng(0).integers(0, 20, (3, 2, 5))
BOXES = np.float32(
    [[0, 0, 1, 1], [0.1, 0.2, 0.8, 0.9], [0.9, 0.8, 0.1, 0.1], [-0.5, -0.1, 1.2, 1.3]]
)
CROPS = [np.array([0, 1, 0, 1], "int32"), np.array([3, 4], "int32")]
SHORT = np.arange(-300, 300, 25).astype("int16").reshape(4, 6)
CASES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "Affine": single("Affine", [real(5)], opset=8, alpha=2.0, beta=0.5),
    "Scale": single("Scale", [real(2, 5)], opset=8, scale=2.0),
    "ScaledTanh": single("ScaledTanh", [real(2, 5)], opset=8, alpha=2.0, beta=0.5),
    "ParametricSoftplus": single(
        "ParametricSoftplus", [real(2, 5) * 40], opset=8, alpha=2.0, beta=-0.5
    ),
    "ImageScaler": single("ImageScaler", [IMAGE], opset=8, scale=2.0, bias=[1.0, 2.0, 3.0]),
    "Crop": single("Crop", [IMAGE], opset=8, border=[1, 2, 2, 1]),
    "Crop to a size": single("Crop", [IMAGE], opset=8, border=[1, 2, 2, 1], scale=[2, 3]),
    "TransposeMatMul": single(
        "TransposeMatMul", [real(2, 4, 3), real(2, 4, 5)], domain=MICROSOFT, transA=1, alpha=0.5
    ),
    "FusedMatMul of moved batches": single(
        "FusedMatMul",
        [real(3, 2, 5, 4), real(4, 2, 5, 6)],
        domain=MICROSOFT,
        transBatchA=1,
        transBatchB=1,
    ),
    "FusedMatMul of a moved and turned factor": single(
        "FusedMatMul", [real(4, 2, 3), real(2, 4, 5)], domain=MICROSOFT, transBatchA=1, transA=1
    ),
    "Range": single("Range", [np.array(1), np.array(9), np.array(3)], domain=MICROSOFT),
    "Range of steps of one": single(
        "Range", [np.array(1.5, "float32"), np.array(5, "float32")], domain=MICROSOFT
    ),
    "GatherND": single("GatherND", [real(3, 4), MOVED], domain=MICROSOFT),
    "GridSample": single(
        "GridSample",
        [IMAGE, np.tanh(real(2, 3, 3, 2)) * np.float32(1.3)],
        domain=MICROSOFT,
        mode="bicubic",
        padding_mode="reflection",
    ),
    "GatedRMSNorm": single(
        "GatedRMSNorm",
        [real(2, 3, 8), real(4, seed=2), real(2, 3, 8, seed=3)],
        domain=MICROSOFT,
        activation="sigmoid",
    ),
    "BranchwiseRMSNorm": single(
        "BranchwiseRMSNorm",
        [real(2, 3, 8), real(4, seed=2)],
        domain=MICROSOFT,
        num_branches=2,
        epsilon=0.1,
    ),
    "BranchwiseRMSNorm of branches": single(
        "BranchwiseRMSNorm", [real(2, 3, 8), real(24, seed=2)], domain=MICROSOFT
    ),
    "GatedAdd": single(
        "GatedAdd", [real(2, 3, 8), real(2, 3, 8, seed=2), real(2, 3, 1, seed=3)], domain=MICROSOFT
    ),
    "ScaledSiLU": single("ScaledSiLU", [real(2, 3, 8)], domain=MICROSOFT, alpha=0.5),
    "ScaledSiLU by an operand": single(
        "ScaledSiLU", [real(2, 3, 8), np.array(0.3, "float32")], domain=MICROSOFT
    ),
    "LinearAttentionGate": single(
        "LinearAttentionGate",
        [real(2, 3, 4), real(4, seed=2), real(4, seed=3), real(2, 3, 4, seed=4)],
        2,
        domain=MICROSOFT,
    ),
    "LinearAttention": single(
        "LinearAttention",
        [
            real(2, 5, 16),
            real(2, 5, 8, seed=2) * np.float32(0.3),
            real(2, 5, 6, seed=3),
            real(2, 2, 4, 3, seed=4),
            -np.abs(real(2, 5, 2, seed=5)),
            np.abs(np.tanh(real(2, 5, 2, seed=6))),
        ],
        2,
        domain=MICROSOFT,
        q_num_heads=4,
        kv_num_heads=2,
    ),
    "CausalConvWithState": single(
        "CausalConvWithState",
        [real(2, 6, 9), real(6, 1, 4, seed=2), real(6, seed=3), real(2, 6, 6, seed=4)],
        2,
        domain=MICROSOFT,
        activation="silu",
        dilation=2,
    ),
    "CausalConvWithState of rows": single(
        "CausalConvWithState",
        [real(2, 9, 6), real(6, 1, 4, seed=2), None, real(2, 3, 6, seed=4)],
        2,
        domain=MICROSOFT,
        channels_last=1,
    ),
    **{
        f"VarlenCausalConvWithState {name}": single(
            "VarlenCausalConvWithState",
            [real(9, 6), real(6, 1, 3, seed=2), BOUNDS, *operands],
            outputs,
            domain=MICROSOFT,
            **attributes,
        )
        for name, operands, outputs, attributes in (
            ("", [None, real(3, 6, 2, seed=4)], 2, {}),
            (
                "that is bent",
                [real(6, seed=3), real(3, 6, 4, seed=4)],
                2,
                {"activation": "silu", "dilation": 2},
            ),
            (
                "that captures",
                [None, real(3, 6, 2, seed=4), np.array([5, 0, 2], "int32")],
                3,
                {"state_update_capacity": 4},
            ),
        )
    },
    "VarlenCausalConvWithState of single places": single(
        "VarlenCausalConvWithState",
        [real(9, 6), real(6, 1, 1, seed=2), BOUNDS, None, real(3, 6, 0)],
        2,
        domain=MICROSOFT,
    ),
    "MRotaryEmbedding": single(
        "MRotaryEmbedding",
        [real(2, 3, 5, 16), PLACES, real(20, 8, seed=2), real(20, 8, seed=3)],
        domain=MICROSOFT,
        mrope_section=[4, 2, 2],
    ),
    "MRotaryEmbedding of columns that alternate": single(
        "MRotaryEmbedding",
        [real(2, 5, 48), PLACES, real(20, 4, seed=2), real(20, 4, seed=3)],
        domain=MICROSOFT,
        mrope_section=[2, 1, 1],
        mrope_layout=1,
        num_heads=3,
        rotary_embedding_dim=8,
        interleaved=1,
        scale=0.5,
    ),
    "MoEGroupRouter": single(
        "MoEGroupRouter",
        [real(2, 3, 16), real(16, seed=2)],
        domain=MICROSOFT,
        top_k=2,
        n_group=4,
        topk_group=2,
    ),
    "MoEGroupRouter of one group": single(
        "MoEGroupRouter", [real(6, 16), real(16, seed=2)], domain=MICROSOFT, top_k=3
    ),
    "DecoderMaskedMultiHeadAttention": single(
        "DecoderMaskedMultiHeadAttention",
        [*STEP, None, None, *DECODED, np.array([5], "int32")],
        3,
        domain=MICROSOFT,
        num_heads=4,
        past_present_share_buffer=1,
    ),
    "DecoderMaskedMultiHeadAttention with a mask, a score bias and a bias": single(
        "DecoderMaskedMultiHeadAttention",
        [
            *STEP,
            np.array([[1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]] * 2, "int32"),
            real(1, 4, 1, 6),
            *DECODED,
            np.array([5], "int32"),
            None,
            None,
            real(96, seed=7),
        ],
        3,
        domain=MICROSOFT,
        num_heads=4,
        past_present_share_buffer=1,
        scale=0.3,
    ),
    "DecoderMaskedMultiHeadAttention of beams": single(
        "DecoderMaskedMultiHeadAttention",
        [
            *STEP,
            None,
            None,
            *DECODED,
            np.array([5], "int32"),
            np.array([2], "int32"),
            np.array([[[0, 0, 1, 0, 1] + [9] * 7, [1, 0, 0, 1, 1] + [9] * 7]] * 2, "int32"),
        ],
        3,
        domain=MICROSOFT,
        num_heads=4,
        past_present_share_buffer=1,
    ),
    "DecoderMaskedMultiHeadAttention of an encoder": single(
        "DecoderMaskedMultiHeadAttention",
        [STEP[0], real(4, 4, 7, 8, seed=3), real(4, 4, 7, 8, seed=4)],
        domain=MICROSOFT,
        num_heads=4,
    ),
    **{
        f"GroupQueryAttention with output {shown} of {name}": single(
            "GroupQueryAttention",
            [
                *(real(1, 4, 32, seed=seed) for seed in (1, 2, 3)),
                *(real(1, 4, past, 8, seed=seed) for seed in (4, 5)),
                np.array([past + 3], "int32"),
                np.array(past + 4, "int32"),
            ],
            4,
            domain=MICROSOFT,
            num_heads=4,
            kv_num_heads=4,
            qk_output=shown,
            **attributes,
        )
        for shown in (1, 2)
        for name, past, attributes in (
            ("a prompt", 0, {}),
            ("soft caps", 0, {"softcap": 2.0}),
            ("a window", 0, {"local_window_size": 2}),
            ("a sink", 0, {"smooth_softmax": 1}),
        )
    },
    "ConvTransposeWithDynamicPads": single(
        "ConvTransposeWithDynamicPads",
        [IMAGE, real(3, 4, 3, 3), np.array([1, 0, 1, 1]), real(4)],
        domain=MICROSOFT,
        strides=[2, 1],
    ),
    "QLinearMul": single(
        "QLinearMul",
        [
            np.arange(256, dtype="uint8").reshape(1, 256),
            *(np.array(v, t) for v, t in ((0.03, "float32"), (100, "uint8"))),
            np.arange(0, 256, 3, dtype="uint8").reshape(-1, 1),
            *(np.array(v, t) for v, t in ((0.07, "float32"), (3, "uint8"))),
            *(np.array(v, t) for v, t in ((0.5, "float32"), (20, "uint8"))),
        ],
        domain=MICROSOFT,
    ),
    "Inverse": single("Inverse", [real(2, 3, 4, 4)], domain=MICROSOFT),
    "Inverse of larger matrices": single(
        "Inverse", [real(2, 37, 37) + 9 * np.eye(37, dtype="float32")], domain=MICROSOFT
    ),
    "Inverse of doubles": single("Inverse", [real(9, 9, dtype="float64")], domain=MICROSOFT),
    "NGramRepeatBlock": single(
        "NGramRepeatBlock",
        [np.array([[1, 2, 1, 2, 1], [0, 0, 0, 3, 4]]), real(2, 5)],
        domain=MICROSOFT,
        ngram_size=2,
    ),
    "CropAndResize": single(
        "CropAndResize", [IMAGE, BOXES, *CROPS], domain=MICROSOFT, extrapolation_value=-3.0
    ),
    "CropAndResize of the nearest": single(
        "CropAndResize", [IMAGE, BOXES, *CROPS], domain=MICROSOFT, mode="nearest"
    ),
    "DynamicTimeWarping": single("DynamicTimeWarping", [real(6, 9)], domain=MICROSOFT),
    "DynamicTimeWarping of equal costs": single(
        "DynamicTimeWarping", [np.ones((1, 4, 5), "float32")], domain=MICROSOFT
    ),
    "UnfoldTensor": single(
        "UnfoldTensor", [real(3, 7, 2)], domain=MICROSOFT, dim=1, size=3, step=2
    ),
    "WordConvEmbedding": single(
        "WordConvEmbedding",
        [LETTERS, real(4, 1, 3, 5), real(4, seed=2), real(9, 5, seed=3)],
        domain=MICROSOFT,
    ),
    "SampleOp": single("SampleOp", [real(3, 4)], domain=MICROSOFT),
    "LayerNormalization before it was ONNX's": single(
        "LayerNormalization", [real(2, 3, 8), real(8), real(8, seed=2)], 3, opset=13
    ),
    "ThresholdedRelu before it was ONNX's": single(
        "ThresholdedRelu", [real(3, 4)], opset=9, alpha=0.2
    ),
    **{
        f"DynamicSlice of {len(operands)}": single("DynamicSlice", [real(4, 5), *operands], opset=9)
        for operands in (
            [np.array([1, 0]), np.array([-1, 1000])],
            [np.array([2]), np.array([5]), np.array([1])],
        )
    },
    "MatMulInteger16": single("MatMulInteger16", [SHORT, SHORT.T.copy()], domain=MICROSOFT),
    "Unique in order": single("Unique", [np.float32([3, 1, 3, 2, 1])], 3, domain=MICROSOFT),
    "BatchNormalization that trains": single(
        "BatchNormalization",
        [real(4, 3, 5), *(real(3, seed=s) for s in (2, 3, 4)), np.abs(real(3, seed=5))],
        5,
        opset=9,
        momentum=0.7,
    ),
    "BatchNormalization of each place": single(
        "BatchNormalization",
        [real(4, 3, 5), *(real(3, 5, seed=s) for s in (2, 3, 4)), np.abs(real(3, 5, seed=5))],
        opset=8,
        spatial=0,
    ),
    "BatchNormalization of a vector": single(
        "BatchNormalization",
        [real(4), *(real(1, seed=s) for s in (2, 3, 4)), np.abs(real(1, seed=5))],
        fixed=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator_as_in_onnxruntime(name: str) -> None:
    model, feeds = CASES[name]
    compare(model, feeds)


def test_a_removed_operator_of_a_later_operator_set() -> None:
    model, _ = single("Affine", [real(5)], opset=10, fixed=True)
    with pytest.raises(InvalidGraph, match="operator set 10 has removed it"):
        InferenceSession(model, ONE_THREAD)


def test_what_only_cuda_has_in_onnxruntime_is_named() -> None:
    model, feeds = single(
        "CausalConvWithState",
        [real(2, 9, 6), real(6, 1, 4)],
        2,
        domain=MICROSOFT,
        state_length=5,
    )
    with pytest.raises(RuntimeError, match="attribute state_length has no rule"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)
