"""Draws become ONNX's random operators, whose numbers are the runtime's."""

import numpy as np
import onnx.reference
import torch

from .test_onnx_file import save

TEXT = """g (x: f32[n,2]) => (a, b, c, d) {
    a = RandomUniform<shape=[n,500], dtype=f32, rng=0> ()
    b = RandomUniform<shape=[2000], dtype=f16, rng=1> ()
    c = RandomNormal<shape=[3,n*100], dtype=f64, rng=2> ()
    d = RandomNormal<shape=[5000], dtype=f32, rng=3> ()
}"""


def test_draws_are_those_of_the_runtime(tmp_path):
    # onnxruntime has no kernels for these operators of opset 22.
    model = save(TEXT, tmp_path / "model.onnx")
    names = [node.op_type for node in model.graph.node if node.op_type.startswith("Random")]
    assert names == ["RandomUniformLike", "RandomUniform", "RandomNormalLike", "RandomNormal"]
    values = onnx.reference.ReferenceEvaluator(model).run(None, {"x": np.zeros((8, 2), np.float32)})
    results = [torch.from_numpy(np.array(y)) for y in values]
    assert [tuple(y.shape) for y in results] == [(8, 500), (2000,), (3, 800), (5000,)]
    kinds = [torch.float32, torch.float16, torch.float64, torch.float32]
    assert [y.dtype for y in results] == kinds
    for y, mean, deviation in zip(results, (0.5, 0.5, 0, 0), (0.289, 0.289, 1, 1), strict=True):
        assert abs(y.double().mean() - mean) < 0.08 and abs(y.double().std() - deviation) < 0.08
