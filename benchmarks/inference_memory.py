"""`python -m benchmarks.inference_memory [MODEL.onnx ...]`: resident memory of sessions, ours beside stock's.

Batches 1, 2, 1, 2, 1 of each model, each setting in a process of its own, one thread: resident memory
above that before the session was made, after each run, one second after the last, and at the peak, in
MiB; the time of batch 1 is the least of some runs afterwards. Goals of ours: idle at most weights + 5 %
+ 4 MiB, peak at most the planned bytes + 5 % + 4 MiB.

Without arguments: the models inside rapidocr-onnxruntime, silero-vad and magika, and two that torch
exports, a ResNet and a U-Net.

`--flat MODEL.onnx [RUNS]`: runs over 200 shapes in 8 threads; resident memory after each tenth of them.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.inference import packaged

BATCHES = (1, 2, 1, 2, 1)
REPEATS = 5
SIZES = {
    "det": (3, 320, 320),
    "rec": (3, 48, 320),
    "cls": (3, 48, 192),
    "vad": (576,),
}
SETTINGS: dict[str, dict[str, bool]] = {
    "stock": {},
    "stock, no mem pattern": {"enable_mem_pattern": False},
    "stock, no arena": {"enable_cpu_mem_arena": False},
    "stock, neither": {"enable_mem_pattern": False, "enable_cpu_mem_arena": False},
    "stock, shrinkage": {"shrinkage": True},
    "ours": {},
    "ours, no arena": {"enable_cpu_mem_arena": False},
}


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(sys.argv[2], sys.argv[3])))
        return
    if sys.argv[1:2] == ["--flat"]:
        flat(sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10_000)
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = sys.argv[1:] or [*map(str, chosen()), *exported(Path(folder))]
        for path in paths:
            show(path)


def show(path: str) -> None:
    table = Table(*["setting", *(f"batch {b}" for b in BATCHES)], "idle", "peak", "ms", "ratio")
    found = {}
    for setting in SETTINGS:
        command = [sys.executable, "-m", "benchmarks.inference_memory", "--one", setting, path]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        one = found[setting] = json.loads(done.stdout.splitlines()[-1])
        ratio = one["ms"] / found["stock"]["ms"]
        cells = [f"{value:.1f}" for value in (*one["after"], one["idle"], one["peak"])]
        table.add_row(setting, *cells, f"{one['ms']:.2f}", f"{ratio:.2f}")
    ours = found["ours"]
    weights, planned = ours["weights"], ours["planned"]
    Console(width=140).print(f"{Path(path).stem}: weights {weights:.1f}, planned {planned:.1f} MiB")
    Console(width=140).print(table)
    for what, value, most in (
        ("idle", ours["idle"], 1.05 * weights + 4),
        ("peak", ours["peak"], 1.05 * planned + 4),
    ):
        print(f"  {what} {value:.1f}, goal {most:.1f}: {'met' if value <= most else 'MISSED'}")


# ---- one setting, in a process of its own --------------------------------------------------------


def measured(setting: str, path: str) -> dict[str, Any]:
    make = stock_session if setting.startswith("stock") else our_session
    session, run_options = make(path, SETTINGS[setting], load=False)
    feeds = {batch: feeds_of(path, batch) for batch in set(BATCHES)}
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of reading the file for the feeds
    before = status("VmRSS")
    session, run_options = make(path, SETTINGS[setting], load=True)
    after = []
    for batch in BATCHES:
        session.run(None, feeds[batch], run_options)
        after.append(status("VmRSS") - before)
    peak = status("VmHWM") - before
    time.sleep(1)
    gc.collect()
    result: dict[str, Any] = {"after": after, "peak": peak, "idle": status("VmRSS") - before}
    if not setting.startswith("stock"):
        report = session.memory(feeds[2])
        result["weights"] = report.weights_bytes / 2**20
        result["planned"] = report.total_bytes / 2**20
    least = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        session.run(None, feeds[1], run_options)
        least = min(least, time.process_time() - start)
    result["ms"] = 1e3 * least
    return result


def our_session(path: str, options: dict[str, bool], load: bool) -> tuple[Any, Any]:
    from ortmodule_py.inference import InferenceSession, RunOptions, SessionOptions

    made = SessionOptions()
    return opened(InferenceSession, made, RunOptions(), path, options, load)


def stock_session(path: str, options: dict[str, bool], load: bool) -> tuple[Any, Any]:
    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.log_severity_level = 3
    return opened(onnxruntime.InferenceSession, made, onnxruntime.RunOptions(), path, options, load)


def opened(
    session: Any, made: Any, run_options: Any, path: str, options: dict[str, bool], load: bool
) -> tuple[Any, Any]:
    made.intra_op_num_threads = 1
    for name, value in options.items():
        if name == "shrinkage":
            run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        else:
            setattr(made, name, value)
    return (session(path, made, providers=["CPUExecutionProvider"]) if load else None), run_options


def feeds_of(path: str, batch: int) -> dict[str, Any]:
    """Random feeds of that batch; other open sizes are those of SIZES, or 224."""
    import onnx

    random = np.random.default_rng(batch)
    graph = onnx.load(path, load_external_data=False).graph
    weights = {initializer.name for initializer in graph.initializer}
    fixed = next((SIZES[key] for key in SIZES if f"_{key}" in path), (3, 224, 224))
    feeds: dict[str, Any] = {}
    for value in graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        known = [d.dim_value for d in kind.shape.dim]
        is_state = value.name == "state"
        shape = [
            size or (batch if d == int(is_state) else fixed[d - 1]) for d, size in enumerate(known)
        ]
        if value.name == "sr":
            feeds[value.name] = np.asarray(16000)
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        integer = np.issubdtype(dtype, np.integer)
        values = random.integers(0, 100, shape) if integer else random.standard_normal(shape)
        feeds[value.name] = values.astype(dtype)
    return feeds


def status(field: str) -> float:
    """A field of the process's status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


# ---- models ------------------------------------------------------------------------------------


def chosen() -> list[Path]:
    names = ("det_infer.onnx", "rec_infer.onnx", "silero_vad.onnx", "model.onnx")
    return [path for path in packaged() if path.name.endswith(names)]


def exported(folder: Path) -> list[str]:
    """Models with larger weights or activations, which torch exports."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    from benchmarks.more_models import Unet
    from benchmarks.vision_models import ResNet

    class Classes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = ResNet(classes=1000, widths=(64, 128, 256, 512), blocks_per_stage=2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.net.pool(functional.relu(self.net.bn(self.net.stem(x))))
            scores: Tensor = self.net.head(self.net.blocks(x).mean(dim=(2, 3)))
            return scores

    class Segments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Unet(width=32, classes=4)

        def forward(self, x: Tensor) -> Tensor:
            kept = []
            for i, block in enumerate(self.net.down):
                x = block(x if i == 0 else functional.max_pool2d(x, 2))
                kept.append(x)
            for i in (1, 0):
                x = self.net.join[i](torch.cat((kept[i], self.net.up[i](x)), dim=1))
            scores: Tensor = self.net.head(x)
            return scores

    paths = []
    for name, model, size in (("resnet18", Classes(), 64), ("unet", Segments(), 224)):
        path = folder / f"{name}_{size}.onnx"
        with torch.no_grad():
            torch.onnx.export(
                model.eval(),
                (torch.zeros(2, 3, size, size),),
                str(path),
                input_names=["x"],
                dynamic_axes={"x": {0: "batch"}},
                dynamo=False,
            )
        paths.append(str(path))
    return paths


# ---- many shapes, many threads ------------------------------------------------------------------


def flat(path: str, runs: int) -> None:
    from ortmodule_py.inference import InferenceSession

    session = InferenceSession(path)
    shapes, threads = 200, 8

    def work(thread: int, part: int) -> None:
        for i in range(runs // 10 // threads):
            batch = 2 + (thread * 29 + part * 53 + i * 7) % shapes
            session.run(None, feeds_by_batch[batch])

    feeds_by_batch = {batch: feeds_of(path, batch) for batch in range(2, shapes + 2)}
    before = status("VmRSS")
    for part in range(10):
        group = [threading.Thread(target=work, args=(t, part)) for t in range(threads)]
        for thread in group:
            thread.start()
        for thread in group:
            thread.join()
        busy = status("VmRSS") - before
        time.sleep(1)
        print(
            f"after {(part + 1) * runs // 10} runs: {busy:.1f} MiB, idle {status('VmRSS') - before:.1f} MiB"
        )


if __name__ == "__main__":
    main()
