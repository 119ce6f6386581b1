"""InferenceSession as users of onnxruntime know it, beside stock onnxruntime on real models."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortmodule_py.onnxruntime as ort
from ortmodule_py import InferenceSession, SessionOptions
from ortmodule_py.inference import InvalidArgument, InvalidProtobuf, NoSuchFile, NotImplemented
from tests.inference.models import model_bytes

ONE_THREAD = SessionOptions()
ONE_THREAD.intra_op_num_threads = 1


def mlp(width: int = 8) -> bytes:
    random = np.random.default_rng(0)
    return model_bytes(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Softmax", ["r"], ["y"], axis=-1),
        ],
        {"x": (TensorProto.FLOAT, ["batch", 4])},
        ["y", "r"],
        {
            "w": random.standard_normal((4, width)).astype("float32"),
            "b": random.standard_normal(width).astype("float32"),
        },
    )


def x_of(batch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).standard_normal((batch, 4)).astype("float32")


def package_file(package: str, pattern: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    if not spec or not spec.origin:
        pytest.skip(f"{package} is not installed")
    return sorted(str(path) for path in Path(spec.origin).parent.glob(pattern))


def assert_close(ours: list[Any], stock: list[Any], tolerance: float = 1e-4) -> None:
    for one, other in zip(ours, stock, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        if one.size and one.dtype.kind == "f":
            scale = max(1.0, float(np.abs(other.astype("float64")).max()))
            assert float(np.abs(one.astype("float64") - other).max()) / scale < tolerance
        else:
            np.testing.assert_array_equal(one, other)


def test_inputs_outputs_and_selected_results() -> None:
    session = InferenceSession(mlp())
    (x,) = session.get_inputs()
    assert (x.name, x.shape, x.type) == ("x", ["batch", 4], "tensor(float)")
    assert [output.name for output in session.get_outputs()] == ["y", "r"]
    assert session.get_providers() == ["CPUExecutionProvider"]
    both = session.run(None, {"x": x_of(3)})
    (r,) = session.run(["r"], {"x": x_of(3)})
    np.testing.assert_array_equal(r, both[1])
    stock = onnxruntime.InferenceSession(mlp()).run(None, {"x": x_of(3)})
    assert_close(both, stock)


def test_memory_is_known_before_a_run_and_kept() -> None:
    session = InferenceSession(mlp(256), ONE_THREAD)
    for batch in (1, 7, 3, 64, 7):
        report = session.memory({"x": (batch, 4)})
        session.run(None, {"x": x_of(batch)})
        assert report.exact
        assert session._session.last_peak_bytes == report.peak_bytes
        assert report.outputs_bytes == 2 * batch * 256 * 4
        assert report.weights_bytes == (4 * 256 + 256) * 4
        assert report.total_bytes == report.peak_bytes + report.weights_bytes


def test_torch_tensors_and_layouts_that_are_not_row_major() -> None:
    import torch

    session = InferenceSession(mlp())
    x = x_of(4)
    (y, _) = session.run(None, {"x": x})
    for feed in (torch.from_numpy(x), torch.from_numpy(x).requires_grad_(), np.asfortranarray(x)):
        np.testing.assert_array_equal(session.run(["y"], {"x": feed})[0], y)
    np.testing.assert_array_equal(session.run(["y"], {"x": x.tolist()})[0], y)


def test_errors_name_the_input() -> None:
    session = InferenceSession(mlp())
    with pytest.raises(ValueError, match="Required inputs"):
        session.run(None, {})
    with pytest.raises(InvalidArgument, match=r"found \['z'\]"):
        session.run(None, {"x": x_of(1), "z": x_of(1)})
    with pytest.raises(InvalidArgument, match="'x' must have type float, but found double"):
        session.run(None, {"x": x_of(1).astype("float64")})
    with pytest.raises(InvalidArgument, match="'x' must have size 4 in dimension 1"):
        session.run(None, {"x": np.zeros((2, 5), "float32")})
    with pytest.raises(InvalidArgument, match="'x' must have rank 2"):
        session.run(None, {"x": np.zeros(4, "float32")})
    with pytest.raises(InvalidArgument, match="'x' must have a value, but found None"):
        session.run(None, {"x": None})
    with pytest.raises(
        InvalidArgument, match=r"'x' must be an array of tensor\(float\).*found str"
    ):
        session.run(None, {"x": "three"})
    with pytest.raises(InvalidArgument, match="an output must be one of"):
        session.run(["q"], {"x": np.zeros(4, "float32")})  # before anything is run


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile):
        InferenceSession(str(tmp_path / "absent.onnx"))
    path = tmp_path / "text.onnx"
    path.write_text("this is no model")
    with pytest.raises(InvalidProtobuf, match=r"text\.onnx"):
        InferenceSession(path)


def test_all_nodes_that_cannot_run_are_named_at_once() -> None:
    model = model_bytes(
        [
            helper.make_node("Magic", ["x"], ["a"], name="first", domain="my.ops"),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("AttnLSTM", ["x"], ["c"], name="second", domain="com.microsoft"),
        ],
        {"x": (TensorProto.FLOAT, ["n"])},
        ["b", "c"],
    )
    with pytest.raises(NotImplemented) as caught:
        InferenceSession(model).run(None, {"x": np.zeros(3, "float32")})
    assert "my.ops.Magic 'first'" in str(caught.value)
    assert "AttnLSTM 'second'" in str(caught.value)


def test_free_dimension_overrides() -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    session = InferenceSession(mlp(), options)
    assert session.run(["y"], {"x": x_of(2)})[0].shape == (2, 8)
    with pytest.raises(RuntimeError, match="size 2"):
        session.run(["y"], {"x": x_of(3)})


def test_runs_may_overlap() -> None:
    session = InferenceSession(mlp(64))
    expected = {batch: session.run(["y"], {"x": x_of(batch)})[0] for batch in range(1, 5)}
    wrong: list[int] = []

    def work(batch: int) -> None:
        for _ in range(40):
            if not np.array_equal(session.run(["y"], {"x": x_of(batch)})[0], expected[batch]):
                wrong.append(batch)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_session_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp())
    script = f"""
import sys, numpy
import ortmodule_py
session = ortmodule_py.InferenceSession({str(path)!r})
session.run(None, {{"x": numpy.zeros((2, 4), "float32")}})
assert "torch" not in sys.modules, "torch was imported"
resident = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
assert resident < 80 * 1024, resident
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_plan_is_the_same_with_torch_loaded() -> None:
    """Training adds kernels that call torch to the same registry; sessions do not choose them."""
    from ortmodule_py import _C

    (conv,) = (op for op in _C.ops() if op["name"] == "Conv")
    assert {kernel["name"] for kernel in conv["kernels"]} > {"conv_cpu"}
    weights = {"w": np.ones((2, 3, 3, 3), "float32")}
    x = {"x": (TensorProto.FLOAT, [1, 3, 8, 8])}
    model = model_bytes([helper.make_node("Conv", ["x", "w"], ["y"])], x, ["y"], weights)
    session = InferenceSession(model)
    assert "conv_pixels_cpu" in session.plan({"x": np.ones((1, 3, 8, 8), "float32")})
    assert session.memory({"x": (1, 3, 8, 8)}).exact


OCR = {
    "det": lambda i: {"x": (1, 3, 96 + 32 * i, 160 - 32 * i)},
    "rec": lambda i: {"x": (1 + i, 3, 48, 128 + 32 * i)},
    "cls": lambda i: {"x": (1 + i, 3, 48, 192)},
}


@pytest.mark.parametrize("kind", OCR)
def test_optical_character_recognition(kind: str) -> None:
    (path,) = package_file("rapidocr_onnxruntime", f"models/*{kind}_infer.onnx")
    check_beside_stock(path, [OCR[kind](i) for i in (0, 2, 1)])


def test_file_type_detection() -> None:
    (path,) = package_file("magika", "models/*/model.onnx")
    check_beside_stock(path, [{"bytes": (batch, 2048)} for batch in (1, 3, 2)])


VOICE_DETECTORS = [
    "silero_vad",
    "silero_vad_16k_op15",
    "silero_vad_16k_sequence",
    "silero_vad_half",
    "silero_vad_op18_ifless",
    "silero_vad_openvino_16k",
]


@pytest.mark.parametrize("name", VOICE_DETECTORS)
def test_voice_activity_detection(name: str) -> None:
    (path,) = package_file("silero_vad", f"data/{name}.onnx")
    stock = onnxruntime.InferenceSession(path)
    shapes = {"input": (1, 576), "state": (2, 1, 128), "sr": (), "h": (1, 1, 128), "c": (1, 1, 128)}
    check_beside_stock(path, [{i.name: shapes[i.name] for i in stock.get_inputs()}])


def test_all_voice_detectors_are_tested() -> None:
    paths = package_file("silero_vad", "data/*.onnx")
    assert [Path(path).stem for path in paths] == VOICE_DETECTORS


def check_beside_stock(path: str, calls: list[dict[str, tuple[int, ...]]]) -> None:
    stock = onnxruntime.InferenceSession(path)
    ours = InferenceSession(path, ONE_THREAD)
    kinds = {i.name: i.type for i in stock.get_inputs()}
    for i, shapes in enumerate(calls):
        random = np.random.default_rng(i)
        feeds: dict[str, Any] = {}
        for name, shape in shapes.items():
            if "float" in kinds[name]:
                feeds[name] = random.standard_normal(shape).astype("float32")
            elif name == "sr":
                feeds[name] = np.asarray(16000)
            else:
                feeds[name] = random.integers(0, 257, shape).astype("int32")
        report = ours.memory(feeds)
        assert_close(ours.run(None, feeds), stock.run(None, feeds))
        assert report.exact
        assert ours._session.last_peak_bytes == report.peak_bytes


def test_random_operators_draw_anew_in_each_run() -> None:
    model = model_bytes(
        [
            helper.make_node("RandomNormalLike", ["x"], ["n"], mean=2.0, scale=3.0),
            helper.make_node("RandomUniform", [], ["u"], shape=[64, 100], low=-1.0, high=3.0),
            helper.make_node("Bernoulli", ["x"], ["b"]),
        ],
        {"x": (TensorProto.FLOAT, ["n", 100])},
        ["n", "u", "b"],
    )
    session = InferenceSession(model)
    x = np.full((300, 100), 0.3, "float32")
    (n, u, b), (again, _, _) = session.run(None, {"x": x}), session.run(None, {"x": x})
    assert abs(n.mean() - 2) < 0.1 and abs(n.std() - 3) < 0.1
    assert u.min() >= -1 and u.max() < 3 and abs(u.mean() - 1) < 0.1
    assert set(np.unique(b)) == {0.0, 1.0} and abs(b.mean() - 0.3) < 0.02
    assert not np.array_equal(n, again)


def test_replaced_initializers_of_other_models_are_not_read() -> None:
    """As in onnxruntime: one set of options may serve several models."""
    x = x_of(2)
    (plain,) = ort.InferenceSession(mlp()).run(["r"], {"x": x})
    for package in (onnxruntime, ort):
        options = package.SessionOptions()
        value = package.OrtValue.ortvalue_from_numpy(np.ones((4, 9), "float32"))
        options.add_initializer("v", value)
        session = package.InferenceSession(mlp(), options, providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(["r"], {"x": x})[0], plain, rtol=1e-5)


@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
def test_dropout_in_training_mode_drops_elements(kind: str) -> None:
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    model = model_bytes(
        [helper.make_node("Dropout", ["x", "ratio", "training"], ["y", "mask"])],
        {"x": (dtype, ["n", 100])},
        ["y", "mask"],
        {"ratio": np.array(0.25, kind), "training": np.array(True)},
    )
    session = InferenceSession(model)
    x = np.full((500, 100), 3.0, kind)
    (y, mask), (again, _) = session.run(None, {"x": x}), session.run(None, {"x": x})
    assert mask.dtype == np.bool_ and y.dtype == x.dtype and not np.array_equal(y, again)
    assert abs(mask.mean() - 0.75) < 0.01
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-3)


@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
def test_classes_are_drawn_by_their_probabilities(kind: str) -> None:
    model = model_bytes(
        [helper.make_node("Multinomial", ["x"], ["y"], sample_size=20000, dtype=TensorProto.INT64)],
        {"x": (helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["batch", "classes"])},
        ["y"],
    )
    with np.errstate(divide="ignore"):
        x = np.log(np.array([[0, 1, 3, 0, 4, 0], [1, 1, 0, 0, 0, 0]], kind)) + np.array(7, kind)
    (y,) = InferenceSession(model).run(None, {"x": x})
    assert y.shape == (2, 20000) and y.dtype == np.int64
    found = [np.bincount(row, minlength=6) / 20000 for row in y]
    wanted = [[0, 0.125, 0.375, 0, 0.5, 0], [0.5, 0.5, 0, 0, 0, 0]]
    np.testing.assert_allclose(found, wanted, atol=0.02)
    assert all(found[i][k] == 0 for i in range(2) for k in range(6) if wanted[i][k] == 0)


def test_arguments_in_the_wrong_place_are_type_errors() -> None:
    """As in onnxruntime; these say what was meant."""
    for package in (onnxruntime, ort):
        session = package.InferenceSession(mlp())
        for wrong in (["CPUExecutionProvider"], {"a": 1}):
            with pytest.raises(TypeError):
                package.InferenceSession(mlp(), wrong)
        with pytest.raises(TypeError):
            session.run(["y"], {"x": x_of(2)}, "options")
        with pytest.raises(TypeError):  # not the names "y" and "r"
            session.run("yr", {"x": x_of(2)})
    with pytest.raises(TypeError, match="passed by name, as providers="):
        ort.InferenceSession(mlp(), ["CPUExecutionProvider"])  # type: ignore[arg-type]


def test_tensors_without_dense_memory_are_named() -> None:
    import torch

    session = InferenceSession(mlp())
    for feed in (torch.zeros(2, 4).to_sparse(), torch.zeros(2, 4, device="meta")):
        with pytest.raises(
            InvalidArgument, match="'x' must be a dense tensor with data, but found"
        ):
            session.run(None, {"x": feed})


@pytest.mark.parametrize("feed", [[np.zeros((1, 4), "float32")], None, "x"])
def test_feeds_that_are_no_dict_are_named(feed: Any) -> None:
    session = InferenceSession(mlp())
    with pytest.raises(TypeError, match="input_feed must be a dict by name of an input, but found"):
        session.run(None, feed)
    with pytest.raises(TypeError, match="shapes must be a dict by name of an input, but found"):
        session.memory(feed)


def test_a_session_is_neither_copied_nor_pickled() -> None:
    session = InferenceSession(mlp())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"must not be copied; make another of its model"):
            copied(session)


def test_more_threads_than_the_system_has_are_refused() -> None:
    script = """
import resource
from ortmodule_py import InferenceSession, SessionOptions
from tests.inference.test_session import mlp
# Each thread reserves its stack: the limit of addresses stands for one of threads.
resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
options = SessionOptions()
options.intra_op_num_threads = 2000
try:
    InferenceSession(mlp(), options)
except RuntimeError as error:
    print(type(error).__name__, error)
options.intra_op_num_threads = 2
print(InferenceSession(mlp(), options)._session.threads)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    error, threads = done.stdout.splitlines()
    assert error.startswith("RuntimeException [threads] the system must have 2000 threads"), error
    assert "intra_op_num_threads" in error and threads == "2"


@pytest.mark.parametrize("binds", [False, True])
def test_daemon_threads_may_run_until_the_process_ends(binds: bool) -> None:
    """Python would unwind their stacks, which ended the process with an error."""
    script = f"""
import threading, time
from ortmodule_py import InferenceSession
from tests.inference.test_session import mlp, x_of
session = InferenceSession(mlp())
x = x_of(500)

def run():
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    while True:
        session.run_with_iobinding(binding) if {binds} else session.run(None, {{"x": x}})

for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
time.sleep(0.2)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_names_of_outputs_of_any_kind() -> None:
    """A generator, which is read once, gives all outputs and not none."""
    names = ["r", "y"]
    for package in (onnxruntime, ort):
        session = package.InferenceSession(mlp())
        wanted = session.run(names, {"x": x_of(2)})
        for given in ((n for n in names), dict.fromkeys(names).keys(), tuple(names)):
            found = session.run(given, {"x": x_of(2)})
            assert len(found) == 2
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
        with pytest.raises(TypeError):
            session.run([None], {"x": x_of(2)})


@pytest.mark.parametrize("inner", [1, 4, 33, 255, 300, 1023, 1024, 1100])
def test_products_of_few_columns(inner: int) -> None:
    random = np.random.default_rng(inner)
    for columns, rows in itertools.product((1, 3, 8, 16, 17, 31, 32, 33), (1, 5, 14, 15, 97)):
        w, b = random.standard_normal((inner, columns)), random.standard_normal(columns)
        x = random.standard_normal((rows, inner))
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Gemm", ["x", "w", "b"], ["sum"]),
            helper.make_node("Gemm", ["x", "w", "b"], ["scaled"], alpha=0.5),
            helper.make_node("MatMul", ["x", "v"], ["fed"]),
        ]
        kinds = {"x": (TensorProto.FLOAT, ["n", inner]), "v": (TensorProto.FLOAT, ["k", "m"])}
        numbers = {"w": w.astype(np.float32), "b": b.astype(np.float32)}
        model = model_bytes(nodes, kinds, ["product", "sum", "scaled", "fed"], numbers)
        feeds = {"x": x.astype(np.float32), "v": w.astype(np.float32)}
        found = InferenceSession(model).run(None, feeds)
        for y, wanted in zip(found, (x @ w, x @ w + b, x @ w / 2 + b, x @ w), strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * inner**0.5)


def test_sizes_are_checked_in_every_call() -> None:
    """Also where most of a call's sizes are those of the call before."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["next"], axis=0),
        helper.make_node("Add", ["next", "mask"], ["masked"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {
        "past": (TensorProto.FLOAT, ["p", 4]),
        "x": (TensorProto.FLOAT, ["n", 4]),
        "mask": (TensorProto.FLOAT, ["t", 1]),
    }
    model = model_bytes(nodes, inputs, ["masked", "y"], {"w": np.ones((4, 2), np.float32)})
    session = InferenceSession(model)
    for past, new, total in ((1, 1, 2), (2, 1, 3), (2, 1, 4), (3, 1, 4), (2, 1, 4), (3, 2, 5)):
        feeds = {
            "past": np.ones((past, 4), np.float32),
            "x": np.ones((new, 4), np.float32),
            "mask": np.ones((total, 1), np.float32),
        }
        if past + new == total:
            masked, y = session.run(None, feeds)
            assert masked.shape == (total, 4)
            assert y.shape == (new, 2)
        else:
            with pytest.raises(RuntimeError, match="Add"):
                session.run(None, feeds)
