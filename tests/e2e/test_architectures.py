"""Small architectures of `benchmarks.architectures`, one of each kind of difficulty."""

from __future__ import annotations

import pytest
import torch

from benchmarks.architecture_worker import measure


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "graph-attention",  # scatter_reduce and index_add over edges
        "dlrm",  # bags of embeddings
        "vq-vae",  # a code book that is a buffer, straight-through gradients
        "discriminator",  # spectral norm: a power iteration in buffers, with each forward
    ],
)
def test_trains_as_in_eager(name: str) -> None:
    torch._dynamo.reset()
    row = measure(name)
    assert row["problems"] == []
    assert row["report"]["compiled"]
    assert row["report"]["captures"] <= 2
    assert row["report"]["graph_breaks"] == []
    assert row["outside"][0] == 0, "eager operators in the backward of the loss"
