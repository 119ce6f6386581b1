"""`python -m benchmarks.inference [MODEL ...]`: sessions of ours beside stock onnxruntime's.

A model is a path, or a name of benchmarks/onnx_models.py; without arguments, the models inside
rapidocr-onnxruntime, silero-vad and magika, and all of those. Each at one and two threads: both
sessions open the file and run shapes that neither has seen; then calls in turn, the least of several.

    load     ms to make the session and run it once, ours / stock's
    ms       of a call; its ratio to stock's, with the geometric mean and the worst at the end
    us       of a call of a model of one node, and of the voice detector of silero-vad, where given

Then, each in a process of its own, resident memory after the import, after loading, at the peak of
three shapes, and idle (`--times` leaves it out).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

REPEATS = 7
LEAST_SECONDS = 0.6  # of the calls of each model, so that short ones are repeated more often
PACKAGES = {
    "rapidocr_onnxruntime": "models/*.onnx",
    "silero_vad": "data/*.onnx",
    "magika": "models/*/model.onnx",
}
SIZES = {"det": (1, 3, 320, 320), "rec": (1, 3, 48, 320), "cls": (1, 3, 48, 192)}
clock = [time.perf_counter]
NAMED_SIZES = {"batch": 1, "length": 128}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--times", action="store_true", help="no memory")
    parser.add_argument("--cpu", action="store_true", help="processor time, for a busy machine")
    parser.add_argument("--folder", help="where exported models are kept; else a temporary one")
    parser.add_argument("--resident", choices=("ours", "stock"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cpu:
        clock[0] = time.process_time
    if given.resident:
        print(json.dumps(resident(given.resident, given.models[0])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary)
        paths = [path_of(model, folder) for model in given.models or all_models()]
        for threads in given.threads:
            print_times(paths, threads)
        print_calls(folder)
        if not given.times:
            print_memory(paths)


def all_models() -> list[str]:
    """Paths of the packaged models, then names of those that are exported."""
    from benchmarks.onnx_models import MODELS

    return [str(path) for path in packaged()] + list(MODELS)


def path_of(model: str, folder: Path) -> str:
    """The file of a model, exported if it is only a name."""
    if Path(model).exists():
        return model
    from benchmarks.onnx_models import export

    return str(export(model, folder))


def print_times(paths: list[str], threads: int) -> None:
    """Times of all models, with the geometric mean and the worst of their ratios."""
    table = Table("model", "shape", "difference", "load", "ms", "stock ms", "ratio")
    ratios, loads = [], []
    for path in paths:
        rows, load, ratio = times(path, threads)
        ratios.append(ratio)
        loads.append(load)
        for row in rows:
            table.add_row(*row)
    table.add_row("geometric mean", "", "", f"{mean(loads):.2f}", "", "", f"{mean(ratios):.2f}")
    table.add_row("worst", "", "", f"{max(loads):.2f}", "", "", f"{max(ratios):.2f}")
    table.title = f"{threads} thread{'s' if threads > 1 else ''}"
    Console(width=140).print(table)


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def print_calls(folder: Path) -> None:
    """Microseconds of a call where the model itself takes next to none."""
    table = Table("model", "us", "stock us", "ratio", title="calls of small models, 1 thread")
    vad = [str(path) for path in packaged() if path.name == "silero_vad.onnx"]
    for path in [one_node(folder), *vad]:
        ours, stock = sessions(path, 1)
        feeds = feeds_of(path, stock, 0)
        least = fastest(calls_of(ours, stock, feeds), 1000)
        cells = [f"{1e6 * seconds:.1f}" for seconds in least.values()]
        table.add_row(Path(path).stem, *cells, f"{least['ours'] / least['stock']:.2f}")
    Console(width=140).print(table)


def one_node(folder: Path) -> str:
    """Writes a model that adds two vectors."""
    from onnx import TensorProto, helper, save

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in "abc"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])], "one", values[:2], values[2:]
    )
    path = folder / "one_node.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, path)
    return str(path)


def calls_of(ours: Any, stock: Any, feeds: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """A run of each."""
    return {"ours": lambda: ours.run(None, feeds), "stock": lambda: stock.run(None, feeds)}


def fastest(calls: dict[str, Callable[[], Any]], repeats: int = REPEATS) -> dict[str, float]:
    """The least seconds of each call, made in turn."""
    least = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + LEAST_SECONDS
    done = 0
    while done < repeats or time.perf_counter() < end:
        done += 1
        for who, call in calls.items():
            start = clock[0]()
            call()
            least[who] = min(least[who], clock[0]() - start)
    return least


def print_memory(paths: list[str]) -> None:
    """Resident memory of both, each session in a process of its own."""
    memory = Table(
        "model", "", "import", "loaded", "peak", "idle", "predicted for the largest shape"
    )
    for path in paths:
        for who in ("ours", "stock"):
            found = json.loads(
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.inference", "--resident", who, path],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            cells = [f"{found[key]:.1f}" for key in ("import", "loaded", "peak", "idle")]
            memory.add_row(Path(path).stem, who, *cells, found["predicted"])
    Console(width=140).print(memory)
    print("Resident memory in MiB.")


def packaged() -> list[Path]:
    """The models inside the installed packages."""
    found: list[Path] = []
    for package, pattern in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        if spec and spec.origin:
            found += sorted(Path(spec.origin).parent.glob(pattern))
    return found


def feeds_of(path: str, session: Any, i: int) -> dict[str, Any]:
    """Random feeds; open sizes grow with `i`."""
    random = np.random.default_rng(i)
    sizes = next(
        (SIZES[key] for key in SIZES if f"_{key}_" in path or f"{key}_infer" in path), None
    )
    feeds: dict[str, Any] = {}
    for value in session.get_inputs():
        fixed = (
            {"input": (1, 576), "state": (2, 1, 128)}.get(value.name) if "vad" in path else sizes
        )
        shape = []
        for d, size in enumerate(value.shape):
            given = fixed[d] if fixed and d < len(fixed) else NAMED_SIZES.get(size, 1 + i)
            grows = sizes is not None and d == len(value.shape) - 1
            step = 64 if grows else 32 if size == "length" else 0
            shape.append(size if isinstance(size, int) else given + step * i)
        if value.name == "sr":
            feeds[value.name] = np.asarray(16000)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, value.type[7:-1])
        elif "int" in value.type:
            feeds[value.name] = random.integers(0, 100, shape).astype(value.type[7:-1])
        else:
            feeds[value.name] = random.standard_normal(shape).astype("float32")
    return feeds


def sessions(path: str, threads: int) -> tuple[Any, Any]:
    """(ours, stock)"""
    return open_session("ours", path, threads), open_session("stock", path, threads)


def open_session(who: str, path: str, threads: int = 1) -> Any:
    if who == "ours":
        from ortmodule_py.inference import InferenceSession, SessionOptions

        ours = SessionOptions()
        ours.intra_op_num_threads = threads
        return InferenceSession(path, ours)
    import onnxruntime

    stock = onnxruntime.SessionOptions()
    stock.intra_op_num_threads = threads
    stock.log_severity_level = 3
    return onnxruntime.InferenceSession(path, stock, providers=["CPUExecutionProvider"])


def load_ratio(path: str, threads: int, feeds: dict[str, Any]) -> float:
    """Time to make a session and run it once, ours / stock's."""

    def load(who: str) -> None:
        open_session(who, path, threads).run(None, feeds)

    least = fastest({"ours": lambda: load("ours"), "stock": lambda: load("stock")}, 3)
    return least["ours"] / least["stock"]


def times(path: str, threads: int) -> tuple[list[list[str]], float, float]:
    """Rows of the table by shape, the ratio of load times and the mean ratio of times."""
    ours, stock = sessions(path, threads)
    load = load_ratio(path, threads, feeds_of(path, stock, 0))
    rows, ratios = [], []
    shapes: set[str] = set()
    for i in range(2):
        feeds = feeds_of(path, stock, i)
        shape = "x".join(map(str, next(iter(feeds.values())).shape))
        if shape in shapes:
            continue
        shapes.add(shape)
        results, wanted = ours.run(None, feeds), stock.run(None, feeds)
        worst = max(
            float(np.abs(a.astype("float64") - b).max()) if a.size else 0.0
            for a, b in zip(results, wanted, strict=True)
        )
        least = fastest(calls_of(ours, stock, feeds))
        ratios.append(least["ours"] / least["stock"])
        cells = [f"{1e3 * seconds:.3f}" for seconds in least.values()]
        begin = [Path(path).stem, shape, f"{worst:.1e}", "" if rows else f"{load:.2f}"]
        rows.append([*begin, *cells, f"{ratios[-1]:.2f}"])
    return rows, load, mean(ratios)


def resident(who: str, path: str) -> dict[str, Any]:
    """MiB of this process as it opens and runs a session."""
    if who == "ours":
        import ortmodule_py  # noqa: F401
    else:
        import onnxruntime  # noqa: F401
    found: dict[str, Any] = {"import": _status("VmRSS")}
    session = open_session(who, path)
    found["loaded"] = _status("VmRSS")
    for i in range(3):
        session.run(None, feeds_of(path, session, i))
    found["peak"], found["idle"] = _status("VmHWM"), _status("VmRSS")
    found["predicted"] = ""
    if who == "ours":
        report = session.memory(feeds_of(path, session, 2))
        found["predicted"] = f"{report.total_bytes / 2**20:.1f} MiB" + (
            "" if report.exact else " at least"
        )
    return found


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    main()
