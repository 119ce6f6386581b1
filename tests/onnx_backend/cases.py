"""ONNX's own backend tests, read from the installed `onnx` package and run on our sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper

from ortmodule_py.inference import InferenceSession

DATA = Path(onnx.backend.test.__file__).parent / "data"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


def folders(kind: str) -> list[Path]:
    """The cases of a kind: folders with a model and its feeds."""
    return sorted(model.parent for model in (DATA / kind).glob("*/model.onnx"))


def run(folder: Path) -> None:
    """Runs a case. Raises an exception if it fails, AssertionError for a wrong result."""
    path = folder / "model.onnx"
    session = InferenceSession(str(path))
    graph = onnx.load(path, load_external_data=False).graph
    initialized = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initialized]
    for data_set in sorted(folder.glob("test_data_set_*")):
        feeds = dict(zip([i.name for i in inputs], _values(data_set, "input", inputs), strict=False))
        expected = list(_values(data_set, "output", graph.output))
        results = session.run(None, feeds)
        assert len(results) == len(expected), "another number of outputs"
        for result, wanted in zip(results, expected, strict=True):
            _check(result, wanted)


def _values(folder: Path, prefix: str, values: Any) -> Iterator[Any]:
    for i, value in enumerate(values):
        path = folder / f"{prefix}_{i}.pb"
        if not path.exists():
            return
        kind = value.type.WhichOneof("value")
        data = path.read_bytes()
        if kind == "sequence_type":
            yield numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        elif kind == "optional_type":
            yield numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        else:
            yield numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _check(result: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(result, list), "a sequence is wanted"
        for one, other in zip(result, wanted, strict=True):
            _check(one, other)
        return
    assert result.shape == wanted.shape, f"shape {result.shape} instead of {wanted.shape}"
    assert result.dtype == wanted.dtype, f"type {result.dtype} instead of {wanted.dtype}"
    if wanted.dtype.kind not in "fcV":
        np.testing.assert_array_equal(result, wanted)
        return
    if wanted.dtype.name in ("bfloat16", "float16"):
        result, wanted = result.astype("float32"), wanted.astype("float32")
        np.testing.assert_allclose(result, wanted, rtol=1e-2, atol=1e-3)
        return
    np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-6)
