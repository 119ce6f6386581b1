"""`run model.onnx --feeds x.npz`: runs a model once or many times."""

from __future__ import annotations

import json
import statistics
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ortmodule_py.commands.command import Command, given_sizes, parser, stage
from ortmodule_py.inference import InferenceSession, SessionOptions
from ortmodule_py.inference.feed_files import read_feeds
from ortmodule_py.inference.model_facts import NodeArg
from ortmodule_py.inference.ort_value import numpy_type
from ortmodule_py.inference.replaced_file import replaced_file

_SUMMARY = "runs an ONNX model on arrays of an .npz file, or on random ones"
_EPILOG = """examples:
  run model.onnx --feeds x.npz --out y.npz
  run model.onnx batch=8 --repeat 100"""


def run(arguments: list[str]) -> int:
    """Runs the model, prints or saves its outputs."""
    options = _parser().parse_args(arguments)
    if options.repeat < 1:
        raise ValueError(f"[run] --repeat must be at least 1, but found {options.repeat}")
    settings = SessionOptions()
    settings.intra_op_num_threads = options.threads
    limit = {"memory_limit": options.memory_limit} if options.memory_limit else {}
    with stage(f"opening {options.model}", options.quiet):
        session = InferenceSession(options.model, settings, **limit)
    feeds = _feeds(session, options.feeds, given_sizes(options.sizes))
    memory = session.memory(feeds)
    results, times_ms = _timed(session, feeds, options.repeat, options.quiet)
    named = {o.name: r for o, r in zip(session.get_outputs(), results, strict=True)}
    if options.out is not None:
        arrays = {name: value for name, value in named.items() if isinstance(value, np.ndarray)}
        _save(options.out, arrays)
        print(f"wrote {len(arrays)} outputs to {options.out}", file=sys.stderr)
    facts = {
        "outputs": {name: _facts(value) for name, value in named.items()},
        "peak_bytes": memory.peak_bytes,
        "weights_bytes": memory.weights_bytes,
        "first_run_ms": times_ms[0],
        "median_ms": statistics.median(times_ms[1:] or times_ms),
        "runs": len(times_ms),
    }
    print(json.dumps(facts, indent=1) if options.json else _text(facts, named))
    return 0


def _parser() -> Any:
    given = parser("run", _SUMMARY, _EPILOG)
    given.add_argument("model", help="an .onnx file")
    given.add_argument("sizes", nargs="*", metavar="NAME=SIZE", help="sizes of random inputs")
    given.add_argument("--feeds", type=Path, metavar="x.npz", help="arrays by input name")
    given.add_argument("--out", type=Path, metavar="y.npz", help="where outputs are written")
    given.add_argument("--repeat", type=int, default=1, metavar="N", help="runs, for their time")
    given.add_argument("--threads", type=int, default=0, metavar="N", help="0: one for each core")
    given.add_argument("--memory-limit", metavar="512MiB", help="refuse runs that take more")
    given.add_argument("--json", action="store_true", help="facts about outputs, time and bytes")
    given.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return given


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An .npz file, written at once; strings get numpy's own type.

    numpy.savez refuses some names, such as "file".
    """
    with replaced_file(path) as part, zipfile.ZipFile(part, "w") as archive:
        for name, given in arrays.items():
            array = given.astype(str) if given.dtype.kind == "O" else given
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _feeds(session: InferenceSession, path: Path | None, sizes: dict[str, Any]) -> dict[str, Any]:
    inputs = session.get_inputs()
    if path is not None:
        return read_feeds(path, "[run] --feeds")
    shapes = {value.name: _shape(value, sizes) for value in inputs}
    random = np.random.default_rng(0)
    feeds = {value.name: _random(value, shapes[value.name], random) for value in inputs}
    texts = " ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items())
    print(f"random inputs: {texts}", file=sys.stderr)
    return feeds


def _shape(value: NodeArg, sizes: dict[str, Any]) -> tuple[int, ...]:
    """The shape of an input whose open sizes the command line gives."""
    given = sizes.get(value.name)
    if isinstance(given, int):
        given = (given,)
    named = [sizes.get(size, size) if isinstance(size, str) else size for size in value.shape]
    shape = named if given is None else given
    open_sizes = [size for size in shape if not isinstance(size, int)]
    if open_sizes:
        missing = [f"{size}=N" for size in open_sizes if size is not None]
        raise ValueError(
            f"[run] without --feeds all sizes must be given, but found input '{value.name}' of shape "
            f"{value.shape}; add {' '.join(missing) or f'{value.name}=NxM'}"
        )
    return tuple(shape)


def _random(value: NodeArg, shape: tuple[int, ...], random: np.random.Generator) -> Any:
    """Standard normal floats; integers are 0 or 1, which most tables have a row for."""
    if not value.type.startswith("tensor(") or value.type == "tensor(string)":
        raise ValueError(
            f"[run] random inputs must be tensors of numbers, but found '{value.name}' of type "
            f"{value.type}; give --feeds"
        )
    kind = np.dtype(numpy_type(value.type))
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2, shape).astype(kind)


def _timed(
    session: InferenceSession, feeds: dict[str, Any], repeat: int, quiet: bool
) -> tuple[list[Any], list[float]]:
    """The results of the last run, and milliseconds of each."""
    results: list[Any] = []
    times_ms: list[float] = []
    with stage(f"running {repeat} time{'s' * (repeat > 1)}", quiet) as news:
        for number in range(1, repeat + 1):
            begin = time.perf_counter()
            results = session.run(None, feeds)
            times_ms.append((time.perf_counter() - begin) * 1e3)
            if number % max(repeat // 100, 1) == 0:
                news(f"{number} of {repeat}")
    return results, times_ms


def _facts(value: Any) -> dict[str, Any]:
    if not isinstance(value, np.ndarray):
        return {"type": type(value).__name__}
    facts: dict[str, Any] = {"type": str(value.dtype), "shape": list(value.shape)}
    if value.size and value.dtype.kind in "fiub":
        wide: Any = value.astype(np.float64)
        facts |= {"least": wide.min(), "mean": wide.mean(), "largest": wide.max()}
    return facts


def _text(facts: dict[str, Any], named: dict[str, Any]) -> str:
    lines = []
    for name, row in facts["outputs"].items():
        lines.append(f"{name}: {row['type']} {row.get('shape', '')}")
        if "mean" in row:
            first = ", ".join(f"{x:.6g}" for x in named[name].ravel()[:5])
            lines.append(
                f"  least {row['least']:.6g}, mean {row['mean']:.6g}, largest {row['largest']:.6g}; "
                f"first {first}"
            )
    lines.append(
        f"memory: weights {facts['weights_bytes']:,} bytes, run {facts['peak_bytes']:,} bytes at its peak"
    )
    median = f", median of the others {facts['median_ms']:.2f} ms" if facts["runs"] > 1 else ""
    lines.append(f"time: first run {facts['first_run_ms']:.2f} ms{median}")
    return "\n".join(lines)


COMMAND = Command(_SUMMARY, run)
