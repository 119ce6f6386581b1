"""ONNX's interface for runtimes beside stock onnxruntime's."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.backend as stock
import pytest

import ortmodule_py.onnxruntime
import ortmodule_py.onnxruntime.backend as ours
from tests.inference.test_session import mlp, x_of

BACKENDS = [(stock, onnxruntime), (ours, ortmodule_py.onnxruntime)]


@pytest.mark.parametrize("backend,package", BACKENDS)
def test_models_are_prepared_and_run(backend: Any, package: Any, tmp_path: Any) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp())
    session = package.InferenceSession(mlp())
    (y, r) = session.run(None, {"x": x_of(2)})
    rep = backend.prepare(session)
    assert backend.prepare(rep) is rep
    typed = onnx.shape_inference.infer_shapes(onnx.load_from_string(mlp()))
    for model in (session, rep, str(path), mlp(), typed):
        for inputs in (x_of(2), [x_of(2)]):
            outputs = backend.run(model, inputs, device="CPU", log_severity_level=3, unknown=1)
            np.testing.assert_array_equal(outputs[0], y)
            np.testing.assert_array_equal(outputs[1], r)
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA")
    assert backend.is_compatible(typed) and not backend.is_compatible(typed, "TPU")


@pytest.mark.parametrize("backend,package", BACKENDS)
def test_what_is_refused(backend: Any, package: Any) -> None:
    typed = onnx.shape_inference.infer_shapes(onnx.load_from_string(mlp()))
    with pytest.raises(RuntimeError, match="Incompatible device"):
        backend.prepare(mlp(), device="TPU")
    with pytest.raises(RuntimeError, match="enable_profiling"):
        backend.prepare(mlp(), enable_profiling=True)
    with pytest.raises(RuntimeError, match="terminate"):
        backend.prepare(mlp()).run(x_of(2), terminate=True)
    with pytest.raises(onnx.checker.ValidationError):
        backend.prepare(onnx.ModelProto())
    typed.opset_import[0].version = 999
    with pytest.raises((unittest.SkipTest, onnx.checker.ValidationError)):
        backend.prepare(typed)


def test_one_node() -> None:
    node = onnx.helper.make_node("Clip", ["x", "", "most"], ["y"])
    x = np.array([[-3, 7]], "float32")
    (y,) = ours.backend.OnnxRuntimeBackend.run_node(node, [x, np.float32(5)], opset_version=13)
    np.testing.assert_array_equal(y, [[-3, 5]])
    with pytest.raises(ValueError, match="shorter"):
        ours.backend.OnnxRuntimeBackend.run_node(node, [x])


def test_onnx_runs_its_own_tests_through_it() -> None:
    from onnx.backend.test import BackendTest

    tests = BackendTest(ours, __name__)
    tests.include("test_relu_cpu|test_softmax_axis_1_cpu|test_sequence_insert_at_back_cpu")
    result = unittest.TestResult()
    tests.test_suite.run(result)
    assert result.wasSuccessful() and result.testsRun - len(result.skipped) == 3
