"""Each option of a session and of a run changes what it names, or says that it does not."""

from __future__ import annotations

import gc
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as stock
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortmodule_py.onnxruntime as ort
from ortmodule_py.inference import Fail, InvalidArgument, InvalidProtobuf
from ortmodule_py.inference.notices import forget_notices
from tests.inference.models import model_bytes
from tests.inference.test_session import assert_close, mlp, package_file, x_of

FLOAT = TensorProto.FLOAT
LEVELS = list(ort.GraphOptimizationLevel)


@pytest.fixture
def log() -> Iterator[list[tuple[int, str]]]:
    """What is logged at the default severity, with all notices given again."""
    lines: list[tuple[int, str]] = []
    forget_notices()
    ort.set_default_logger_callback(lambda severity, *rest: lines.append((severity, rest[-1])))
    yield lines
    ort.set_default_logger_callback(None)
    ort.set_default_logger_severity(2)


def session_of(model: bytes | str, **options: Any) -> ort.InferenceSession:
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = 1
    for name, value in options.items():
        setattr(chosen, name, value)
    return ort.InferenceSession(model, chosen)


def steps_of(model: bytes, feed: dict[str, Any], tmp_path: Path, **options: Any) -> list[Any]:
    """The trace's steps of one run."""
    session = session_of(
        model, enable_profiling=True, profile_file_prefix=str(tmp_path / "trace"), **options
    )
    session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text())
    return [event for event in events if event["cat"] == "Node"]


def assert_equal(ours: list[Any], expected: list[Any]) -> None:
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def layers() -> bytes:
    """Work for every level: two equal nodes, a chain of pointwise nodes, and a product of weights."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["w1", "w2"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["a"]),
        helper.make_node("Erf", ["a"], ["e"]),
        helper.make_node("Erf", ["a"], ["f"]),
        helper.make_node("Mul", ["e", "f"], ["g"]),
        helper.make_node("Sqrt", ["g"], ["y"]),
    ]
    weights = {
        "w1": random.standard_normal((4, 16)).astype("float32"),
        "w2": random.standard_normal((16, 16)).astype("float32"),
        "b": random.standard_normal(16).astype("float32"),
    }
    return model_bytes(nodes, {"x": (FLOAT, ["batch", 4])}, ["y"], weights)


def test_levels_of_optimization(tmp_path: Path) -> None:
    feed = {"x": x_of(3)}
    counts, results = [], []
    for level in LEVELS:
        steps = steps_of(layers(), feed, tmp_path, graph_optimization_level=level)
        counts.append(len(steps))
        results.append(session_of(layers(), graph_optimization_level=level).run(None, feed))
        ops = {step["args"]["op_name"] for step in steps}
        grouped = any("+" in op for op in ops)
        assert grouped == (level >= ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED)
    none, basic, extended, layout, everything = counts
    assert none == 7 and none > basic > extended >= layout > everything
    expected = stock.InferenceSession(layers()).run(None, feed)
    for result in results:
        assert_close(result, expected, 1e-5)


def test_layouts_begin_at_their_level(tmp_path: Path) -> None:
    """Four convolutions in a row gain by channels-last images, which only that level makes."""
    nodes, weights = [], {}
    random = np.random.default_rng(0)
    for i in range(5):
        weights[f"w{i}"] = random.standard_normal((8, 8, 3, 3)).astype("float32") / 8
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[1, 1, 1, 1]))
    model = model_bytes(nodes, {"x0": (FLOAT, [1, 8, 12, 12])}, ["x5"], weights)
    feed = {"x0": random.standard_normal((1, 8, 12, 12)).astype("float32")}
    results = [
        session_of(model, graph_optimization_level=level).run(None, feed) for level in LEVELS
    ]
    for result in results:
        assert_close(result, results[0], 1e-5)
    extended = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    everything = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    plans = [
        session_of(model, graph_optimization_level=level).plan(feed)
        for level in (extended, everything)
    ]
    assert "ChannelsLast" not in plans[0]


def test_single_passes_are_disabled_by_name(log: list[tuple[int, str]]) -> None:
    feed = {"x": x_of(3)}
    options = ort.SessionOptions()
    merge = "eliminate_common_subexpressions"
    options.add_session_config_entry(
        "optimization.disable_specified_optimizers", f"{merge};ConstantFolding"
    )
    by_entry = ort.InferenceSession(layers(), options).plan(feed)
    by_keyword = ort.InferenceSession(layers(), disabled_optimizers=[merge]).plan(feed)
    assert by_entry.count("Erf") == by_keyword.count("Erf") == 2
    assert ort.InferenceSession(layers()).plan(feed).count("Erf") == 1
    assert any("no pass 'ConstantFolding'" in message for _, message in log)


def test_optimized_model(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    session = session_of(layers(), optimized_model_filepath=str(path))
    assert path.exists(), "it is written with the session"
    assert [n.op_type for n in onnx.load(path).graph.node].count("MatMul") <= 1
    for batch in (1, 3, 5):
        feed = {"x": x_of(batch)}
        expected = session.run(None, feed)
        assert_close(stock.InferenceSession(path).run(None, feed), expected, 1e-5)
        assert_close(ort.InferenceSession(path).run(None, feed), expected, 1e-5)
    (x,) = ort.InferenceSession(path).get_inputs()
    assert x.name == "x" and x.shape == ["batch", 4]


@pytest.mark.parametrize(
    "package,pattern,shape",
    [
        ("rapidocr_onnxruntime", "models/*det_infer.onnx", (1, 3, 96, 160)),
        ("rapidocr_onnxruntime", "models/*cls_infer.onnx", (2, 3, 48, 192)),
        ("magika", "models/*/model.onnx", (3, 2048)),
    ],
)
def test_optimized_models_of_others(
    package: str, pattern: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    (path,) = package_file(package, pattern)
    optimized = tmp_path / "optimized.onnx"
    session = session_of(path, optimized_model_filepath=str(optimized))
    (given,) = session.get_inputs()
    random = np.random.default_rng(0)
    x = (
        random.integers(0, 256, shape).astype("int32")
        if "int32" in given.type
        else random.standard_normal(shape).astype("float32")
    )
    expected = stock.InferenceSession(path).run(None, {given.name: x})
    session.run(None, {given.name: x})
    for reader in (stock, ort):
        again = reader.InferenceSession(str(optimized))
        assert [i.name for i in again.get_inputs()] == [given.name]
        assert_close(again.run(None, {given.name: x}), expected)


def test_an_optimized_model_waits_for_a_run_that_decides_sizes(
    log: list[tuple[int, str]], tmp_path: Path
) -> None:
    """The target of a Reshape is an input: no graph without its content."""
    model = model_bytes(
        [helper.make_node("Reshape", ["x", "to"], ["y"])],
        {"x": (FLOAT, ["n"]), "to": (TensorProto.INT64, [2])},
        ["y"],
    )
    path = tmp_path / "optimized.onnx"
    session = session_of(model, optimized_model_filepath=str(path))
    assert not path.exists() and "after the first run" in log[-1][1]
    feed = {"x": np.arange(6, dtype="float32"), "to": np.array([2, 3])}
    for _ in range(2):
        assert session.run(None, feed)[0].shape == (2, 3)
    (failed,) = (text for severity, text in log if severity == 3)
    assert f"{path} could not be written" in failed and not path.exists()


def test_an_optimized_model_is_written_after_a_run_on_values(tmp_path: Path) -> None:
    relu = model_bytes([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, None)}, ["y"])
    path = tmp_path / "optimized.onnx"
    session = session_of(relu, optimized_model_filepath=str(path))
    assert not path.exists()
    session.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(x_of(2))})
    assert path.exists()


def test_threads() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/task"))

    gc.collect()
    before = count()
    sessions = [session_of(mlp(), intra_op_num_threads=n) for n in (1, 3)]
    assert count() == before + 2
    del sessions
    gc.collect()
    ort.set_global_thread_pool_sizes(2)
    try:
        shared = session_of(mlp(), use_per_session_threads=False)
        assert shared._session.threads == 2
    finally:
        ort.set_global_thread_pool_sizes()
    automatic = [session_of(mlp(), intra_op_num_threads=n)._session.threads for n in (0, -1)]
    assert automatic[0] == automatic[1]
    with pytest.raises(TypeError, match="intra_op_num_threads must be an integer, but found 2147"):
        session_of(mlp(), intra_op_num_threads=1 << 31)


def test_profile(tmp_path: Path) -> None:
    begin = time.monotonic_ns()
    session = session_of(
        layers(), enable_profiling=True, profile_file_prefix=str(tmp_path / "trace")
    )
    assert begin <= session.get_profiling_start_time_ns() <= time.monotonic_ns()
    feed = {"x": x_of(5)}
    session.run(None, feed)
    session.run(None, feed)
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "trace_")) and path.endswith(".json")
    text = Path(path).read_text()
    times = re.findall(r'"(?:ts|dur)":([^,]+)', text)
    assert times and all(re.fullmatch(r"\d+\.\d{3}", each) for each in times)
    events = json.loads(text)
    steps = [event for event in events if event["cat"] == "Node"]
    runs = [event for event in events if event["name"] == "model_run"]
    assert len(runs) == 2 and len(steps) % 2 == 0
    assert events[0]["name"] == "session_initialization"
    first = steps[0]["args"]
    assert first["input_type_shape"][0] == {"float": [5, 4]}
    assert first["provider"] == "CPUExecutionProvider" and first["kernel"]
    assert all(step["ph"] == "X" and step["dur"] >= 0 for step in steps)
    assert sum(step["dur"] for step in steps) <= sum(run["dur"] for run in runs)
    live = [step["args"]["live_bytes"] for step in steps]
    assert max(live) == session.memory({"x": (5, 4)}).peak_bytes
    session.run(None, feed)
    assert session.end_profiling() == "" and len(json.loads(Path(path).read_text())) == len(events)


def test_a_profile_that_cannot_be_written_is_kept(tmp_path: Path) -> None:
    prefix = tmp_path / "absent" / "trace"
    session = session_of(mlp(), enable_profiling=True, profile_file_prefix=str(prefix))
    session.run(None, {"x": x_of(1)})
    with pytest.raises(Fail, match="must be writable"):
        session.end_profiling()
    prefix.parent.mkdir()
    assert json.loads(Path(session.end_profiling()).read_text())
    assert session.end_profiling() == ""


def test_a_profile_that_nobody_ends_is_written(tmp_path: Path) -> None:
    session = session_of(mlp(), enable_profiling=True, profile_file_prefix=str(tmp_path / "p"))
    session.run(None, {"x": x_of(1)})
    del session
    gc.collect()
    (path,) = tmp_path.glob("p_*.json")
    assert json.loads(path.read_text())
    assert session_of(mlp()).end_profiling() == ""


def test_free_dimensions_by_name_and_by_denotation() -> None:
    model = onnx.ModelProto.FromString(mlp())
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    for add in ("name", "denotation"):
        options = ort.SessionOptions()
        if add == "name":
            options.add_free_dimension_override_by_name("batch", 2)
        else:
            options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
        session = ort.InferenceSession(model.SerializeToString(), options)
        assert session.get_inputs()[0].shape == [2, 4]
        assert session.run(["y"], {"x": x_of(2)})[0].shape == (2, 8)
        with pytest.raises(RuntimeError, match="2"):
            session.run(["y"], {"x": x_of(3)})


# ---- initializers --------------------------------------------------------------------------------


def test_replaced_initializers() -> None:
    options = ort.SessionOptions()
    weight: np.ndarray[Any, Any] = np.ones((4, 8), "float32")
    options.add_initializer("w", weight)
    session = ort.InferenceSession(mlp(), options)
    x = x_of(2)
    (r,) = session.run(["r"], {"x": x})
    (plain,) = ort.InferenceSession(mlp()).run(["r"], {"x": x})
    assert not np.allclose(r, plain)
    bias = numpy_helper.to_array(onnx.ModelProto.FromString(mlp()).graph.initializer[1])
    np.testing.assert_allclose(r, np.maximum(x @ weight + bias, 0), rtol=1e-5)
    options = ort.SessionOptions()
    options.add_initializer("w", weight.astype(">f4"))
    np.testing.assert_array_equal(ort.InferenceSession(mlp(), options).run(["r"], {"x": x})[0], r)
    for value in (np.full((4, 8), "a"), weight.astype(np.longdouble)):
        options = ort.SessionOptions()
        options.add_initializer("w", value)
        with pytest.raises(InvalidArgument, match="must have a numeric type of ONNX"):
            ort.InferenceSession(mlp(), options)
    for name, value, message in (
        ("w", np.ones((4, 9), "float32"), r"sizes \[4,8\], but found float and \[4,9\]"),
        ("w", np.ones((4, 8)), "type float and sizes"),
    ):
        options = ort.SessionOptions()
        options.add_initializer(name, value)
        with pytest.raises(InvalidProtobuf, match=message):
            ort.InferenceSession(mlp(), options)


def external_model(folder: Path) -> Path:
    model = onnx.ModelProto.FromString(mlp())
    path = folder / "model.onnx"
    onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def test_external_initializers_from_memory(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    feed = {"x": x_of(3)}
    expected = ort.InferenceSession(mlp()).run(None, feed)
    for result in (ort.InferenceSession(path).run(None, feed),):
        assert_close(result, expected, 1e-6)
    content = (tmp_path / "weights.bin").read_bytes()
    options = ort.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    assert_close(ort.InferenceSession(path.read_bytes(), options).run(None, feed), expected, 1e-6)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InvalidProtobuf, match=r"weights\.bin"):
        ort.InferenceSession(path)
    weights = {
        i.name: numpy_helper.to_array(i)
        for i in onnx.ModelProto.FromString(mlp()).graph.initializer
    }
    options = ort.SessionOptions()
    options.add_external_initializers(list(weights), list(weights.values()))
    assert_close(ort.InferenceSession(path, options).run(None, feed), expected, 1e-6)
    for model in (str(path), path.read_bytes()):
        options = ort.SessionOptions()
        options.add_external_initializers_from_files_in_memory(
            ["weights.bin"], [content], [len(content)]
        )
        assert_close(ort.InferenceSession(model, options).run(None, feed), expected, 1e-6)


def overridable(ir_version: int = 8) -> bytes:
    model = onnx.ModelProto.FromString(mlp())
    model.graph.input.append(helper.make_tensor_value_info("b", FLOAT, [8]))
    model.ir_version = ir_version
    return bytes(model.SerializeToString())


def test_overridable_initializers() -> None:
    session = ort.InferenceSession(overridable())
    assert [i.name for i in session.get_inputs()] == ["x"]
    (b,) = session.get_overridable_initializers()
    assert (b.name, b.shape, b.type) == ("b", [8], "tensor(float)")
    assert ort.InferenceSession(overridable(3)).get_overridable_initializers() == []
    reference = stock.InferenceSession(overridable())
    for feed in ({"x": x_of(2)}, {"x": x_of(2), "b": np.full(8, 3, "float32")}, {"x": x_of(2)}):
        assert_close(session.run(None, feed), reference.run(None, feed), 1e-5)
    with pytest.raises(InvalidArgument, match="'b' must have size 8"):
        session.run(None, {"x": x_of(2), "b": np.zeros(9, "float32")})


# ---- metadata, subclasses, runs -------------------------------------------------------------------


def test_metadata() -> None:
    model = onnx.ModelProto.FromString(mlp())
    model.producer_name, model.domain, model.doc_string = "maker", "here", "what it is"
    model.model_version, model.graph.doc_string = 7, "its graph"
    entry = model.metadata_props.add()
    entry.key, entry.value = "labels", "a\nb"
    ours = ort.InferenceSession(model.SerializeToString()).get_modelmeta()
    theirs = stock.InferenceSession(model.SerializeToString()).get_modelmeta()
    for name in [
        "producer_name",
        "graph_name",
        "domain",
        "description",
        "graph_description",
        "version",
        "custom_metadata_map",
    ]:
        assert getattr(ours, name) == getattr(theirs, name), name


def test_subclasses() -> None:
    class Mine(ort.InferenceSession):
        def __init__(self, model: bytes) -> None:
            super().__init__(model)
            self.calls = 0

        def run(self, *args: Any, **kwargs: Any) -> list[Any]:
            self.calls += 1
            return super().run(*args, **kwargs)

    class Options(ort.SessionOptions):
        def __init__(self) -> None:
            super().__init__()
            self.mine = 3

    session = Mine(mlp())
    assert session.run(["y"], {"x": x_of(1)})[0].shape == (1, 8) and session.calls == 1
    assert Options().mine == 3


def deep() -> bytes:
    """Products one after the other, which take a while."""
    w: np.ndarray[Any, Any] = np.eye(256, dtype="float32")
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(200)]
    return model_bytes(nodes, {"x0": (FLOAT, ["n", 256])}, ["x200"], {"w": w})


def test_runs_end_when_they_are_told_to() -> None:
    session = session_of(deep())
    feed: dict[str, Any] = {"x0": np.ones((512, 256), "float32")}
    options = ort.RunOptions()
    expected = session.run(None, feed, options)
    begin = time.perf_counter()
    session.run(None, feed)
    whole = time.perf_counter() - begin
    options.terminate = True
    with pytest.raises(Fail, match="terminate flag being set to true"):
        session.run(None, feed, options)
    options.terminate = False
    timer = threading.Timer(whole / 5, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(Fail, match=r"before step [1-9]"):
        session.run(None, feed, options)
    timer.join()
    options.terminate = False
    assert_equal(session.run(None, feed, options), expected)


def test_asynchronous_runs() -> None:
    session = session_of(mlp())
    done = threading.Event()
    seen: list[tuple[Any, Any, str]] = []

    def callback(results: list[Any], data: Any, error: str) -> None:
        seen.append((results, data, error))
        if len(seen) == 2:
            done.set()

    marker = object()
    session.run_async(["y"], {"x": x_of(3)}, callback, marker)
    session.run_async(["y"], {"x": np.zeros((1, 5), "float32")}, callback, marker)
    assert done.wait(20)
    (good,) = [each for each in seen if not each[2]]
    (bad,) = [each for each in seen if each[2]]
    np.testing.assert_array_equal(good[0][0], session.run(["y"], {"x": x_of(3)})[0])
    assert good[1] is marker and bad[0] == [] and "must have size 4" in bad[2]
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_async(None, {}, callback, None)


# ---- logs, notices, mistakes ---------------------------------------------------------------------


def test_severities_and_the_callback(log: list[tuple[int, str]]) -> None:
    session_of(mlp(), log_severity_level=1)
    assert log and log[0][0] == 1 and "opened a model in memory" in log[0][1]
    log.clear()
    session_of(mlp(), log_severity_level=3, inter_op_num_threads=2)
    assert not log
    ort.set_default_logger_severity(3)
    session_of(mlp(), inter_op_num_threads=2)
    assert not log
    for wrong in (5, -2):
        with pytest.raises(InvalidArgument, match="a severity must be from 0 to 4"):
            ort.set_default_logger_severity(wrong)


def test_lines_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    forget_notices()
    session_of(mlp(), inter_op_num_threads=2, logid="mine")
    session_of(mlp(), log_severity_level=1)
    err = capfd.readouterr().err
    assert "[W:onnxruntime:mine, options] inter_op_num_threads is accepted, but" in err
    assert "[I:onnxruntime:, session] opened" in err


@pytest.mark.parametrize(
    "name,value",
    [
        ("execution_mode", ort.ExecutionMode.ORT_PARALLEL),
        ("execution_order", ort.ExecutionOrder.MEMORY_EFFICIENT),
        ("inter_op_num_threads", 2),
        ("log_verbosity_level", 1),
    ],
)
def test_what_has_no_meaning_is_accepted_with_one_notice(
    name: str, value: Any, log: list[tuple[int, str]]
) -> None:
    expected = session_of(mlp()).run(None, {"x": x_of(2)})
    assert not log
    for _ in range(2):
        session = session_of(mlp(), **{name: value})
        assert_equal(session.run(None, {"x": x_of(2)}), expected)
    assert len(log) == 1 and log[0][0] == 2 and name in log[0][1]


def test_configuration_entries(log: list[tuple[int, str]]) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("my.library.key", "7")
    assert options.get_session_config_entry("my.library.key") == "7"
    for _ in range(2):
        ort.InferenceSession(mlp(), options)
    assert [text.split("'")[1] for _, text in log] == [
        "session.intra_op.allow_spinning",
        "my.library.key",
    ]
    with pytest.raises(InvalidArgument, match=r"did you mean 'session\.intra_op\.allow_spinning'"):
        options.add_session_config_entry("session.intra_op.alow_spinning", "0")
    with pytest.raises(RuntimeError, match=r"Options does not have configuration with key: no\.th"):
        options.get_session_config_entry("no.thing")
    run = ort.RunOptions()
    run.add_run_config_entry("gpu_graph_id", "1")
    assert run.get_run_config_entry("gpu_graph_id") == "1"
    log.clear()
    session = session_of(mlp())
    session.run(None, {"x": x_of(1)}, run)
    session.run(None, {"x": x_of(1)}, run)
    assert len(log) == 1 and "gpu_graph_id" in log[0][1]
    with pytest.raises(InvalidArgument, match=r"memory\.enable_memory_arena_shrinkage"):
        run.add_run_config_entry("memory.enable_memory_arena_shrinking", "cpu:0")
    options = ort.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    with pytest.raises(InvalidArgument, match="must be ONNX, but found 'ORT'"):
        ort.InferenceSession(mlp(), options)


def test_misspelled_options_are_errors() -> None:
    options, run = ort.SessionOptions(), ort.RunOptions()
    with pytest.raises(AttributeError, match="did you mean 'enable_mem_pattern'"):
        options.enable_memory_pattern = True
    with pytest.raises(AttributeError, match="did you mean 'intra_op_num_threads'"):
        options.intra_op_threads = 1
    with pytest.raises(AttributeError, match="did you mean 'terminate'"):
        run.terminated = True
    with pytest.raises(AttributeError, match="did you mean 'add_session_config_entry'"):
        options.add_config_entry("a", "b")
    for name, value in (
        ("enable_mem_pattern", "yes"),
        ("graph_optimization_level", 7),
        ("optimized_model_filepath", 3),
        ("intra_op_num_threads", "3"),
    ):
        with pytest.raises(TypeError, match=f"{name} must be"):
            setattr(options, name, value)
    with pytest.raises(TypeError, match="did you mean 'enable_fallback'"):
        ort.InferenceSession(mlp(), enable_fallbak=1)
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(3)  # type: ignore[arg-type]


def test_random_operators_follow_the_seed() -> None:
    model = model_bytes(
        [helper.make_node("RandomNormalLike", ["x"], ["y"])], {"x": (FLOAT, ["n"])}, ["y"]
    )
    x: np.ndarray[Any, Any] = np.zeros(64, "float32")

    def draw(seed: int) -> Any:
        ort.set_seed(seed)
        return ort.InferenceSession(model).run(None, {"x": x})[0]

    try:
        one, again, other = draw(5), draw(5), draw(6)
    finally:
        ort.set_seed(0)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
