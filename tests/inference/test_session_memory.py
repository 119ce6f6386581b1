"""Memory of inference sessions: what options change, limits, sizes by name, and what idle sessions keep."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, save as save_model
from onnx.external_data_helper import convert_model_to_external_data

from ortmodule_py import InferenceSession, SessionOptions
from ortmodule_py.inference import InvalidArgument, RunOptions, RuntimeException
from tests.inference.models import model_bytes

WIDTH = 512
MIB = 2**20


def tower(layers: int = 6, width: int = WIDTH, batch: str | None = "batch") -> Any:
    """x -> MatMul, Relu and a residual Add in each layer; the weights are `layers` x width x width."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i in range(layers):
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"layer{i}/product"),
            helper.make_node("Relu", [f"m{i}"], [f"r{i}"]),
            helper.make_node("Add", [f"r{i}", last], [f"a{i}"], name=f"layer{i}/sum"),
        ]
        array = random.standard_normal((width, width)).astype("float32") / width
        weights.append(numpy_helper.from_array(array, f"w{i}"))
        last = f"a{i}"
    nodes.append(helper.make_node("ReduceMean", [last, "axes"], ["y"], keepdims=0))
    weights.append(numpy_helper.from_array(np.asarray([1], "int64"), "axes"))
    graph = helper.make_graph(
        nodes,
        "tower",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def content(**arguments: Any) -> bytes:
    return bytes(tower(**arguments).SerializeToString())


def options(**values: Any) -> SessionOptions:
    made = SessionOptions()
    made.intra_op_num_threads = 1
    for name, value in values.items():
        setattr(made, name, value)
    return made


def x_of(batch: int, width: int = WIDTH) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).standard_normal((batch, width)).astype("float32")


def held(session: InferenceSession) -> dict[str, int]:
    return session._session.held


def checked_run(session: InferenceSession, batch: int) -> Any:
    """Runs, and compares what was planned with what the session's memory counted."""
    report = session.memory({"x": (batch, WIDTH)})
    before = held(session)["runs_bytes"]
    (y,) = session.run(None, {"x": x_of(batch)})
    assert report.exact
    assert session._session.last_peak_bytes == report.peak_bytes
    assert held(session)["runs_bytes"] - before == report.outputs_bytes == y.nbytes
    return report, y


def test_the_block_stays_while_runs_follow_and_goes_when_idle() -> None:
    session = InferenceSession(content(), options())
    report, _ = checked_run(session, 1024)
    assert held(session)["peak_bytes"] == report.peak_bytes
    for _ in range(8):  # longer than an idle session keeps its block
        assert held(session)["kept_bytes"] == report.block_bytes
        time.sleep(0.05)
        checked_run(session, 1024)
    small, _ = checked_run(session, 512)
    assert held(session)["kept_bytes"] == report.block_bytes, "a larger block serves smaller runs"
    for _ in range(10):
        time.sleep(0.05)
        checked_run(session, 512)
    assert held(session)["kept_bytes"] <= small.peak_bytes, "that no run needs any more"
    time.sleep(0.5)
    assert held(session)["kept_bytes"] == 0


def test_without_the_arena_memory_is_returned_after_each_run() -> None:
    session = InferenceSession(content(), options(enable_cpu_mem_arena=False))
    report, _ = checked_run(session, 1024)
    assert report.block_bytes > MIB
    assert held(session)["kept_bytes"] == 0


def test_without_the_pattern_each_value_has_its_own_memory() -> None:
    pattern = InferenceSession(content(), options())
    apart = InferenceSession(content(), options(enable_mem_pattern=False))
    one, expected = checked_run(pattern, 256)
    other, y = checked_run(apart, 256)
    np.testing.assert_array_equal(y, expected)
    assert one.block_bytes > 0 and other.block_bytes == 0
    assert "block" not in {s["kind"] for s in apart.explain({"batch": 256}).timeline["storages"]}
    assert held(apart)["peak_bytes"] == other.peak_bytes


def test_without_reuse_nothing_is_computed_in_place() -> None:
    values = 256 * WIDTH * 4
    reports = {}
    for pattern in (True, False):
        for reuse in (True, False):
            session = InferenceSession(
                content(), options(enable_mem_pattern=pattern, enable_mem_reuse=reuse)
            )
            reports[pattern, reuse], y = checked_run(session, 256)
            assert y.shape == (256,)
    assert reports[True, True].peak_bytes < 4 * values
    for pattern in (True, False):
        assert reports[pattern, False].peak_bytes > 10 * values


def test_the_arena_grows_by_powers_of_two_if_asked() -> None:
    exact = InferenceSession(content(), options(), providers=["CPUExecutionProvider"])
    rounded = InferenceSession(
        content(),
        options(),
        providers=[("CPUExecutionProvider", {"arena_extend_strategy": "kNextPowerOfTwo"})],
    )
    one, _ = checked_run(exact, 300)
    other, _ = checked_run(rounded, 300)
    assert one.block_bytes < other.block_bytes == 1 << (one.block_bytes - 1).bit_length()
    larger, _ = checked_run(rounded, 310)
    assert larger.block_bytes == other.block_bytes
    with pytest.raises(InvalidArgument, match="kSameAsRequested"):
        InferenceSession(
            content(),
            providers=[("CPUExecutionProvider", {"arena_extend_strategy": "kDouble"})],
        )


def test_a_run_can_return_the_block() -> None:
    session = InferenceSession(content(), options())
    session.run(None, {"x": x_of(1024)})
    assert held(session)["kept_bytes"] > MIB
    shrink = RunOptions()
    shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, {"x": x_of(1024)}, shrink)
    assert held(session)["kept_bytes"] == 0
    shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "disk")
    with pytest.raises(InvalidArgument, match="cpu:0"):
        session.run(None, {"x": x_of(1024)}, shrink)


def test_sizes_by_name() -> None:
    session = InferenceSession(content())
    assert session.memory({"batch": 8}) == session.memory({"x": (8, WIDTH)})
    unnamed = InferenceSession(content(batch=None))
    assert unnamed.memory({"batch": 8}) == unnamed.memory({"x": (8, WIDTH)})
    with pytest.raises(InvalidArgument, match=r"\(batch\), but found 'bach'"):
        session.memory({"bach": 8})
    with pytest.raises(InvalidArgument, match=r"dimension 0 of input 'x' must have a size"):
        session.memory({})
    with pytest.raises(InvalidArgument, match="must have a shape of numbers"):
        session.memory({"x": ("batch", WIDTH)})


@pytest.mark.parametrize("kernel", [3, 1000])
def test_a_window_beyond_the_image_takes_no_memory(kernel: int) -> None:
    """Networks end in a mean over more places than the image has, and `ceil_mode` gives it a result."""
    sides = [kernel, kernel]
    mean = helper.make_node(
        "AveragePool", ["x"], ["y"], kernel_shape=sides, strides=sides, ceil_mode=1
    )
    image = (TensorProto.FLOAT, ["b", 8, 2, 2])
    session = InferenceSession(model_bytes([mean], {"x": image}, ["y"]), options())
    x = np.random.default_rng(0).standard_normal((2, 8, 2, 2)).astype("float32")
    np.testing.assert_allclose(
        session.run(None, {"x": x})[0], x.mean((2, 3), keepdims=True), rtol=1e-6
    )
    assert session.memory({"b": 2}).total_bytes < MIB


@pytest.mark.parametrize("places", [16, 100])
def test_other_lengths_take_no_more_weights(places: int) -> None:
    """Rows at the first places of a table: of a short one they are computed for each length."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((64, 4096)).astype("float32"),
        "table": random.standard_normal((100, 64)).astype("float32"),
        "places": np.arange(places),
        "zero": np.asarray([0]),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Slice", ["places", "zero", "length", "zero"], ["first"]),
        helper.make_node("Gather", ["table", "first"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["placed"]),
        helper.make_node("MatMul", ["placed", "w"], ["y"]),
    ]
    shape = (TensorProto.FLOAT, ["b", "s", 64])
    session = InferenceSession(model_bytes(nodes, {"x": shape}, ["y"], weights), options())
    taken = []
    for length in range(5, 13):
        x = random.standard_normal((2, length, 64)).astype("float32")
        expected = (x + weights["table"][:length]) @ weights["w"]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-3)
        taken.append(session.memory({"x": x.shape}).weights_bytes)
    assert taken[-1] - taken[0] < 0.1 * weights["w"].nbytes


def test_the_largest_batch_within_a_limit() -> None:
    session = InferenceSession(content(), options())
    most = session.largest("batch", "24MiB")
    assert session.memory({"batch": most}).total_bytes <= 24 * MIB
    assert session.memory({"batch": most + 1}).total_bytes > 24 * MIB
    assert session.largest("batch", 24 * MIB, multiple_of=64) == most // 64 * 64
    with pytest.raises(InvalidArgument, match="must be multiples of 1 to 2147483648, but found"):
        session.largest("batch", 24 * MIB, multiple_of=1 << 40)
    assert session.largest("batch", "1MiB") == 0, "less than the weights"
    for wrong in ("many", "-5", True, "3 miles", 0):
        with pytest.raises(InvalidArgument, match="must be a number of bytes"):
            session.largest("batch", wrong)
    with pytest.raises(InvalidArgument, match="there must be a limit"):
        session.largest("batch")


def test_a_run_beyond_the_limit_is_refused_where_rows_meet() -> None:
    model = tower()
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["z"], axis=0, name="over_rows"))
    model.graph.output[0].name = "z"
    session = InferenceSession(model.SerializeToString(), options(), memory_limit="16MiB")
    most = session.largest("batch")
    checked_run(session, most)
    with pytest.raises(RuntimeException, match=f"largest 'batch' that fits is {most}$") as caught:
        session.run(None, {"x": x_of(most + 1)})
    needed = session.memory({"batch": most + 1}).total_bytes
    assert f"16,777,216 bytes, but needs {needed:,}" in str(caught.value)
    assert "cannot run in parts (rows meet in Softmax 'over_rows')" in str(caught.value)
    checked_run(session, most)
    entry = options()
    entry.add_session_config_entry("session.memory_limit", "1MiB")
    with pytest.raises(RuntimeException, match="no 'batch' fits"):
        InferenceSession(content(), entry).run(None, {"x": x_of(1)})


def test_concurrent_runs_wait_for_each_other_within_the_limit() -> None:
    session = InferenceSession(content(), options(), memory_limit="16MiB")
    weights = session.memory({"batch": 2}).weights_bytes
    most = session.largest("batch")
    batches = [most, most // 2, most // 3, most // 2, most, most // 4]
    expected = {batch: session.run(None, {"x": x_of(batch)})[0] for batch in set(batches)}
    wrong: list[int] = []

    def work(batch: int) -> None:
        for _ in range(5):
            (y,) = session.run(None, {"x": x_of(batch)})
            if not np.array_equal(y, expected[batch]):
                wrong.append(batch)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    # The results that the callers still have are a few KiB.
    assert held(session)["peak_bytes"] + weights <= 16 * MIB + 64 * 1024


def test_a_limit_beyond_64_bits_limits_nothing() -> None:
    """onnxruntime reports and takes the largest size_t as gpu_mem_limit."""
    session = InferenceSession(content(), options(), memory_limit=2**64 - 1)
    assert session.run(None, {"x": x_of(2)})


def test_explain_shows_the_tensors_at_the_peak(tmp_path: Path) -> None:
    session = InferenceSession(content(), options())
    explained = session.explain({"batch": 64})
    assert explained.memory == session.memory({"batch": 64})
    assert max(explained.timeline["live_bytes"]) == explained.memory.peak_bytes
    largest = explained.largest_at_peak[0]
    assert largest["bytes"] == 64 * WIDTH * 4 and largest["node"].startswith("layer")
    assert f"{largest['bytes']:,}  forward" in str(explained)
    # No two temporaries that are alive at once overlap in the block.
    inside = [s for s in explained.timeline["storages"] if s["offset_bytes"] is not None]
    for i, one in enumerate(inside):
        for other in inside[:i]:
            apart = one["last_step"] < other["first_step"] or other["last_step"] < one["first_step"]
            below = one["offset_bytes"] + one["bytes"] <= other["offset_bytes"]
            above = other["offset_bytes"] + other["bytes"] <= one["offset_bytes"]
            assert apart or below or above
    explained.save_picture(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert '"peak_step"' in explained.as_json()


# ---- weights -----------------------------------------------------------------------------------


def in_a_process(script: str, *arguments: str) -> None:
    """Runs a script with `resident()` in KiB. A new process: others' memory would be counted too."""
    prelude = """
import sys, time, gc, os, threading
import numpy as np
from ortmodule_py import InferenceSession, SessionOptions
def resident():
    gc.collect()
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
options = SessionOptions()
options.intra_op_num_threads = 2
"""
    subprocess.run([sys.executable, "-c", prelude + script, *arguments], check=True, timeout=300)


def test_an_idle_session_takes_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content(layers=20, width=1024))
    in_a_process(
        """
x = {batch: np.ones((batch, 1024), "float32") for batch in (1, 64, 512)}
before = resident()
session = InferenceSession(sys.argv[1], options)
for batch in (64, 512, 64, 1, 512):
    report = session.memory({"batch": batch})
    session.run(None, {"x": x[batch]})
    assert peak() - before <= 1.05 * report.total_bytes / 1024 + 12 * 1024 or batch != 512, (peak() - before, report)
time.sleep(1)
weights = report.weights_bytes / 1024
assert weights > 80_000
assert resident() - before <= 1.05 * weights + 4096, (resident() - before, weights)
others = [InferenceSession(sys.argv[1], options) for _ in range(3)]
for other in others:
    other.run(None, {"x": x[64]})
time.sleep(1)
assert resident() - before <= 1.05 * weights + 4 * 4096, "sessions of one file share its weights"
del session, other, others
assert resident() - before <= 6144, "the weights go with the last session"
""",
        str(path),
    )


def test_weights_of_a_model_in_memory_are_there_once(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content(layers=20, width=1024))
    in_a_process(
        """
before = resident()
session = InferenceSession(open(sys.argv[1], "rb").read(), options)
session.run(None, {"x": np.ones((2, 1024), "float32")})
weights = session.memory({"batch": 2}).weights_bytes / 1024
time.sleep(1)
assert resident() - before <= 1.05 * weights + 4096, (resident() - before, weights)
""",
        str(path),
    )


def test_sessions_of_one_file_share_weights_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content())
    first, second = InferenceSession(path), InferenceSession(str(path))
    (expected,) = first.run(None, {"x": x_of(3)})
    np.testing.assert_array_equal(second.run(None, {"x": x_of(3)})[0], expected)
    assert first._session.shares_weights_with(second._session)
    replaced = tmp_path / "new.onnx"
    replaced.write_bytes(content(layers=2))
    os.replace(replaced, path)
    third = InferenceSession(path)
    assert not third._session.shares_weights_with(first._session)
    np.testing.assert_array_equal(first.run(None, {"x": x_of(4)})[0].shape, (4,))
    np.testing.assert_array_equal(second.run(None, {"x": x_of(3)})[0], expected)
    assert not np.array_equal(third.run(None, {"x": x_of(3)})[0], expected)


def test_a_file_that_is_overwritten_does_not_harm_its_sessions(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content())
    session = InferenceSession(path)
    (expected,) = session.run(None, {"x": x_of(3)})
    path.write_bytes(b"")  # in place: what is mapped gets lost
    np.testing.assert_array_equal(session.run(None, {"x": x_of(3)})[0], expected)
    np.testing.assert_array_equal(session.run(None, {"x": x_of(5)})[0].shape, (5,))
    with pytest.raises(RuntimeException, match=r"model\.onnx must stay as it is"):
        session.run(None, {"x": x_of(1)})  # batch 1 is imported by itself


def test_external_data_that_is_overwritten_is_an_error(tmp_path: Path) -> None:
    model = tower()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    save_model(model, tmp_path / "model.onnx")
    session = InferenceSession(tmp_path / "model.onnx")
    (expected,) = session.run(None, {"x": x_of(3)})
    np.testing.assert_array_equal(session.run(None, {"x": x_of(3)})[0], expected)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:1000])
    with pytest.raises(RuntimeException, match=r"weights\.bin must stay as it is"):
        session.run(None, {"x": x_of(3)})


def test_many_shapes_in_many_threads_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content(layers=4, width=128))
    in_a_process(
        """
session = InferenceSession(sys.argv[1], options)
def work(start):
    for i in range(60):
        batch = 2 + (start * 37 + i * 7) % 200
        session.run(None, {"x": np.ones((batch, 128), "float32")})
def round():
    threads = [threading.Thread(target=work, args=(t,)) for t in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    time.sleep(0.6)
    return resident()
round()
first = round()
later = [round() for _ in range(3)]
assert later[-1] - first < 2048, (first, later)
""",
        str(path),
    )


def test_a_child_of_a_fork_runs_and_returns_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content())
    in_a_process(
        """
options.intra_op_num_threads = 1
session = InferenceSession(sys.argv[1], options)
x = {"x": np.ones((1024, 512), "float32")}
(expected,) = session.run(None, x)
assert session._session.held["kept_bytes"] > 0
child = os.fork()
if child == 0:
    (y,) = session.run(None, x)
    assert np.array_equal(y, expected)
    time.sleep(0.5)
    os._exit(0 if session._session.held["kept_bytes"] == 0 else 1)
assert os.waitpid(child, 0)[1] == 0
session.run(None, x)  # and the process ends while a block is kept
""",
        str(path),
    )
    gc.collect()


def test_other_threads_go_on_while_a_model_is_imported(tmp_path: Path) -> None:
    length = 16_000  # takes long enough on any machine for some milliseconds to pass
    ops = ["Tanh", "Softmax"]  # each a step of its own
    nodes = [helper.make_node(ops[i % 2], [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    session = InferenceSession(
        model_bytes(nodes, {"v0": (TensorProto.FLOAT, ["n"])}, [f"v{length}"])
    )
    ended = threading.Event()
    ticks = [0]

    def tick() -> None:
        while not ended.wait(0.001):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for work in (
            lambda: session.memory({"v0": (4,)}),
            lambda: session.plan({"v0": np.zeros(5, "float32")}),
            lambda: session._session.timeline([(6,)], {}),
            lambda: session._session.save_optimized(
                [np.zeros(7, "float32")], str(tmp_path / "optimized.onnx")
            ),
        ):
            before = ticks[0]
            work()
            assert ticks[0] > before + 1
    finally:
        ended.set()
        thread.join()


def window_of_cosines(length: int) -> Any:
    """A filter that is computed from a few numbers, as exporters of signal processing write it."""
    nodes = [
        helper.make_node("Mul", ["column", "row"], ["angles"]),
        helper.make_node("Cos", ["angles"], ["cosines"]),
        helper.make_node("Mul", ["cosines", "cosines"], ["window"]),
        helper.make_node("MatMul", ["x", "window"], ["y"]),
    ]
    weights = {
        "column": np.linspace(0, 1, 500, dtype="float32")[:, None],
        "row": np.linspace(0, 3, length, dtype="float32")[None],
    }
    return model_bytes(nodes, {"x": (TensorProto.FLOAT, ["n", 500])}, ["y"], weights)


@pytest.mark.parametrize(("length", "kept"), [(400, True), (1400, False)])
def test_a_table_computed_from_a_few_numbers_is_kept_up_to_2_mib(length: int, kept: bool) -> None:
    model = window_of_cosines(length)
    session = InferenceSession(model)
    feeds = {"x": np.random.default_rng(0).random((2, 500), "float32")}
    (ours,) = session.run(None, feeds)
    (expected,) = onnxruntime.InferenceSession(model).run(None, feeds)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    table = 500 * length * 4
    report = session.memory(feeds)
    assert (table <= report.weights_bytes <= 1.1 * table) if kept else report.weights_bytes < 10_000
    assert (report.block_bytes < table) == kept


def test_a_dilated_convolution_lays_out_what_its_windows_see() -> None:
    """A line of all positions between places that are 2,048 apart would take 2 MiB."""
    random = np.random.default_rng(0)
    w = random.standard_normal((64, 64, 3)).astype("float32")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], dilations=[2048], pads=[2048, 2048])
    model = model_bytes([conv], {"x": (TensorProto.FLOAT, [1, 64, 5000])}, ["y"], {"w": w})
    session = InferenceSession(model, options())
    assert session.memory({"x": (1, 64, 5000)}).block_bytes < 3 * 2**18
    x = random.standard_normal((1, 64, 5000)).astype("float32")
    padded = np.pad(x[0], [(0, 0), (2048, 2048)])
    wanted = sum(w[:, :, i] @ padded[:, i * 2048 :][:, :5000] for i in range(3))
    np.testing.assert_allclose(session.run(None, {"x": x})[0][0], wanted, rtol=1e-4, atol=2e-4)


def test_weights_of_transposed_convolutions_are_packed_once() -> None:
    random = np.random.default_rng(0)
    w = random.standard_normal((64, 48, 4, 4)).astype("float32")
    x = random.standard_normal((1, 64, 5, 6)).astype("float32")
    for pads in [(1, 1, 1, 1), (0, 1, 1, 0)]:  # which remainders begin where
        nodes = [
            helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], pads=pads),
            helper.make_node("ConvTranspose", ["x", "v"], ["z"], strides=[2, 2], pads=pads),
            helper.make_node("ConvTranspose", ["x", "v"], ["u"], strides=[3, 2]),
        ]
        weights = {"w": w, "v": w[:, :20].copy()}
        sizes = {"x": (TensorProto.FLOAT, ["n", 64, "h", "w"])}
        model = model_bytes(nodes, sizes, ["y", "z", "u"], weights)
        session = InferenceSession(model, options())
        stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        for ours, wanted in zip(
            session.run(None, {"x": x}), stock.run(None, {"x": x}), strict=True
        ):
            np.testing.assert_allclose(ours, wanted, rtol=1e-3, atol=1e-4)
    session = InferenceSession(model_bytes(nodes[:1], sizes, ["y"], {"w": w}), options())
    results = 48 * 10 * 12 * 4
    assert session.memory({"x": x.shape}).block_bytes < w.nbytes + results


@pytest.mark.parametrize(
    ("op", "gates", "attributes"),
    [
        ("LSTM", 4, {}),
        ("GRU", 3, {"linear_before_reset": 1}),
        ("GRU", 3, {"linear_before_reset": 0}),
        ("RNN", 1, {}),
    ],
)
def test_a_recurrent_layer_packs_no_weights_for_one_step(
    op: str, gates: int, attributes: dict[str, int]
) -> None:
    random = np.random.default_rng(0)
    hidden = 256
    weights = {
        "w": random.standard_normal((1, gates * hidden, 16)).astype("float32") / 4,
        "r": random.standard_normal((1, gates * hidden, hidden)).astype("float32") / 16,
    }
    layer = helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=hidden, **attributes)
    model = model_bytes([layer], {"x": (TensorProto.FLOAT, ["t", "n", 16])}, ["y"], weights)
    session = InferenceSession(model, options())
    assert session.memory({"x": (1, 1, 16)}).block_bytes < weights["r"].nbytes / 4
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for sizes in [(1, 1), (3, 5), (3, 6), (40, 1)]:
        x = random.standard_normal((*sizes, 16)).astype("float32")
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], stock.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5
        )
