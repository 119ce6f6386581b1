"""The resident set at its peak while a session loads a file, packs its weights and runs first."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save as save_model
from onnx.external_data_helper import convert_model_to_external_data

from ortmodule_py import InferenceSession

MEASURE = """
import gc, sys, threading
import numpy as np
if sys.argv[2] == "torch":
    import torch
from ortmodule_py import InferenceSession, SessionOptions
def status(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
options = SessionOptions()
options.intra_op_num_threads = 2
options.enable_fp16 = sys.argv[2] == "fp16"
shape = tuple(map(int, sys.argv[3].split("x")))
x = np.ones(shape, "float32")
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
sessions = [InferenceSession(sys.argv[1], options) for _ in range(2 if sys.argv[2] == "two" else 1)]
def run(session):
    session.run(None, {"x": x})
threads = [threading.Thread(target=run, args=(session,)) for session in sessions]
for thread in threads: thread.start()
for thread in threads: thread.join()
peak = status("VmHWM") - before
report = sessions[0].memory({"x": shape})
planned = (report.weights_bytes + len(sessions) * report.peak_bytes) / 1024
assert planned > 20_000
assert peak <= 1.05 * planned + 4096, f"{peak} KiB at the peak, planned were {planned:.0f}"
"""


def chain(nodes: list[Any], weights: list[Any], x: list[Any]) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def weight(name: str, *sizes: int) -> Any:
    values = np.random.default_rng(0).standard_normal(sizes) / np.prod(sizes[1:])
    return numpy_helper.from_array(values.astype("float32"), name)


def convolutions(normalized: bool) -> ModelProto:
    """Three of 9 MiB, each with a batch norm behind it if that is asked for."""
    nodes, weights, last = [], [], "x"
    for i in range(3):
        y = "y" if i == 2 else f"y{i}"
        made = f"c{i}" if normalized else y
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [made], pads=[1, 1, 1, 1]))
        weights.append(weight(f"w{i}", 512, 512, 3, 3))
        if normalized:
            rows = [f"{kind}{i}" for kind in ("scale", "bias", "mean", "variance")]
            nodes.append(helper.make_node("BatchNormalization", [made, *rows], [y]))
            weights += [numpy_helper.from_array(np.ones(512, "float32"), row) for row in rows]
        last = y
    return chain(nodes, weights, ["batch", 512, 8, 8])


def layers(*sizes: int, transposed: bool) -> ModelProto:
    """Products, of whose weights each is a large part of all."""
    nodes, weights, last = [], [], "x"
    for i, (inner, columns) in enumerate(pairwise(sizes)):
        y = "y" if i == len(sizes) - 2 else f"y{i}"
        made = helper.make_node("Gemm", [last, f"w{i}", f"b{i}"], [y], transB=int(transposed))
        nodes.append(made)
        weights.append(weight(f"w{i}", *((columns, inner) if transposed else (inner, columns))))
        weights.append(weight(f"b{i}", columns))
        last = y
    return chain(nodes, weights, ["batch", sizes[0]])


MODELS = {
    "convolutions": (lambda: convolutions(False), "1x512x8x8"),
    "normalized": (lambda: convolutions(True), "1x512x8x8"),
    "one_layer": (lambda: layers(1024, 6144, transposed=False), "2x1024"),
    "one_transposed_layer": (lambda: layers(6144, 1024, transposed=True), "2x6144"),
    "layers": (lambda: layers(*[1024] * 9, transposed=False), "2x1024"),
}


@pytest.mark.parametrize("setting", ["", "torch", "two"])
@pytest.mark.parametrize("model", MODELS)
def test_weights_are_not_there_beside_what_is_made_of_them(
    model: str, setting: str, tmp_path: Path
) -> None:
    make, shape = MODELS[model]
    save_model(make(), tmp_path / "model.onnx")
    measure(tmp_path / "model.onnx", setting, shape)


@pytest.mark.parametrize("model", ["convolutions", "layers"])
def test_external_weights_are_not_there_beside_what_is_made_of_them(
    model: str, tmp_path: Path
) -> None:
    make, shape = MODELS[model]
    made = make()
    convert_model_to_external_data(made, location="weights.bin", size_threshold=1024)
    save_model(made, tmp_path / "model.onnx")
    measure(tmp_path / "model.onnx", "", shape)


def test_weights_of_16_bits_are_not_there_beside_those_of_the_file(tmp_path: Path) -> None:
    save_model(layers(*[1024] * 17, transposed=False), tmp_path / "model.onnx")
    measure(tmp_path / "model.onnx", "fp16", "2x1024")


FAULTS = """
import resource, sys
import numpy as np
from ortmodule_py import InferenceSession
session = InferenceSession(sys.argv[1])
x = np.ones((2, 1024), "float32")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
session.run(None, {"x": x})
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages = 24 * 1024 * 3072 * 4 / 4096
huge = "[never]" not in open("/sys/kernel/mm/transparent_hugepage/enabled").read()
limit = (0.25 if huge else 1.2) * pages
assert faults <= limit, f"{faults} faults, the weights are {pages:.0f} pages"
"""


def test_copies_of_weights_share_their_pages(tmp_path: Path) -> None:
    save_model(layers(*[1024, 3072] * 12, 1024, transposed=False), tmp_path / "model.onnx")
    subprocess.run([sys.executable, "-c", FAULTS, tmp_path / "model.onnx"], check=True)


@pytest.mark.parametrize(
    "model",
    [
        convolutions(True),
        layers(520, 5003, 300, transposed=False),
        layers(1300, 5003, 300, transposed=True),
    ],
    ids=["convolutions", "layers", "transposed_layers"],
)
def test_packed_weights_give_the_results_of_weights_in_memory(
    model: ModelProto, tmp_path: Path
) -> None:
    save_model(model, tmp_path / "model.onnx")
    sizes = [d.dim_value or 2 for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).standard_normal(sizes).astype("float32")
    from_file = InferenceSession(tmp_path / "model.onnx")
    in_memory = InferenceSession(model.SerializeToString())  # whose originals stay: not packed
    (y,) = from_file.run(None, {"x": x})
    (expected,) = in_memory.run(None, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def measure(path: Path, setting: str, shape: str) -> None:
    command = [sys.executable, "-c", MEASURE, str(path), setting, shape]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
