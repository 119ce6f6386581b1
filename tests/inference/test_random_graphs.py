"""Random graphs against stock onnxruntime without optimizations, at three sizes each."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from ortmodule_py import InferenceSession
from tests.inference.random_graphs import CALLS, RandomGraph
from tests.inference.test_session import ONE_THREAD

GRAPHS = 150
"""Graphs of a test: a second."""


def check(seed: int) -> None:
    graph = RandomGraph(seed)
    model = graph.model(steps=graph.choose.randint(4, 24)).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours = InferenceSession(model, ONE_THREAD)
    for call in CALLS:
        feeds = graph.feeds(call)
        for got, wanted in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            largest = np.abs(wanted, where=np.isfinite(wanted), out=np.zeros_like(wanted)).max()
            np.testing.assert_allclose(
                got, wanted, rtol=1e-3, atol=1e-3 * max(1.0, float(largest)), err_msg=f"seed {seed}"
            )


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1000, 4000, 1000))]
)
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + GRAPHS):
        check(seed)
