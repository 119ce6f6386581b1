"""`python -m ortmodule_py.ops` says what the registry holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortmodule_py.ops import main, op_rows

ROOT = Path(__file__).resolve().parents[2]


def test_every_op_stands_in_a_file_that_exists() -> None:
    for row in op_rows():
        assert (ROOT / row["file"]).is_file(), row["name"]


@pytest.mark.parametrize(
    "name", ["MatMul", "Softmax", "LayerNormalization", "Dropout", "Conv", "Gather"]
)
def test_common_ops_are_complete(name: str) -> None:
    (row,) = [row for row in op_rows() if row["name"] == name]
    assert row["gradient"] == "rule" and row["onnx"].startswith("standard")
    assert any(kernel["device"] == "cpu" for kernel in row["kernels"]), name


def test_ops_of_the_forward_can_run() -> None:
    """A kernel, a view, or a body made of others."""
    for row in op_rows():
        placeholder = row["name"] == "CustomGradient"  # lowering replaces it
        runs = row["kernels"] or row["kind"] == "view" or row["body"] or placeholder
        assert runs, row["name"]


def test_the_table_and_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["softmax"]) == 0
    text = capsys.readouterr().out
    assert "BiasSoftmax" in text and "aten" not in text.partition("ATen calls")[0]
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"]
