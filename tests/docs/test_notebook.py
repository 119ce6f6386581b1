"""The notebook runs from a clean kernel and shows its reports as HTML with pictures."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.fresh_process import ROOT, environment

NOTEBOOK = ROOT / "examples" / "quick_start.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    """They would be those of another version."""
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert cell.cell_type == "markdown" or (not cell.outputs and cell.execution_count is None)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_reports(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=place).execute(
        env=environment(ORTMODULE_LOG_LEVEL="ERROR", OMP_WAIT_POLICY="PASSIVE")
    )
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    pages = [o.data["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    assert len(pages) == 5 and sum("<svg" in page for page in pages) == 3
    assert "as in eager PyTorch" in pages[0] and "NOT" not in pages[0]
    assert "without the memory optimizer" in pages[2]
    assert "right: 100%" in printed and "outputs differ by" in printed
