"""Six models quantized by quantize_dynamic of ours and of stock onnxruntime: files, times, errors, memory.

    python -m benchmarks.quantized_models [MODEL ...]

A model is a path, or a name of benchmarks/onnx_models.py; without arguments, an encoder, a decoder, two
ConvNets, a detector and LSTMs; `--packaged` adds those of rapidocr-onnxruntime and magika. One thread, random
feeds, default options, QInt8. Constant nodes become initializers first, since stock's tool fails on weights in
such nodes.

    file     the file of ours against stock's: "same" is the same nodes, names and weights, bit for bit
    runs     how many of the four runs of both files in both runtimes give finite outputs
    stock    time of stock's file in stock, of its time in float32
    ours     time of our file in our session, of ours in float32
    beside   time of our file in our session, of stock's file in stock
    faster   the same with `choose="faster"`, and how much of the weights it quantized; "same plan" where
             nothing gained, and the session takes the same steps
    error    largest difference from float32, of the largest output: stock, ours, `choose="faster"`

Times are medians of ratios of neighbouring calls in processor time. Then the resident memory of the quantized
encoder, in a process of its own, which has run a model of one node before but for `-first`: after
loading, and idle a second after a run, of that the pages of the library's file.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks.inference import _status, feeds_of, one_node, open_session, packaged, path_of

ENCODER = "bert"
SAMPLES = 3
LEAST_SECONDS = 4.0  # of the calls of each pair
ROUNDS = 24


KINDS = (ENCODER, "gpt2", "resnet18", "mobilenet_v2", "detector", "tagger")


def more() -> list[str]:
    names = ("det_infer.onnx", "rec_infer.onnx", "cls_infer.onnx", "model.onnx")
    return [str(path) for path in packaged() if path.name.endswith(names)]


def quantize_by_both(path: str, folder: Path) -> tuple[dict[str, str], float]:
    """The files by tool, and the part of the weights that `choose="faster"` quantizes."""
    import onnxruntime.quantization as stock

    from ortmodule_py.quantization import QuantType, quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    files = {name: str(folder / f"{name}.onnx") for name in ("stock", "ours", "faster")}
    stock.quantize_dynamic(path, files["stock"], weight_type=stock.QuantType.QInt8)
    whole = quantize_dynamic(path, files["ours"], weight_type=QuantType.QInt8, verbose=False)
    session = open_session("ours", path)
    samples = [feeds_of(path, session, 0) for _ in range(SAMPLES)]
    report = quantize_dynamic(
        path, files["faster"], choose="faster", samples=samples, verbose=False
    )
    # The report has no weights of nodes that stay in float32.
    weights = [sum(node.weight_bytes for node in each.quantized) for each in (report, whole)]
    return files, weights[0] / max(1, weights[1])


def with_initializers(path: str, folder: Path) -> str:
    """The model with its Constant nodes as initializers: stock's tool fails on weights in nodes."""
    model = onnx.load(path)
    graph = model.graph
    constants = [
        n for n in graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"
    ]
    if not constants:
        return path
    for node in constants:
        tensor = onnx.TensorProto()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
        graph.node.remove(node)
    changed = folder / Path(path).name
    onnx.save(model, changed)
    return str(changed)


def difference(one: str, other: str) -> str:
    """ "same", "same up to names", or what differs first."""
    graphs = [onnx.load(path).graph for path in (one, other)]
    named = [Counter((n.op_type, n.name, *n.input, *n.output) for n in g.node) for g in graphs]
    kinds = [Counter((n.op_type, n.domain) for n in g.node) for g in graphs]
    tensors = [
        Counter(
            (t.data_type, tuple(t.dims), numpy_helper.to_array(t).tobytes()) for t in g.initializer
        )
        for g in graphs
    ]
    if tensors[0] != tensors[1]:
        return f"{len(list((tensors[0] - tensors[1]).elements()))} weights differ"
    if kinds[0] != kinds[1]:
        more, fewer = kinds[0] - kinds[1], kinds[1] - kinds[0]
        return f"+{dict(more)} -{dict(fewer)}"
    return "same" if named[0] == named[1] else "same up to names"


def ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The median of the second call's time over the first's, in turn, either first as often."""
    one(), other()
    found: list[float] = []
    end = time.perf_counter() + LEAST_SECONDS
    while len(found) < ROUNDS or time.perf_counter() < end:
        seconds = {}
        for call in (one, other) if len(found) % 2 else (other, one):
            seconds[call] = _seconds(call)
        found.append(seconds[other] / seconds[one])
    return statistics.median(found)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _error(wanted: list[Any], found: list[Any]) -> float:
    pairs = [(a, b) for a, b in zip(wanted, found, strict=True) if a.dtype.kind == "f" and a.size]
    return max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-12)) for a, b in pairs)


def row(path: str, folder: Path) -> tuple[list[str], float, dict[str, str]]:
    """Cells of the table, the time of `choose="faster"` and the files."""
    files, share = quantize_by_both(path, folder)
    exact = {who: open_session(who, path) for who in ("stock", "ours")}
    feeds = feeds_of(path, exact["stock"], 0)
    wanted = {who: session.run(None, feeds) for who, session in exact.items()}
    runs = 0
    sessions = {}
    for file in files:
        for who in ("stock", "ours"):
            session = open_session(who, files[file])
            outputs = session.run(None, feeds)
            runs += file != "faster" and all(np.isfinite(a).all() for a in outputs)
            sessions[file, who] = session
    pairs = {"stock": ("stock", "stock"), "ours": ("ours", "ours"), "faster": ("faster", "ours")}
    stock, ours = sessions["stock", "stock"], sessions["ours", "ours"]

    def call(session: Any) -> Callable[[], Any]:
        return lambda: session.run(None, feeds)

    same = exact["ours"].plan(feeds) == sessions["faster", "ours"].plan(feeds)
    times = {
        kind: 1.0
        if same and kind == "faster"
        else ratio(call(exact[who]), call(sessions[file, who]))
        for kind, (file, who) in pairs.items()
    }
    beside = ratio(call(stock), call(ours))
    errors = [_error(wanted[who], sessions[f, who].run(None, feeds)) for f, who in pairs.values()]
    mib = " -> ".join(f"{Path(p).stat().st_size / 2**20:.1f}" for p in (path, files["ours"]))
    cells = [Path(path).stem, mib, difference(files["ours"], files["stock"]), f"{runs} of 4"]
    cells += [
        f"{times['stock']:.2f}",
        f"{times['ours']:.2f}",
        f"{beside:.2f}",
        "same plan" if same else f"{times['faster']:.2f}, {share:.0%}",
    ]
    return [*cells, " ".join(f"{100 * e:.2g} %" for e in errors)], times["faster"], files


def resident(who: str, path: str) -> dict[str, float]:
    """MiB that a session adds to this process; of `<who>-first`, with what the library takes once."""
    who, _, is_first = who.partition("-")
    if not is_first:
        small = open_session(who, one_node(Path(path).parent))
        small.run(None, feeds_of("", small, 0))
    gc.collect()
    # Idle sessions of ours give the heap's rest back, and pages of code, which are not counted.
    time.sleep(1)
    ctypes.CDLL(None).malloc_trim(0)
    before, before_files = _status("VmRSS"), _status("RssFile")
    session = open_session(who, path)
    loaded = _status("VmRSS") - before
    session.run(None, feeds_of(path, session, 0))
    time.sleep(1)
    of_files = _status("RssFile") - before_files
    return {"loaded": loaded, "idle": _status("VmRSS") - before, "of library": of_files}


def print_memory(path: str) -> None:
    size = Path(path).stat().st_size / 2**20
    print(f"resident MiB of the quantized encoder, a file of {size:.1f} MiB:")
    for who in ("ours", "ours-first", "stock", "stock-first"):
        command = [sys.executable, "-m", "benchmarks.quantized_models", "--resident", who, path]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"  {who:12}" + "  ".join(f"{k} {v:.1f} ({v / size:.2f})" for k, v in found.items()))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*")
    parser.add_argument("--packaged", action="store_true")
    parser.add_argument("--resident", metavar="WHO", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.resident:
        print(json.dumps(resident(given.resident, given.models[0])))
        return 0
    heads = ("model", "MiB", "file", "runs", "stock", "ours", "beside", "faster", "error")
    table = Table(*heads)
    worst = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        encoder = None
        models = given.models or [*KINDS, *(more() if given.packaged else ())]
        for i, model in enumerate(models):
            folder = Path(temporary) / str(i)
            folder.mkdir()
            cells, faster, files = row(with_initializers(path_of(model, folder), folder), folder)
            print("  ".join(cells), flush=True)
            table.add_row(*cells)
            worst = max(worst, faster)
            encoder = files["ours"] if model == ENCODER else encoder
        Console(width=150).print(table)
        print(f'`choose="faster"` at worst {worst:.2f} of float32')
        if encoder:
            print_memory(encoder)
    return 0 if worst <= 1.02 else 1


if __name__ == "__main__":
    sys.exit(main())
