"""ONNX's own backend tests, from the installed `onnx` package, on our sessions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx import numpy_helper

from ortmodule_py.inference import InferenceSession

DATA = Path(onnx.backend.test.__file__).parent / "data"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass
class Case:
    """A model with feeds and expected results. `model` is a path or the content of a file."""

    name: str
    model: str | bytes
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float = 1e-3
    atol: float = 1e-7


def cases(kind: str) -> list[Case]:
    """All cases of a kind, by name."""
    found = _generated() if kind == "node" else _stored(kind)
    return sorted(found, key=lambda case: case.name)


def _generated() -> Iterator[Case]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    for case in collected:
        sets = [
            ([_array(value) for value in inputs], [_array(value) for value in outputs])
            for inputs, outputs in case.data_sets
        ]
        yield Case(case.name, case.model.SerializeToString(), sets, case.rtol, case.atol)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _stored(kind: str) -> Iterator[Case]:
    for path in (DATA / kind).glob("*/model.onnx"):
        graph = onnx.load(path, load_external_data=False).graph
        initialized = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in initialized]
        sets = [
            (list(_values(folder, "input", inputs)), list(_values(folder, "output", graph.output)))
            for folder in sorted(path.parent.glob("test_data_set_*"))
        ]
        yield Case(path.parent.name, str(path), sets)


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


def run(case: Case) -> None:
    """Runs a case. Raises an exception if it fails, AssertionError for a wrong result."""
    session = InferenceSession(case.model)
    names = [value.name for value in session.get_inputs()]
    for inputs, expected in case.data_sets:
        results = session.run(None, dict(zip(names, inputs, strict=False)))
        assert len(results) == len(expected), "another number of outputs"
        for result, wanted in zip(results, expected, strict=True):
            _check(result, wanted, case)


def _check(result: Any, wanted: Any, case: Case) -> None:
    if isinstance(wanted, (list, tuple)):
        assert isinstance(result, list), "a sequence is wanted"
        for one, other in zip(result, wanted, strict=True):
            _check(one, other, case)
        return
    wanted = np.asarray(wanted)
    assert result.shape == wanted.shape, f"shape {result.shape} instead of {wanted.shape}"
    assert result.dtype == wanted.dtype, f"type {result.dtype} instead of {wanted.dtype}"
    if wanted.dtype.kind not in "fcV":
        np.testing.assert_array_equal(result, wanted)
        return
    if wanted.dtype.itemsize < 4:
        result, wanted = result.astype("float32"), wanted.astype("float32")
    np.testing.assert_allclose(result, wanted, rtol=case.rtol, atol=case.atol)
