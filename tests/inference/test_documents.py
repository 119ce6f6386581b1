"""The inference snippets of users' documents about onnxruntime, as printed.

`onnxruntime` is this package. Names that a document leaves to the reader ("test_inference",
"dataset") and its slips are given by `before`, with what was wrong in `slip`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as stock
import pytest
from onnx import TensorProto, helper

import ortmodule_py.onnxruntime as ort
from tests.inference.models import model_bytes


@dataclass
class Snippet:
    """A block of a document, and what holds after it."""

    name: str
    text: str
    before: str = ""
    slip: str = ""
    after: Callable[[dict[str, Any]], bool] = lambda names: True


NUMPY = "import numpy as np\n"
SESSION = """
import numpy as np
import onnxruntime as ort
session_options = ort.SessionOptions()
session = ort.InferenceSession("model.onnx", session_options)
inputs = {"input": np.ones((1, 3, 224, 224), "float32")}
dataset = [inputs["input"], inputs["input"] + 1]
"""

SNIPPETS = [
    Snippet(
        "memory arenas",
        """\
import onnxruntime as ort

session_options = ort.SessionOptions()

# Enable CPU memory arena (default: True)
session_options.enable_cpu_mem_arena = True

# Enable memory pattern optimization
session_options.enable_mem_pattern = True

session = ort.InferenceSession("model.onnx", session_options)
""",
        after=lambda n: n["session"].get_inputs()[0].name == "input",
    ),
    Snippet(
        "limiting GPU memory",
        """\
# Limit CUDA memory usage
cuda_provider_options = {
    'device_id': 0,
    'arena_extend_strategy': 'kNextPowerOfTwo',
    'gpu_mem_limit': 2 * 1024 * 1024 * 1024,  # 2GB limit
    'cudnn_conv_algo_search': 'DEFAULT',
}

session_options.append_execution_provider('CUDAExecutionProvider', cuda_provider_options)
""",
        before=SESSION,
        after=lambda n: n["session_options"].has_providers(),
    ),
    Snippet(
        "tracking memory",
        '''\
import psutil
import os

def profile_memory(session, input_data, input_name):
    """Profile memory usage during inference."""
    process = psutil.Process(os.getpid())
    
    # Baseline memory
    baseline = process.memory_info().rss / 1024 / 1024  # MB
    
    # Run inference
    for _ in range(100):
        session.run(None, {input_name: input_data})
    
    # Peak memory
    peak = process.memory_info().rss / 1024 / 1024
    
    print(f"Baseline: {baseline:.2f} MB")
    print(f"Peak: {peak:.2f} MB")
    print(f"Increase: {peak - baseline:.2f} MB")
'''
        "\nprofile_memory(session, dataset[0], 'input')\n",
        before=SESSION,
        slip="it is defined, but not called",
    ),
    Snippet(
        "graph optimization",
        """\
# Enable all graph optimizations
session_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL

# Save optimized graph
session_options.optimized_model_filepath = "optimized.onnx"
"""
        '\nsession = ort.InferenceSession("model.onnx", session_options)\n',
        before=SESSION,
        slip="no session is made with the options",
        after=lambda n: optimized_runs_in_both(n["inputs"]),
    ),
    Snippet(
        "memory patterns",
        """\
session_options.enable_mem_pattern = True
session_options.enable_cpu_mem_arena = True
""",
        before=SESSION,
    ),
    Snippet(
        "batch sizes",
        """\
# Find optimal batch size
for batch_size in [1, 2, 4, 8, 16, 32]:
    try:
        test_inference(batch_size)
        print(f"Batch size {batch_size}: OK")
    except RuntimeError as e:
        print(f"Batch size {batch_size}: OOM")
        break
""",
        before=SESSION
        + """
def test_inference(batch_size):
    if batch_size > 4:
        raise ort.capi.onnxruntime_pybind11_state.RuntimeException("no memory")
    session.run(None, {"input": np.ones((batch_size, 3, 224, 224), "float32")})
""",
        slip="test_inference is left to the reader",
        after=lambda n: n["batch_size"] == 8,
    ),
    Snippet(
        "GPU memory growth",
        """\
cuda_options = {
    'device_id': 0,
    'gpu_mem_limit': 4 * 1024 * 1024 * 1024,  # 4GB
    'arena_extend_strategy': 'kSameAsRequested',
}
"""
        "\nsession_options.append_execution_provider('CUDAExecutionProvider', cuda_options)\n",
        before=SESSION,
        slip="the options are not passed to anything",
    ),
    Snippet(
        "reusing sessions",
        """\
# Create session once
session = ort.InferenceSession("model.onnx", session_options)

# Reuse for multiple inferences
for data in dataset:
    outputs = session.run(None, {'input': data})
""",
        before=SESSION,
        after=lambda n: n["outputs"][0].shape == (1, 4, 224, 224),
    ),
    Snippet(
        "releasing outputs and sessions",
        """\
outputs = session.run(None, inputs)
del outputs  # Release immediately

del session
""",
        before=SESSION,
    ),
    Snippet(
        "reducing the batch size",
        """\
import onnxruntime as ort

# ... Load ONNX model ...

sess_options = ort.SessionOptions()
sess = ort.InferenceSession("model.onnx", sess_options)

input_name = sess.get_inputs()[0].name
output_name = sess.get_outputs()[0].name

# Reduced batch size
batch_size = 1  # Experiment with different values

input_data = np.random.rand(batch_size, 3, 224, 224).astype(np.float32) #Example input

outputs = sess.run([output_name], {input_name: input_data})
""",
        before=NUMPY,
        slip="numpy is not imported",
        after=lambda n: n["outputs"][0].shape == (1, 4, 224, 224),
    ),
    Snippet(
        "FP16 precision",
        """\
import onnxruntime as ort
import numpy as np

# ... Load ONNX model ...

sess_options = ort.SessionOptions()
sess_options.enable_fp16 = True #Enable FP16 precision

sess = ort.InferenceSession("model.onnx", sess_options)

# ... Rest of the inference code remains similar ...
""",
        after=lambda n: (
            n["sess"].run(None, {"input": np.ones((2, 3, 224, 224), "float32")})[0].dtype
            == np.float32
        ),
    ),
]


def optimized_runs_in_both(feed: dict[str, Any]) -> bool:
    ours = ort.InferenceSession("optimized.onnx").run(None, feed)
    theirs = stock.InferenceSession("optimized.onnx").run(None, feed)
    return bool(np.allclose(ours[0], theirs[0], atol=1e-4))


def image_model() -> bytes:
    random = np.random.default_rng(0)
    return model_bytes(
        [
            helper.make_node("Conv", ["input", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["output"]),
        ],
        {"input": (TensorProto.FLOAT, ["batch", 3, 224, 224])},
        ["output"],
        {"w": random.standard_normal((4, 3, 3, 3)).astype("float32")},
    )


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name.replace(" ", "_"))
def test_snippets_run_as_printed(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "psutil" in snippet.text:
        pytest.importorskip("psutil")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", ort)
    (tmp_path / "model.onnx").write_bytes(image_model())
    names: dict[str, Any] = {}
    exec(snippet.before, names)
    exec(snippet.text, names)
    assert snippet.after(names)
