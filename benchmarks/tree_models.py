"""`python -m benchmarks.tree_models`: forests and boosted trees of scikit-learn beside onnxruntime.

A random forest and a gradient boosting, of classes and of numbers, each on 100,000 rows, on one row and
on eight, at one and two threads: ours and onnxruntime in turn, the least of several calls. The last
column is the largest difference of results between the two.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from ortmodule_py import InferenceSession
from ortmodule_py.inference import SessionOptions

COLUMNS = 20
FITTED_ROWS = 5000
Array = np.ndarray[Any, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 8, 1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="processor time, for a busy machine")
    given = parser.parse_args()
    clock = time.process_time if given.cpu else time.perf_counter
    files = {name: converted(make()) for name, make in MODELS.items()}
    for threads in given.threads:
        table = Table("model", "rows", "ours ms", "stock ms", "ratio", "difference")
        table.title = f"{threads} threads"
        for name, file in files.items():
            for count in given.rows:
                table.add_row(
                    name, str(count), *measured(file, count, threads, given.repeats, clock)
                )
        Console(width=100).print(table)


def fitted(make: Callable[[], Any], classes: bool) -> Any:
    choose = np.random.default_rng(0)
    x = choose.normal(size=(FITTED_ROWS, COLUMNS)).astype(np.float32)
    y = x[:, 0] + x[:, 1] * x[:, 2] + np.sin(3 * x[:, 3]) + choose.normal(size=FITTED_ROWS) / 3
    return make().fit(x, np.digitize(y, [-0.5, 0.5]) if classes else y)


def forest(classes: bool) -> Any:
    from sklearn import ensemble

    kind = ensemble.RandomForestClassifier if classes else ensemble.RandomForestRegressor
    return fitted(lambda: kind(100, random_state=0), classes)


def boosting(classes: bool) -> Any:
    from sklearn import ensemble

    kind = ensemble.GradientBoostingClassifier if classes else ensemble.GradientBoostingRegressor
    return fitted(lambda: kind(n_estimators=100, max_depth=5, random_state=0), classes)


MODELS: dict[str, Callable[[], Any]] = {
    "forest, classes": lambda: forest(True),
    "forest, numbers": lambda: forest(False),
    "boosting, classes": lambda: boosting(True),
    "boosting, numbers": lambda: boosting(False),
}


def converted(model: Any) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from skl2onnx import to_onnx

        options = {"zipmap": False} if hasattr(model, "predict_proba") else None
        file = to_onnx(model, np.zeros((1, COLUMNS), np.float32), options=options)
    return bytes(file.SerializeToString())


def measured(
    file: bytes, count: int, threads: int, repeats: int, clock: Callable[[], float]
) -> tuple[str, str, str, str]:
    ours = InferenceSession(file, with_threads(SessionOptions(), threads))
    stock = onnxruntime.InferenceSession(
        file, with_threads(onnxruntime.SessionOptions(), threads), ["CPUExecutionProvider"]
    )
    feed = {"X": np.random.default_rng(1).normal(size=(count, COLUMNS)).astype(np.float32)}
    calls = max(1, 2000 // count)
    mine, other = ours.run(None, feed), stock.run(None, feed)
    difference = max(
        float(np.abs(np.asarray(a, np.float64) - b).max()) for a, b in zip(mine, other, strict=True)
    )
    least = [float("inf"), float("inf")]
    for _ in range(repeats):
        for i, session in enumerate((ours, stock)):
            begin = clock()
            for _ in range(calls):
                session.run(None, feed)
            least[i] = min(least[i], (clock() - begin) / calls * 1e3)
    return f"{least[0]:.3f}", f"{least[1]:.3f}", f"{least[0] / least[1]:.2f}", f"{difference:.1e}"


def with_threads(options: Any, threads: int) -> Any:
    options.intra_op_num_threads = threads
    return options


if __name__ == "__main__":
    main()
