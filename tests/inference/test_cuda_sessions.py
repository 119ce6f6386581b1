"""Sessions on CUDA, by its kernels on the host: in memory that crashes where the host touches it."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import ortmodule_py.onnxruntime as ort
from ortmodule_py import _C
from ortmodule_py.inference import InvalidArgument, RuntimeException
from tests.inference.models import classifier, model_bytes, step, weights, x_of

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
PROVIDERS = [CUDA, CPU]
Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not _C.build_info()["cuda_emulation"], reason="this build has no CUDA kernels for the host"
)


@pytest.fixture(autouse=True)
def _emulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    yield


def close(ours: list[Any], other: list[Any]) -> None:
    for one, two in zip(ours, other, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
def test_a_model_runs_as_on_the_cpu_and_takes_what_was_predicted(half: bool) -> None:
    options = ort.SessionOptions()
    options.enable_fp16 = half
    session = ort.InferenceSession(classifier(), options, providers=PROVIDERS)
    assert session.get_providers() == PROVIDERS and ort.get_device() == "GPU"
    other = ort.InferenceSession(classifier(), options, providers=[CPU])
    for n, height in ((2, 8), (3, 12), (2, 8)):
        feed = {"x": x_of(n, 3, height, 10)}
        predicted = session.memory({"x": feed["x"].shape})
        results = session.run(None, feed)
        close(results, other.run(None, feed))
        assert all(isinstance(result, np.ndarray) for result in results)
        assert session._session.last_peak_bytes == predicted.peak_bytes
        assert predicted.weights_bytes >= (2 if half else 4) * 16 * 8
    infos = session.get_input_memory_infos() + session.get_output_memory_infos()
    assert {info.name for info in infos} == {"Cuda"} and infos[0].device_id == 0
    assert {info.name for info in other.get_input_memory_infos()} == {"Cpu"}
    strided = np.asfortranarray(x_of(2, 3, 8, 10))
    close(session.run(None, {"x": strided}), other.run(None, {"x": strided}))


def test_the_most_that_a_run_in_segments_takes_includes_uploads_and_downloads() -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("ReduceSum", ["s", "axes"], ["r"], keepdims=0),
        helper.make_node("NonZero", ["r"], ["y"]),
    ]
    kinds = {name: (TensorProto.FLOAT, ["n", 256]) for name in ("a", "b")}
    model = model_bytes(nodes, kinds, ["y"], {"axes": np.array([1])})
    session = ort.InferenceSession(model, providers=PROVIDERS)
    feed = {"a": x_of(64, 256), "b": x_of(64, 256)}
    predicted = session.memory({name: array.shape for name, array in feed.items()})
    (y,) = session.run(None, feed)
    np.testing.assert_array_equal(y, [np.arange(64)])
    uploaded = 2 * feed["a"].nbytes
    assert uploaded < session._session.last_peak_bytes <= predicted.peak_bytes
    on_device = {n: ort.OrtValue.ortvalue_from_numpy(a, "cuda") for n, a in feed.items()}
    session.run_with_ort_values(None, on_device)
    assert session._session.last_peak_bytes > uploaded + predicted.outputs_bytes


def test_weights_of_four_bits_have_a_byte_each_on_the_device() -> None:
    random = np.random.default_rng(1)
    w = random.integers(-8, 8, (64, 128))
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"]),
            helper.make_node("MatMul", ["x", "wide"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 128])],
        [
            helper.make_tensor("w", TensorProto.INT4, w.shape, w.reshape(-1).tolist()),
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=PROVIDERS)
    x = x_of(3, 64)
    assert session.get_providers() == PROVIDERS
    close(session.run(None, {"x": x}), [x @ (w * 0.5)])


def test_the_optimized_model_has_weights_of_the_host(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = ort.InferenceSession(classifier(), options, providers=PROVIDERS)
    feed = {"x": x_of(2, 3, 8, 10)}
    written = ort.InferenceSession(options.optimized_model_filepath, providers=[CPU])
    close(written.run(None, feed), session.run(None, feed))


def test_a_profile_names_the_provider(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = ort.InferenceSession(step(), options, providers=PROVIDERS)
    session.run(None, {"state": x_of(2, 32), "x": x_of(2, 32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    assert {event["args"]["provider"] for event in events if event["cat"] == "Node"} == {CUDA}


def test_tensors_of_cuda_are_not_copied_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ort.InferenceSession(step(), providers=PROVIDERS)
    feed = {"state": x_of(2, 32), "x": x_of(2, 32)}
    expected = session.run(None, feed)

    class Tensor:
        """As a tensor of torch on CUDA, which the emulation lacks."""

        device = torch.device("cuda", 0)

        def __init__(self, array: Array) -> None:
            self.value = ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)

        def detach(self) -> Tensor:
            return self

    monkeypatch.setattr("ortmodule_py.inference.feeds.value_of", lambda t: t.value._ortvalue)
    close(session.run(None, {name: Tensor(array) for name, array in feed.items()}), expected)


def test_bound_values_stay_on_the_device() -> None:
    session = ort.InferenceSession(step(), providers=PROVIDERS)
    x, state = x_of(4, 32), np.zeros((4, 32), "float32")
    other = ort.InferenceSession(step(), providers=[CPU])
    binding = session.io_binding()
    on_device = ort.OrtValue.ortvalue_from_numpy(state, "cuda", 0)
    assert on_device.device_name() == "cuda" and on_device.__dlpack_device__() == (2, 0)
    given = ort.OrtValue.ortvalue_from_shape_and_type([4, 32], np.float32, "cuda", 0)
    given.update_inplace(x)
    np.testing.assert_array_equal(given.numpy(), x)
    binding.bind_input("x", "cuda", 0, np.float32, [4, 32], given.data_ptr())
    binding.bind_ortvalue_input("state", on_device)
    binding.bind_output("next", "cuda")
    binding.bind_output("sum")
    for _ in range(3):
        session.run_with_iobinding(binding)
        following, total = binding.get_outputs()
        assert following.device_name() == "cuda" and total.device_name() == "cpu"
        state, expected = other.run(None, {"state": state, "x": x})
        close([following.numpy(), total.numpy()], [state, expected])
        close(binding.copy_outputs_to_cpu(), [state, expected])
        binding.bind_ortvalue_input("state", following)
    place = ort.OrtValue.ortvalue_from_shape_and_type([4, 32], np.float32, "cuda", 0)
    binding.bind_ortvalue_output("next", place)
    copied = session._session.copied_bytes
    session.run_with_iobinding(binding)
    assert session._session.copied_bytes == copied
    close([place.numpy()], [other.run(["next"], {"state": state, "x": x})[0]])
    host = np.empty((4, 32), "float32")
    binding.bind_output("next", "cpu", 0, np.float32, [4, 32], host.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(host, place.numpy())


@pytest.mark.parametrize("length", [5, 200])
def test_ids_on_the_device_stay_there(length: int) -> None:
    """Few as they are: only the content of vectors can decide sizes."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    kinds = {"ids": (TensorProto.INT64, ["batch", "length"])}
    model = model_bytes(nodes, kinds, ["y"], weights(table=(10, 8)))
    session = ort.InferenceSession(model, providers=PROVIDERS)
    other = ort.InferenceSession(model, providers=[CPU])
    ids = np.random.default_rng(0).integers(0, 10, (1, length))
    binding = session.io_binding()
    binding.bind_ortvalue_input("ids", ort.OrtValue.ortvalue_from_numpy(ids, "cuda", 0))
    binding.bind_output("y", "cuda")
    session.run_with_iobinding(binding)
    assert session._session.copied_bytes == 0
    close(binding.copy_outputs_to_cpu(), other.run(None, {"ids": ids}))


def test_the_host_cannot_touch_memory_of_the_device() -> None:
    value = ort.OrtValue.ortvalue_from_numpy(x_of(4), "cuda", 0)
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.string_at(value.data_ptr(), 4)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_content_on_the_device_decides_sizes() -> None:
    model = model_bytes(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n"]), "shape": (TensorProto.INT64, [2])},
        ["y"],
    )
    session = ort.InferenceSession(model, providers=PROVIDERS)
    x = ort.OrtValue.ortvalue_from_numpy(x_of(96), "cuda", 0)
    for shape in ([8, 12], [4, 24]):
        wanted = ort.OrtValue.ortvalue_from_numpy(np.array(shape), "cuda", 0)
        (y,) = session.run_with_ort_values(None, {"x": x, "shape": wanted})
        np.testing.assert_array_equal(y.numpy(), x_of(96).reshape(shape))


def test_a_limit_of_the_provider_is_kept() -> None:
    free = ort.InferenceSession(classifier(), providers=PROVIDERS)
    free.run(None, {"x": x_of(4, 3, 8, 8)})
    needed = free.memory({"x": (4, 3, 8, 8)}).total_bytes
    limits = {"gpu_mem_limit": needed, "arena_extend_strategy": "kSameAsRequested"}
    session = ort.InferenceSession(classifier(), providers=[(CUDA, limits), CPU])
    close(
        session.run(None, {"x": x_of(4, 3, 8, 8)}),
        ort.InferenceSession(classifier()).run(None, {"x": x_of(4, 3, 8, 8)}),
    )
    whole = {"x": x_of(7, 3, 8, 8)}
    assert session.memory({"x": whole["x"].shape}).parts > 1
    close(session.run(None, whole), free.run(None, whole))
    assert (
        session._session.last_peak_bytes + session.memory({"x": (2, 3, 8, 8)}).weights_bytes
        <= needed
    )
    small = ort.InferenceSession(classifier(), providers=[(CUDA, {"gpu_mem_limit": 1000}), CPU])
    with pytest.raises(RuntimeException, match="no 'n' fits"):
        small.run(None, whole)


def test_threads_share_a_session() -> None:
    session = ort.InferenceSession(classifier(), providers=PROVIDERS)
    feeds = [{"x": x_of(1 + i % 3, 3, 8, 8)} for i in range(8)]
    expected = [session.run(None, feed) for feed in feeds]
    found: list[list[Any]] = [[] for _ in feeds]

    def run(i: int) -> None:
        for _ in range(3):
            found[i] = session.run(None, feeds[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, two in zip(found, expected, strict=True):
        close(one, two)


def test_the_cpu_runs_what_cuda_has_no_kernels_for() -> None:
    model = model_bytes(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="cubic")],
        {"x": (TensorProto.FLOAT, [1, 3, "height", "width"])},
        ["y"],
        {"scales": np.array([1, 1, 2, 2], "float32")},
    )
    with pytest.warns(UserWarning, match="CPUExecutionProvider runs it instead: .*needs a kernel"):
        session = ort.InferenceSession(model, providers=PROVIDERS)
    assert session.get_providers() == [CPU]
    feed = {"x": x_of(1, 3, 4, 5)}
    np.testing.assert_array_equal(
        session.run(None, feed)[0], ort.InferenceSession(model).run(None, feed)[0]
    )
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(InvalidArgument, match="the CPU must not take over"):
        ort.InferenceSession(model, options, providers=PROVIDERS)


SAMPLES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "GridSample": (
        helper.make_node("GridSample", ["x", "grid"], ["y"], mode="cubic"),
        {"x": (2, 5, 6, 7), "grid": (2, 4, 3, 2)},
        {},
    ),
    "DeformConv": (
        helper.make_node("DeformConv", ["x", "w", "o", "", "m"], ["y"], pads=[1, 1, 1, 1]),
        {"x": (1, 8, 6, 6), "o": (1, 18, 6, 6), "m": (1, 9, 6, 6)},
        {"w": (4, 8, 3, 3)},
    ),
    "GRU": (
        helper.make_node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=6),
        {"x": (5, 3, 8)},
        {"w": (1, 18, 8), "r": (1, 18, 6), "b": (1, 36)},
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_operators_of_few_models_give_the_results_of_stock_onnxruntime(name: str) -> None:
    node, sizes, filters = SAMPLES[name]
    random = np.random.default_rng(0)
    real = {
        key: random.standard_normal(dims).astype("float32") * np.float32(0.7)
        for key, dims in (sizes | filters).items()
    }
    model = model_bytes(
        [node],
        {key: (TensorProto.FLOAT, dims) for key, dims in sizes.items()},
        ["y"],
        {key: real[key] for key in filters},
    )
    feeds = {key: real[key] for key in sizes}
    stock = onnxruntime.InferenceSession(model, providers=[CPU])
    close(ort.InferenceSession(model, providers=PROVIDERS).run(None, feeds), stock.run(None, feeds))


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="device_id must be below 1"):
        ort.OrtValue.ortvalue_from_numpy(x_of(2), "cuda", 3)
    with pytest.raises(RuntimeError, match="has device 0, but found 1"):
        ort.InferenceSession(step(), providers=[(CUDA, {"device_id": 1})])
    on_cpu = ort.InferenceSession(step(), providers=[CPU])
    value = ort.OrtValue.ortvalue_from_numpy(x_of(4, 32), "cuda", 0)
    with pytest.raises(InvalidArgument, match="feeds must be in memory of the host, but found"):
        on_cpu.run_with_ort_values(None, {"state": value, "x": value})
    session = ort.InferenceSession(step(), providers=PROVIDERS)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x_of(4, 32))
    binding.bind_cpu_input("state", x_of(4, 32))
    wrong = ort.OrtValue.ortvalue_from_shape_and_type([2, 32], np.float32, "cuda", 0)
    binding.bind_ortvalue_output("next", wrong)
    with pytest.raises(InvalidArgument, match=r"sizes \[4,32\]"):
        session.run_with_iobinding(binding)
    assert not wrong.numpy().any()
    monkeypatch.delenv("ORTMODULE_CUDA_EMULATION")
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match="not in available provider names"):
            ort.InferenceSession(step(), providers=PROVIDERS)


def test_a_change_of_providers_that_fails_changes_nothing() -> None:
    session = ort.InferenceSession(classifier(), providers=[CPU])
    with pytest.raises(RuntimeError, match="has device 0, but found 1"):
        session.set_providers([(CUDA, {"device_id": 1}), CPU])
    assert session.get_provider_options() == {CPU: {}}
