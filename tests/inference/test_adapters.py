"""Adapters (LoRA) beside onnxruntime's: the same files, and runs with their parameters."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as stock
import pytest
from onnx import TensorProto, helper

import ortmodule_py.onnxruntime as ours
from ortmodule_py.inference import InvalidArgument, NoSuchFile
from tests.inference.models import model_bytes

PACKAGES = [stock, ours]
FLOAT = TensorProto.FLOAT
VALUES: dict[str, np.ndarray[Any, Any]] = {
    "a": np.arange(6, dtype="float32").reshape(2, 3),
    "mißt": np.array([-7], "int64"),
    "half": np.array([1.5], "float16"),
    "none": np.zeros((0, 4), "uint8"),
}


def adapter_of(package: Any, values: dict[str, Any]) -> Any:
    adapter = package.AdapterFormat()
    adapter.set_adapter_version(3)
    adapter.set_model_version(4)
    make = package.OrtValue.ortvalue_from_numpy
    adapter.set_parameters({name: make(value) for name, value in values.items()})
    return adapter


@pytest.mark.parametrize("writer", PACKAGES)
@pytest.mark.parametrize("reader", PACKAGES)
def test_files_interchange(writer: Any, reader: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "a.onnx_adapter")
    adapter_of(writer, VALUES).export_adapter(path)
    found = reader.AdapterFormat.read_adapter(path)
    assert (found.get_adapter_version(), found.get_model_version()) == (3, 4)
    assert found.get_format_version() == 1
    parameters = found.get_parameters()
    assert set(parameters) == set(VALUES)
    for name, value in VALUES.items():
        assert parameters[name].is_tensor() and parameters[name].shape() == list(value.shape)
        np.testing.assert_array_equal(parameters[name].numpy(), value)
        assert parameters[name].numpy().dtype == value.dtype


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    value = np.array([1, -2.5], ml_dtypes.bfloat16)
    adapter_of(ours, {"w": value}).export_adapter(tmp_path / "a")
    (found,) = ours.AdapterFormat.read_adapter(tmp_path / "a").get_parameters().values()
    assert found.data_type() == "tensor(bfloat16)"
    np.testing.assert_array_equal(found.numpy(), value)


def model() -> bytes:
    """x w + x a b, where a and b are empty unless they are fed."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("MatMul", ["x", "a"], ["xa"]),
        helper.make_node("MatMul", ["xa", "b"], ["xab"]),
        helper.make_node("Add", ["xw", "xab"], ["y"]),
    ]
    inputs = {"x": (FLOAT, ["n", 4]), "a": (FLOAT, [4, "r"]), "b": (FLOAT, ["r", 4])}
    weights = {
        "w": np.eye(4, dtype="float32"),
        "a": np.zeros((4, 0), "float32"),
        "b": np.zeros((0, 4), "float32"),
    }
    return model_bytes(nodes, inputs, ["y"], weights)


def test_runs_with_adapters(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, a, b, other = (
        random.standard_normal(shape).astype("float32")
        for shape in [(3, 4), (4, 2), (2, 4), (2, 4)]
    )
    path = str(tmp_path / "a.onnx_adapter")
    adapter_of(ours, {"a": a, "b": b}).export_adapter(path)
    found = {}
    for package in PACKAGES:
        adapter = package.LoraAdapter()
        adapter.Load(path)
        options = package.RunOptions()
        options.add_active_adapter(adapter)
        session = package.InferenceSession(model())
        found[package] = [
            session.run(None, {"x": x})[0],
            session.run(None, {"x": x}, options)[0],
        ]
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)
    for mine, theirs in zip(*found.values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    value = ours.OrtValue.ortvalue_from_numpy(x)
    (y,) = session.run_with_ort_values(None, {"x": value}, options)
    np.testing.assert_array_equal(y.numpy(), found[ours][1])
    (y,) = session.run(None, {"x": x, "b": other}, options)  # what is fed wins
    np.testing.assert_allclose(y, x + x @ a @ other, rtol=1e-4, atol=1e-5)


def test_asynchronous_runs_with_adapters(tmp_path: Path) -> None:
    """Of inputs that nothing else gives a value to."""
    path = str(tmp_path / "a")
    a = np.full((4, 2), 3, "float32")
    adapter_of(ours, {"a": a}).export_adapter(path)
    adapter = ours.LoraAdapter()
    adapter.Load(path)
    options = ours.RunOptions()
    options.add_active_adapter(adapter)
    node = helper.make_node("MatMul", ["x", "a"], ["y"])
    session = ours.InferenceSession(
        model_bytes([node], {"x": (FLOAT, ["n", 4]), "a": (FLOAT, [4, 2])}, ["y"])
    )
    x, done = np.ones((1, 4), "float32"), Event()
    found: list[Any] = []

    def take(results: list[Any], _: Any, error: str) -> None:
        found.extend([results, error])
        done.set()

    session.run_async(None, {"x": x}, take, None, options)
    assert done.wait(10) and not found[1]
    np.testing.assert_array_equal(found[0][0], x @ a)


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        ours.LoraAdapter().Load(str(tmp_path / "absent"))
    with pytest.raises(TypeError, match="must be a LoraAdapter"):
        ours.RunOptions().add_active_adapter(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="parameter 'w' must be a tensor of numbers"):
        ours.AdapterFormat().set_parameters({"w": np.zeros(3)})  # type: ignore[dict-item]
    path = tmp_path / "a"
    adapter_of(ours, {"w": np.zeros(2, "float32")}).export_adapter(path)
    options = ours.RunOptions()
    adapter = ours.LoraAdapter()
    adapter.Load(str(path))
    options.add_active_adapter(adapter)
    with pytest.raises(InvalidArgument, match=r"found \['w'\]"):
        ours.InferenceSession(model()).run(None, {"x": np.zeros((1, 4), "float32")}, options)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Each byte of a file in turn: an error of ours, or another adapter, never a crash."""
    adapter_of(ours, {"w": np.arange(3, dtype="float32")}).export_adapter(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    refused = 0
    for place in range(len(content)):
        for value in (0, 127, 255):
            path = tmp_path / "damaged"
            path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                for parameter in ours.AdapterFormat.read_adapter(path).get_parameters().values():
                    parameter.numpy().copy()
            except InvalidArgument:
                refused += 1
    assert refused > len(content) / 2
    for length in (0, 3, 8, len(content) - 1):
        path = tmp_path / "short"
        path.write_bytes(content[:length])
        with pytest.raises(InvalidArgument, match="must be a file of onnxruntime's adapters"):
            ours.AdapterFormat.read_adapter(path)
