"""The names and signatures of stock onnxruntime's package, beside those of ours."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import onnxruntime as stock
import pytest
from onnx import TensorProto, helper

import ortmodule_py.onnxruntime as ours
from tests.inference.test_session import mlp

CLASSES = [
    "InferenceSession",
    "SessionOptions",
    "RunOptions",
    "NodeArg",
    "ModelMetadata",
    "OrtMemoryInfo",
    "OrtArenaCfg",
    "AdapterFormat",
    "LoraAdapter",
    "OrtEpDevice",
    "OrtHardwareDevice",
    *(name for name in ("OrtValue", "IOBinding", "OrtDevice") if hasattr(ours, name)),
]


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_names_of_the_module() -> None:
    subpackages = {"transformers", "datasets", "backend"}  # names of those that were imported
    missing = {name for name in public(dir(stock)) if not hasattr(ours, name)} - subpackages
    assert missing == {name for name in ours.ABSENT if "." not in name}
    assert all(len(reason) > 10 for reason in ours.ABSENT.values())
    with pytest.raises(AttributeError, match="no SparseTensor: feed and fetch dense arrays"):
        _ = ours.SparseTensor


@pytest.mark.parametrize("name", CLASSES)
def test_members_and_signatures_of_classes(name: str) -> None:
    theirs, own = getattr(stock, name), getattr(ours, name)
    instance = own() if name in ("SessionOptions", "RunOptions") else own
    for member in public(dir(theirs)):
        if f"{name}.{member}" in ours.ABSENT:
            assert not hasattr(instance, member)
            continue
        is_field = member in getattr(own, "__dataclass_fields__", {}) or (
            member in getattr(own, "__annotations__", {})
        )
        assert hasattr(instance, member) or is_field, f"{name}.{member}"
        if callable(getattr(theirs, member)):
            compare_signatures(getattr(theirs, member), getattr(own, member), f"{name}.{member}")


def test_signatures_of_functions() -> None:
    for name in public(dir(stock)):
        function = getattr(stock, name)
        if name not in ours.ABSENT and callable(function) and not isinstance(function, type):
            compare_signatures(function, getattr(ours, name), name)


def compare_signatures(theirs: Any, own: Any, where: str) -> None:
    parameters = [p for p in inspect.signature(own).parameters.values() if p.name != "self"]
    names = [p.name for p in parameters]
    for place, (name, required) in enumerate(parameters_of(theirs)):
        assert place < len(parameters) or any(p.kind == p.VAR_KEYWORD for p in parameters), where
        if name is not None and name != "kwargs":
            assert name in names, f"{where} lacks the parameter {name}"
            assert name == names[place], f"{where}: {name} is in another place"
        if not required:
            assert parameters[place].default is not inspect.Parameter.empty or (
                parameters[place].kind
                in (parameters[place].VAR_KEYWORD, parameters[place].VAR_POSITIONAL)
            ), f"{where}: {name} is optional there"
    extra = parameters[len(parameters_of(theirs)) :]
    assert all(
        p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in extra
    ), where


def parameters_of(function: Any) -> list[tuple[str | None, bool]]:
    """Name (None: positional only) and whether it is required, `self` left out."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        text = (function.__doc__ or "").splitlines()[0]
        found = []
        inner = text[text.index("(") + 1 : text.rindex(")")]
        for part in re.split(r", (?=\w+:|\*)", inner):
            name = part.split(":")[0].strip()
            if not name or name == "self" or name.startswith("*"):
                continue
            known = None if re.fullmatch(r"arg\d", name) else name
            found.append((known, " = " not in part))
        return found
    return [
        (p.name, p.default is p.empty)
        for p in signature.parameters.values()
        if p.name != "self" and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in dir(ours)
        if inspect.isclass(getattr(ours, n)) and issubclass(getattr(ours, n), IntEnum)
    ],
)
def test_values_of_enumerations(name: str) -> None:
    theirs = getattr(stock, name)
    members = getattr(theirs, "__members__", None) or {
        m: getattr(theirs, m) for m in dir(theirs) if isinstance(getattr(theirs, m), (int, theirs))
    }
    for member, value in members.items():
        if member.isupper() or member[0].isupper():
            assert int(getattr(ours, name)[member]) == int(value)


def test_errors_have_the_names_and_catch_as_runtime_errors() -> None:
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    own = ours.capi.onnxruntime_pybind11_state
    for name in dir(state):
        error = getattr(state, name)
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(getattr(own, name), RuntimeError), name
    assert own.InferenceSession is ours.InferenceSession
    collection = importlib.import_module(
        "ortmodule_py.onnxruntime.capi.onnxruntime_inference_collection"
    )
    assert issubclass(collection.InferenceSession, collection.Session)


def test_functions_of_the_module() -> None:
    assert ours.get_available_providers() == ["CPUExecutionProvider"]
    assert set(stock.get_all_providers()) <= set(ours.get_all_providers())
    assert ours.get_device() == "CPU" and ours.__version__ == stock.__version__
    assert ours.get_version_string() == stock.get_version_string()
    assert all("Build Info" in package.get_build_info() for package in (stock, ours))
    assert not ours.has_collective_ops()
    with pytest.raises(NotImplementedError, match="plug-ins cannot be loaded"):
        ours.register_execution_provider_library("mine", "lib.so")


def test_a_logger_callback_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """Its error and the message are on stderr, and the session goes on."""
    for package in (stock, ours):
        with pytest.raises(RuntimeError):
            package.set_default_logger_callback("no function")

    def fails(*_: object) -> None:
        raise KeyError("of the callback")

    ours.set_default_logger_callback(fails, 1)
    try:
        assert ours.InferenceSession(mlp()).get_providers()
    finally:
        ours.set_default_logger_callback(None)
        ours.set_default_logger_severity(2)
    err = capsys.readouterr().err
    assert "KeyError: 'of the callback'" in err and "opened a model in memory" in err


def test_quantization_has_its_names() -> None:
    from onnxruntime import quantization as theirs

    from ortmodule_py.onnxruntime.quantization import QuantType, quantize_dynamic

    assert ours.quantization.quantize_dynamic is quantize_dynamic
    assert [kind.tensor_type for kind in QuantType] == [k.tensor_type for k in theirs.QuantType]
    for name in {name for name in dir(theirs) if not name.startswith("_")}:
        if isinstance(getattr(theirs, name), type(theirs)) or hasattr(ours.quantization, name):
            continue
        with pytest.raises(AttributeError, match=f"'{name}' of onnxruntime is left out: "):
            getattr(ours.quantization, name)
    for name in ("quantize_dynamic", "quantize_static"):
        known = inspect.signature(getattr(theirs, name)).parameters
        found = inspect.signature(getattr(ours.quantization, name)).parameters
        assert list(known) == list(found)[: len(known)]
        for key, value in known.items():
            assert str(value.default) == str(found[key].default)


def test_element_types_that_programs_look_up() -> None:
    """optimum imports them from onnxruntime.transformers when it is imported."""
    pytest.importorskip("onnxruntime.transformers.io_binding_helper")
    path = "{}.transformers.io_binding_helper"
    theirs, own = (
        importlib.import_module(path.format(name)).TypeHelper
        for name in ("onnxruntime", "ortmodule_py.onnxruntime")
    )
    kinds = ("float", "double", "float16", "bfloat16", "bool", "string", "float8e4m3fn")
    numbers = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
    for kind in ("tensor(float)", *(f"tensor({each})" for each in kinds + numbers), "seq(x)"):
        for name in ("ort_type_to_numpy_type", "ort_type_to_torch_type", "ort_type_to_onnx_type"):
            found = outcome(getattr(own, name), kind)
            assert found == outcome(getattr(theirs, name), kind), (name, kind)
            if name == "ort_type_to_numpy_type" and not isinstance(found, str):
                assert own.numpy_type_to_torch_type(found) == theirs.numpy_type_to_torch_type(found)
                torch_type = own.numpy_type_to_torch_type(found)
                assert own.torch_type_to_numpy_type(torch_type) == found
    model = identity()
    sessions = stock.InferenceSession(model), ours.InferenceSession(model)
    for name in ("get_io_onnx_type_map", "get_io_numpy_type_map", "get_io_torch_type_map"):
        assert getattr(own, name)(sessions[1]) == getattr(theirs, name)(sessions[0])
    for name in ("get_input_type", "get_output_type"):
        for value in ("x", "none"):
            assert outcome(getattr(own, name), sessions[1], value) == outcome(
                getattr(theirs, name), sessions[0], value
            )


def test_shapes_of_inputs_are_for_the_caller_to_change() -> None:
    """`shape[0] = batch` of one program does not reach the next one that asks."""
    for package in (stock, ours):
        session = package.InferenceSession(identity())
        (x,) = session.get_inputs()
        x.shape[0] = 5
        shape = session.get_inputs()[0].shape
        shape[0] = 7
        assert session.get_inputs()[0].shape == x.shape == ["N", 3]
        assert {x: 1}[session.get_inputs()[0]] == 1  # may be the key of a dict
        assert str(x) == "NodeArg(name='x', type='tensor(float)', shape=['N', 3])"
        with pytest.raises(AttributeError):
            x.name = "other"


def test_private_fields_of_sessions_that_programs_read(tmp_path: Path) -> None:
    """insightface asserts on `_providers`, kokoro-onnx reads `_model_path`."""
    path = str(tmp_path / "model.onnx")
    Path(path).write_bytes(identity())
    sessions = [
        package.InferenceSession(path, providers=["CPUExecutionProvider"])
        for package in (stock, ours)
    ]
    for name in ("_providers", "_provider_options", "_model_path"):
        theirs, own = (getattr(session, name) for session in sessions)
        assert theirs == own, name
    for name in ("_inputs_meta", "_outputs_meta", "_overridable_initializers"):
        theirs, own = (getattr(session, name) for session in sessions)
        assert list(map(str, theirs)) == list(map(str, own)), name
    assert sessions[0]._model_meta.graph_name == sessions[1]._model_meta.graph_name
    assert sessions[1]._sess_options.logid == sessions[0]._sess_options.logid


def test_enumerations_print_their_names() -> None:
    for package in (stock, ours):
        level = package.GraphOptimizationLevel.ORT_ENABLE_ALL
        assert f"{level}" == str(level) == "GraphOptimizationLevel.ORT_ENABLE_ALL"
        assert int(level) == level == 99 and str(package.ExecutionMode(0))[-10:] == "SEQUENTIAL"


def test_names_of_the_extension_module() -> None:
    for package in (stock, ours):
        device_class = package.capi._pybind_state.OrtDevice
        kind, memory = device_class.cpu(), device_class.default_memory()
        for device in (device_class(kind, memory, 3), device_class(kind, memory, 0, 3)):
            found = device.device_type(), device.mem_type(), device.vendor_id(), device.device_id()
            assert found == (0, 0, 0, 3)
        assert len(package.capi._pybind_state.OrtValueVector()) == 0
        collection = package.capi.onnxruntime_inference_collection
        assert collection.OrtValue is package.OrtValue and collection.IOBinding is package.IOBinding
        assert [collection.get_ort_device_type(name) for name in ("cpu", "cuda")] == [0, 1]
        normalize = collection.check_and_normalize_provider_args
        names, options = normalize(["one", ("two", {3: 4})], None, ["one", "two"])
        assert list(names) == ["one", "two"] and list(options) == [{}, {"3": "4"}]
        assert list(map(list, normalize(None, None, []))) == [[], []]
        with pytest.warns(UserWarning, match="Duplicate provider 'one'"):
            assert normalize(["one", "one"], [{}, {"x": 1}], ["one"])[1] == [{}]
        with pytest.warns(UserWarning, match="'one' is not in available provider names"):
            normalize(["one"], None, ["two"])
        with pytest.raises(ValueError, match="same length"):
            normalize(["one"], [], ["one"])


def test_modules_of_capi_under_another_name() -> None:
    """An import of one of them leaves the others where programs find them."""
    script = (
        "import sys, ortmodule_py.onnxruntime as ort\n"
        "sys.modules['onnxruntime'] = ort\n"
        "from onnxruntime.capi.onnxruntime_inference_collection import Session\n"
        "import onnxruntime\n"
        "from ortmodule_py.inference import Fail\n"
        "assert onnxruntime.capi.onnxruntime_pybind11_state.Fail is Fail\n"
        "assert onnxruntime.capi._pybind_state.Fail is Fail\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def identity() -> bytes:
    """y = x, of sizes [N, 3]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def outcome(function: Any, *args: Any) -> Any:
    """What it returns, or the message of its ValueError."""
    try:
        return function(*args)
    except ValueError as error:
        return str(error)


def test_the_import_needs_no_torch() -> None:
    script = (
        "import sys, ortmodule_py.onnxruntime as ort, ortmodule_py.onnxruntime.quantization\n"
        "ort.SessionOptions(); ort.RunOptions()\n"
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
