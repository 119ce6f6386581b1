"""IOBinding and OrtValue: no copies where none is needed, and never a wrong value."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from ortmodule_py import InferenceSession, SessionOptions
from ortmodule_py.inference import (
    Fail,
    InvalidArgument,
    IOBinding,
    OrtDevice,
    OrtValue,
    OrtValueVector,
)
from tests.inference.models import model_bytes

Array = np.ndarray[Any, Any]


def net(kind: int = TensorProto.FLOAT) -> bytes:
    """y = relu(x + x), z = y * x: z reads x after y is written."""
    return model_bytes(
        [
            helper.make_node("Add", ["x", "x"], ["s"]),
            helper.make_node("Relu", ["s"], ["y"]),
            helper.make_node("Mul", ["y", "x"], ["z"]),
        ],
        {"x": (kind, ["n", 4])},
        ["y", "z"],
    )


def expected(x: Any) -> tuple[Array, Array]:
    y = np.maximum(np.asarray(x) * 2, 0)
    return y, y * x


def x_of(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype("float32")


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    return InferenceSession(net(), options)


def copied(session: InferenceSession) -> int:
    return session._session.copied_bytes


def check(binding: IOBinding, x: Any) -> None:
    for result, right in zip(binding.copy_outputs_to_cpu(), expected(x), strict=True):
        np.testing.assert_array_equal(result, right)


# --- inputs ---------------------------------------------------------------------------------------

LAYOUTS = {
    "row-major": (lambda x: x, 0),
    "columns": (np.asfortranarray, 0),
    "transposed": (lambda x: np.ascontiguousarray(x.T).T, 0),
    "part of a wider array": (lambda x: np.concatenate([x, x], 1)[:, 4:], 0),
    "every second": (lambda x: np.repeat(x, 2, 1)[:, ::2], 0),
    "one row, expanded": (lambda x: np.broadcast_to(x[:1], x.shape), 0),
    "reversed": (lambda x: x[::-1, ::-1], 48),
    "not aligned": (
        lambda x: np.frombuffer(b"_" + x.tobytes(), "float32", offset=1).reshape(x.shape),
        48,
    ),
    "a field": (lambda x: np.stack([x, x], -1).view("f4,f4")["f1"][..., 0], 0),
    "a list": (lambda x: x.tolist(), 0),
    "a tensor": (torch.from_numpy, 0),
    "a transposed tensor": (lambda x: torch.from_numpy(x).t().contiguous().t(), 0),
    "a tensor with a gradient": (lambda x: torch.from_numpy(x).requires_grad_(), 0),
    "an OrtValue": (OrtValue.ortvalue_from_numpy, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_read_where_they_are(layout: str, session: InferenceSession) -> None:
    make, bytes_copied = LAYOUTS[layout]
    x = make(x_of(3))
    values = x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, "float32")
    before = copied(session)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    check(binding, values)
    for result, right in zip(session.run(None, {"x": x}), expected(values), strict=True):
        np.testing.assert_array_equal(result, right)
    assert copied(session) - before == 2 * bytes_copied


def test_arrays_of_another_byte_order(session: InferenceSession) -> None:
    x = x_of(2)
    (y, _) = session.run(None, {"x": x.astype(">f4")})
    np.testing.assert_array_equal(y, expected(x)[0])
    binding = session.io_binding()
    binding.bind_cpu_input("x", x.astype(">f4"))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], y)


def test_bound_arrays_are_kept_and_read_in_each_run(session: InferenceSession) -> None:
    binding = session.io_binding()
    x = x_of(3)
    kept = weakref.ref(x)
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_output("z")
    for seed in range(3):
        x[:] = x_of(3, seed)
        session.run_with_iobinding(binding)
        check(binding, x)
    del x
    gc.collect()
    assert kept() is not None
    session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    gc.collect()
    assert kept() is None
    with pytest.raises(InvalidArgument, match="'x' is not"):
        session.run_with_iobinding(binding)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tensors_of_16_bits(dtype: torch.dtype) -> None:
    kind = TensorProto.BFLOAT16 if dtype == torch.bfloat16 else TensorProto.FLOAT16
    session = InferenceSession(net(kind))
    x = torch.from_numpy(x_of(3)).to(dtype)
    right = (x + x).relu()
    for bind in ("tensor", "address"):
        binding = session.io_binding()
        if bind == "tensor":
            binding.bind_cpu_input("x", x)
            binding.bind_output("y")
        else:
            place = torch.empty_like(x)
            binding.bind_input("x", "cpu", 0, dtype, x.shape, x.data_ptr())
            binding.bind_output("y", "cpu", 0, kind, place.shape, place.data_ptr())
        session.run_with_iobinding(binding)
        torch.testing.assert_close(torch.from_dlpack(binding.get_outputs()[0]), right)
    y, _ = session.run(None, {"x": x})
    assert y.dtype.name == str(dtype).removeprefix("torch.")
    assert copied(session) == 0


def test_other_types_are_named(session: InferenceSession) -> None:
    x = torch.zeros(2, 4).to(torch.float8_e4m3fn)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    with pytest.raises(InvalidArgument, match="'x' must have type float, but found float8e4m3fn"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", x_of(2))
    binding.bind_ortvalue_output("y", OrtValue.from_dlpack(x))
    with pytest.raises(InvalidArgument, match=r"output 'y' must have .* but found float8e4m3fn"):
        session.run_with_iobinding(binding)


# --- outputs --------------------------------------------------------------------------------------


def test_outputs_are_written_where_they_are_bound(session: InferenceSession) -> None:
    x, wide = x_of(3), torch.zeros(3, 8)
    y: Array = np.zeros((3, 4), np.float32)
    z = wide[:, ::2]
    before = copied(session)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.bind_ortvalue_output("z", OrtValue.from_dlpack(z))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, expected(x)[0])
    np.testing.assert_array_equal(z.numpy(), expected(x)[1])
    assert not wide[:, 1::2].any()
    assert copied(session) - before == z.numel() * 4  # memory with gaps: a copy at the end
    assert [value.data_ptr() for value in binding.get_outputs()] == [y.ctypes.data, z.data_ptr()]
    first = binding.copy_outputs_to_cpu()
    x[:] = x_of(3, 1)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(first[0], expected(x_of(3))[0])
    check(binding, x)


def test_a_bound_output_that_does_not_fit_is_an_error_before_the_run(
    session: InferenceSession,
) -> None:
    x = x_of(3)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    memory: Array = np.full((4, 4), 7.0, "float32")
    address = memory.ctypes.data
    for kind, shape, message in (
        (np.float32, (2, 4), r"output 'y' must have type float and sizes \[3,4\].*float \[2,4\]"),
        (np.float32, (4, 4), r"found float \[4,4\]"),
        (np.float32, (12,), r"found float \[12\]"),
        (TensorProto.INT32, (3, 4), r"found int32 \[3,4\]"),
    ):
        binding.bind_output("y", "cpu", 0, kind, shape, address)
        with pytest.raises(InvalidArgument, match=message):
            session.run_with_iobinding(binding)
    binding.bind_output("y", "cpu", 0, np.float32, (3, 4), address)
    binding.bind_output("z", "cpu", 0, np.float32, (3, 4), address + 4)
    with pytest.raises(InvalidArgument, match="found 'y' and 'z' in the same"):
        session.run_with_iobinding(binding)
    assert (memory == 7).all()
    read_only: Array = np.zeros((3, 4), "float32")
    read_only.flags.writeable = False
    with pytest.raises(InvalidArgument, match="must be writable"):
        binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(read_only))
    with pytest.raises(ValueError, match="`element_type` and `shape` are to be provided"):
        binding.bind_output("y", buffer_ptr=address)
    with pytest.raises(InvalidArgument, match="must have an address"):
        binding.bind_output("y", "cpu", 0, np.float32, (3, 4), 0)
    with pytest.raises(InvalidArgument, match="must not be negative"):
        binding.bind_input("x", "cpu", 0, np.float32, (-3, 4), address)


@pytest.mark.parametrize("offset", range(-12, 13, 4))
def test_memory_of_an_input_may_be_an_output(offset: int, session: InferenceSession) -> None:
    """Memory of y overlaps that of x, which z reads after y is written."""
    memory: Array = np.zeros(36, "float32")
    memory[12:24] = x_of(3).ravel()
    y = memory[12 + offset : 24 + offset].reshape(3, 4)
    binding = session.io_binding()
    binding.bind_cpu_input("x", memory[12:24].reshape(3, 4))
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(y))
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    check(binding, x_of(3))
    np.testing.assert_array_equal(y, expected(x_of(3))[0])


def cache_model() -> bytes:
    """present = past followed by new; y = sum over present."""
    return model_bytes(
        [
            helper.make_node("Concat", ["past", "new"], ["present"], axis=0),
            helper.make_node("ReduceSum", ["present"], ["y"], keepdims=0),
        ],
        {"past": (TensorProto.FLOAT, ["p", 4]), "new": (TensorProto.FLOAT, ["n", 4])},
        ["present", "y"],
    )


def test_a_cache_that_grows_passes_from_run_to_run_without_a_copy() -> None:
    session = InferenceSession(cache_model())
    binding = session.io_binding()
    binding.bind_cpu_input("past", np.zeros((0, 4), "float32"))
    binding.bind_output("present")
    binding.bind_output("y")
    rows: list[Array] = []
    for step in range(5):
        rows.append(x_of(1, step))
        binding.bind_cpu_input("new", rows[-1])
        session.run_with_iobinding(binding)
        present, y = binding.get_outputs()
        np.testing.assert_array_equal(present.numpy(), np.concatenate(rows))
        np.testing.assert_allclose(y.numpy(), np.concatenate(rows).sum(), rtol=1e-5)
        binding.bind_ortvalue_input("past", present)
    assert copied(session) == 0


def test_a_cache_in_one_buffer_is_right() -> None:
    """The new rows are put behind those that are in the buffer already."""
    session = InferenceSession(cache_model())
    buffer: Array = np.zeros((6, 4), "float32")
    binding = session.io_binding()
    binding.bind_output("y")
    for step in range(6):
        binding.bind_cpu_input("past", buffer[:step])
        binding.bind_cpu_input("new", x_of(1, step))
        present = OrtValue.ortvalue_from_numpy(buffer[: step + 1])
        binding.bind_ortvalue_output("present", present)
        session.run_with_iobinding(binding)
        right = np.concatenate([x_of(1, seed) for seed in range(step + 1)])
        np.testing.assert_array_equal(buffer[: step + 1], right)
        np.testing.assert_allclose(binding.get_outputs()[0].numpy(), right.sum(), rtol=1e-5)


def test_states_are_updated_in_place_and_swapped() -> None:
    model = model_bytes(
        [helper.make_node("Relu", ["a"], ["c"]), helper.make_node("Neg", ["b"], ["d"])],
        {"a": (TensorProto.FLOAT, ["n"]), "b": (TensorProto.FLOAT, ["n"])},
        ["c", "d"],
    )
    session = InferenceSession(model)
    one, two = x_of(2, 1).ravel(), x_of(2, 2).ravel()
    a, b = one.copy(), two.copy()
    for c, d, bytes_copied in ((a, b, 0), (b, a, None)):
        a[:], b[:] = one, two
        before = copied(session)
        binding = session.io_binding()
        for name, value in {"a": a, "b": b}.items():
            binding.bind_cpu_input(name, value)
        for name, value in {"c": c, "d": d}.items():
            binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(value))
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(c, np.maximum(one, 0))
        np.testing.assert_array_equal(d, -two)
        assert bytes_copied is None or copied(session) - before == bytes_copied


def test_sizes_that_change_and_outputs_of_earlier_runs(session: InferenceSession) -> None:
    binding = session.io_binding()
    binding.bind_output("z")
    binding.bind_output("y")
    earlier: list[tuple[Array, list[OrtValue], list[Any]]] = []
    for rows in (3, 1, 5, 0, 3):
        x = x_of(rows, rows)
        binding.bind_cpu_input("x", x)
        session.run_with_iobinding(binding)
        earlier.append((x, binding.get_outputs(), binding.copy_outputs_to_cpu()))
    for x, values, arrays in earlier:
        for results in ([value.numpy() for value in values], arrays):
            np.testing.assert_array_equal(results[1], expected(x)[0])
            np.testing.assert_array_equal(results[0], expected(x)[1])


def test_copied_outputs_are_handed_over_if_nobody_else_has_them(session: InferenceSession) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x_of(3))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (handed,) = binding.copy_outputs_to_cpu()
    (value,) = binding.get_outputs()
    assert value.data_ptr() != handed.ctypes.data
    assert binding.get_outputs()[0].data_ptr() == value.data_ptr()
    value.update_inplace(np.zeros((3, 4), "float32"))
    np.testing.assert_array_equal(handed, expected(x_of(3))[0])
    (copy,) = binding.copy_outputs_to_cpu()
    assert copy.ctypes.data != value.data_ptr()
    session.run_with_iobinding(binding)
    (value,) = binding.get_outputs()
    np.testing.assert_array_equal(value.numpy(), handed)


def test_bindings_without_inputs_or_outputs_and_wrong_names(session: InferenceSession) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", x_of(1))
    assert binding.get_outputs() == [] and binding.copy_outputs_to_cpu() == []
    with pytest.raises(InvalidArgument, match="at least one output"):
        session.run_with_iobinding(binding)
    binding.bind_output("y")
    (value,) = binding.get_outputs()
    assert not value.has_value() and binding.copy_outputs_to_cpu() == [None]
    with pytest.raises(Fail, match="must be a tensor, but found none"):
        value.numpy()
    with pytest.raises(InvalidArgument, match="one of 'y', 'z', but found 'q'"):
        binding.bind_output("q")
    with pytest.raises(InvalidArgument, match="one of 'x', but found 'q'"):
        binding.bind_cpu_input("q", x_of(1))
    with pytest.raises(ValueError, match="the session that made it"):
        InferenceSession(net()).run_with_iobinding(binding)
    with pytest.raises(TypeError, match="must be an OrtValue"):
        binding.bind_ortvalue_input("x", x_of(1))  # type: ignore[arg-type]
    binding.bind_cpu_input("x", x_of(1).astype("float64"))
    with pytest.raises(InvalidArgument, match="'x' must have type float, but found double"):
        session.run_with_iobinding(binding)
    binding.synchronize_inputs()
    binding.synchronize_outputs()


def test_other_devices_are_refused_with_what_to_do(session: InferenceSession) -> None:
    binding = session.io_binding()
    x = x_of(1)
    for call in (
        lambda: binding.bind_output("y", "cuda"),
        lambda: binding.bind_input("x", "cuda", 0, np.float32, x.shape, x.ctypes.data),
        lambda: OrtValue.ortvalue_from_numpy(x, "cuda", 0),
        lambda: OrtValue.ortvalue_from_shape_and_type((1, 4), np.float32, "cuda"),
        lambda: session.create_ortvalue_from_shape_and_type((1, 4), np.float32, "dml"),
    ):
        with pytest.raises(InvalidArgument, match=r"must be on device 'cpu'.*tensor\.cpu\(\)"):
            call()
    with pytest.raises(InvalidArgument, match=r"Unsupported device type.*found 'abacus'"):
        binding.bind_output("y", "abacus")


def test_twenty_threads_with_bindings_of_their_own() -> None:
    session = InferenceSession(net())
    wrong: list[int] = []

    def work(seed: int) -> None:
        binding = session.io_binding()
        for i in range(20):
            x = x_of(1 + (seed + i) % 4, seed)
            y = np.empty_like(x)
            binding.bind_cpu_input("x", x)
            binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
            binding.bind_output("z")
            session.run_with_iobinding(binding)
            z = binding.copy_outputs_to_cpu()[1]
            if not (np.array_equal(y, expected(x)[0]) and np.array_equal(z, expected(x)[1])):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_runs_on_values_and_vectors(session: InferenceSession) -> None:
    x = x_of(2)
    value = OrtValue.ortvalue_from_numpy(x)
    z, y = session.run_with_ort_values(["z", "y"], {"x": value})
    np.testing.assert_array_equal(y.numpy(), expected(x)[0])
    np.testing.assert_array_equal(z.numpy(), expected(x)[1])
    feeds, fetches = OrtValueVector(), OrtValueVector()
    feeds.push_back(torch.from_numpy(x))
    cpu = OrtDevice.make("cpu", 0)
    session.run_with_ortvaluevector(None, ["x"], feeds, ["z"], fetches, [cpu])
    assert len(fetches) == 1 and fetches.element_type_at(0) == TensorProto.FLOAT
    (tensor,) = fetches.to_dlpacks(torch.from_dlpack)
    np.testing.assert_array_equal(tensor.numpy(), expected(x)[1])
    feeds = OrtValueVector()
    feeds.push_back_batch([x], [x.ctypes.data], [np.float32], [x.shape], [cpu])
    session.run_with_ortvaluevector(None, ["x"], feeds, ["y"], fetches, [cpu])
    np.testing.assert_array_equal(OrtValue(fetches[0]).numpy(), expected(x)[0])
    with pytest.raises(InvalidArgument, match="but found 'npu'"):
        npu = OrtDevice.make("npu", 0)
        feeds.push_back_batch([x], [x.ctypes.data], [np.float32], [x.shape], [npu])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    vector = binding.get_outputs_as_ortvaluevector()
    np.testing.assert_array_equal(torch.from_dlpack(vector.dlpack_at(0)), expected(x)[0])
    with pytest.raises(InvalidArgument, match="one of"):
        session.run_with_ort_values(["q"], {"x": value})


def test_sequences_are_values() -> None:
    model = model_bytes(
        [
            helper.make_node("SequenceConstruct", ["x", "y"], ["s"]),
            helper.make_node("Identity", ["x"], ["t"]),
        ],
        {"x": (TensorProto.FLOAT, ["n"]), "y": (TensorProto.FLOAT, ["m"])},
        ["s", "t"],
    )
    session = InferenceSession(model)
    feeds: dict[str, Array] = {
        "x": np.arange(2.0, dtype="float32"),
        "y": np.arange(3.0, dtype="float32"),
    }
    s, t = session.run_with_ort_values(
        None, {name: OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    )
    assert s.is_tensor_sequence() and not s.is_tensor() and s.has_value()
    assert s.data_type() == "seq(tensor(float))"
    with pytest.raises(Fail, match="must be a tensor, but found a sequence"):
        s.numpy()
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("s")
    session.run_with_iobinding(binding)
    (arrays,) = binding.copy_outputs_to_cpu()
    for array, right in zip(arrays, feeds.values(), strict=True):
        np.testing.assert_array_equal(array, right)
    binding.bind_ortvalue_output("s", t)
    with pytest.raises(InvalidArgument, match="'s' must be a tensor to be bound to memory"):
        session.run_with_iobinding(binding)


def test_bindings_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(net())
    script = f"""
import sys, numpy
from ortmodule_py.inference import InferenceSession, OrtValue
session = InferenceSession({str(tmp_path / "model.onnx")!r})
binding = session.io_binding()
binding.bind_cpu_input("x", numpy.ones((2, 4), "float32"))
binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_shape_and_type((2, 4), numpy.float32))
session.run_with_iobinding(binding)
assert (numpy.from_dlpack(binding.get_outputs()[0]) == 2).all()
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_optimized_model_is_written_after_a_run_of_a_binding(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = InferenceSession(
        model_bytes([relu], {"x": (TensorProto.FLOAT, None)}, ["y"]), options
    )
    binding = session.io_binding()
    binding.bind_cpu_input("x", x_of(2))
    binding.bind_output("y")
    assert not Path(options.optimized_model_filepath).exists()
    session.run_with_iobinding(binding)
    assert Path(options.optimized_model_filepath).exists()
