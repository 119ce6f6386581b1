"""Bindings as documents and applications use them: the memory guide's snippets, a streamed model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from ortmodule_py import InferenceSession
from ortmodule_py.inference import OrtValue
from tests.inference.models import model_bytes
from tests.inference.test_session import package_file

ZERO_COPY = """
import numpy as np

session = ort.InferenceSession("model.onnx")
io_binding = session.io_binding()

# Bind input directly
input_array = np.random.randn(1, 3, 224, 224).astype(np.float32)
io_binding.bind_cpu_input('input', input_array)

# Bind output (pre-allocate)
io_binding.bind_output('output')

# Run without copying
session.run_with_iobinding(io_binding)

# Get outputs
outputs = io_binding.copy_outputs_to_cpu()
"""

# As printed but for the device, and for `output_shape`, which the document leaves out.
TENSOR_ZERO_COPY = """
import torch

# Create input on GPU
input_tensor = torch.randn(1, 3, 224, 224, device='cpu')

# Bind GPU memory directly
io_binding.bind_input(
    name='input',
    device_type='cpu',
    device_id=0,
    element_type=np.float32,
    shape=input_tensor.shape,
    buffer_ptr=input_tensor.data_ptr()
)

# Bind GPU output
output_shape = (1, 3, 224, 224)
io_binding.bind_output(
    name='output',
    device_type='cpu',
    device_id=0,
    element_type=np.float32,
    shape=output_shape
)

session.run_with_iobinding(io_binding)
"""

# As printed; the document binds the output in the snippet above only.
REUSED = """
# Create binding once
io_binding = session.io_binding()
io_binding.bind_output('output')

# Reuse for multiple inferences
for data in dataset:
    io_binding.bind_cpu_input('input', data)
    session.run_with_iobinding(io_binding)
    outputs = io_binding.copy_outputs_to_cpu()
    io_binding.clear_binding_inputs()
    results.append(outputs[0])

io_binding.clear_binding_inputs()
io_binding.clear_binding_outputs()
"""


def test_snippets_of_the_memory_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ortmodule_py.inference as ort

    model = model_bytes(
        [helper.make_node("Relu", ["input"], ["output"])],
        {"input": (TensorProto.FLOAT, ["n", 3, "h", "w"])},
        ["output"],
    )
    (tmp_path / "model.onnx").write_bytes(model)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"ort": ort}
    exec(ZERO_COPY, names)
    np.testing.assert_array_equal(names["outputs"][0], np.maximum(names["input_array"], 0))
    exec(TENSOR_ZERO_COPY, names)
    (output,) = names["io_binding"].get_outputs()
    torch.testing.assert_close(torch.from_dlpack(output), names["input_tensor"].relu())
    names["dataset"] = [np.full((1, 3, 2, 2 + i), i - 1, "float32") for i in range(3)]
    names["results"] = []
    exec(REUSED, names)
    for data, result in zip(names["dataset"], names["results"], strict=True):
        np.testing.assert_array_equal(result, np.maximum(data, 0))
    assert names["session"]._session.copied_bytes == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_the_state_of_a_voice_detector_goes_from_chunk_to_chunk(in_place: bool) -> None:
    """The new state is bound to the memory of the old one, or passed on as it is."""
    path = next(p for p in package_file("silero_vad", "data/*.onnx") if p.endswith("vad.onnx"))
    stock = onnxruntime.InferenceSession(path)
    session = InferenceSession(path)
    right: Any = np.zeros((2, 1, 128), "float32")
    state: np.ndarray[Any, Any] = right.copy()
    binding = session.io_binding()
    binding.bind_cpu_input("sr", np.asarray(16000))
    binding.bind_cpu_input("state", state)
    binding.bind_output("output")
    binding.bind_output("stateN")
    if in_place:
        binding.bind_ortvalue_output("stateN", OrtValue.ortvalue_from_numpy(state))
    for step in range(8):
        chunk = np.random.default_rng(step).standard_normal((1, 576)).astype("float32")
        binding.bind_cpu_input("input", chunk)
        session.run_with_iobinding(binding)
        feeds = {"input": chunk, "state": right, "sr": np.asarray(16000)}
        speech, right = stock.run(None, feeds)
        output, new_state = binding.get_outputs()
        np.testing.assert_allclose(output.numpy(), speech, atol=1e-4)
        np.testing.assert_allclose(new_state.numpy(), right, atol=1e-4)
        if not in_place:
            binding.bind_ortvalue_input("state", new_state)
    assert np.shares_memory(new_state.numpy(), state) == in_place
