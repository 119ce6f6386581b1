"""`python -m benchmarks.inference [MODEL.onnx ...]`: sessions of ours beside stock onnxruntime's.

Without arguments: the models inside rapidocr-onnxruntime, silero-vad and magika. One thread, calls in
turn, the least of several; each model at shapes that neither session has seen. Then, each in a process
of its own, resident memory after the import, after loading, at the peak of three shapes, and idle.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

REPEATS = 7
PACKAGES = {
    "rapidocr_onnxruntime": "models/*.onnx",
    "silero_vad": "data/*.onnx",
    "magika": "models/*/model.onnx",
}
SIZES = {"det": (1, 3, 320, 320), "rec": (1, 3, 48, 320), "cls": (1, 3, 48, 192)}


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--memory":
        print(json.dumps(resident(sys.argv[2], sys.argv[3])))
        return
    paths = sys.argv[1:] or [str(path) for path in packaged()]
    table = Table("model", "shape", "largest difference", "first ms", "ms", "stock ms", "ratio")
    for path in paths:
        for row in times(path):
            table.add_row(*row)
    Console(width=140).print(table)
    memory = Table(
        "model", "", "import", "loaded", "peak", "idle", "predicted for the largest shape"
    )
    for path in paths:
        for who in ("ours", "stock"):
            found = json.loads(
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.inference", "--memory", who, path],
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
            given = fixed[d] if fixed and d < len(fixed) else 1 + i
            grows = fixed is not None and sizes is not None and d == len(value.shape) - 1
            shape.append(size if isinstance(size, int) else given + 64 * i * grows)
        if value.name == "sr":
            feeds[value.name] = np.asarray(16000)
        elif "int" in value.type:
            feeds[value.name] = random.integers(0, 100, shape).astype(value.type[7:-1])
        else:
            feeds[value.name] = random.standard_normal(shape).astype("float32")
    return feeds


def sessions(path: str) -> tuple[Any, Any]:
    """(ours, stock), one thread each."""
    return open_session("ours", path), open_session("stock", path)


def open_session(who: str, path: str) -> Any:
    if who == "ours":
        from ortmodule_py.inference import InferenceSession, SessionOptions

        ours = SessionOptions()
        ours.intra_op_num_threads = 1
        return InferenceSession(path, ours)
    import onnxruntime

    stock = onnxruntime.SessionOptions()
    stock.intra_op_num_threads = 1
    stock.log_severity_level = 3
    return onnxruntime.InferenceSession(path, stock, providers=["CPUExecutionProvider"])


def times(path: str) -> list[list[str]]:
    ours, stock = sessions(path)
    rows = []
    for i in range(3):
        feeds = feeds_of(path, stock, i)
        start = time.perf_counter()
        results = ours.run(None, feeds)
        first = time.perf_counter() - start
        wanted = stock.run(None, feeds)
        worst = max(
            float(np.abs(a.astype("float64") - b).max()) if a.size else 0.0
            for a, b in zip(results, wanted, strict=True)
        )
        least = {"ours": float("inf"), "stock": float("inf")}
        for _ in range(REPEATS):
            for who, session in (("ours", ours), ("stock", stock)):
                start = time.perf_counter()
                session.run(None, feeds)
                least[who] = min(least[who], time.perf_counter() - start)
        shape = "x".join(map(str, next(iter(feeds.values())).shape))
        ratio = f"{least['ours'] / least['stock']:.2f}"
        cells = [f"{1e3 * seconds:.2f}" for seconds in (first, least["ours"], least["stock"])]
        rows.append([Path(path).stem, shape, f"{worst:.1e}", *cells, ratio])
    return rows


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
