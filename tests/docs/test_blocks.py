"""Every code block of README.md and docs/ runs, and shows what comes out of it.

A page's Python blocks run in order in one process, each after the page's setup below. A block
of output begins with `$ command`, or stands behind a comment `<!-- output of: command -->`; its
lines must be among those of the command, where any number stands for any other. What cannot run has
a comment `<!-- not run: reason -->`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forked_process
from tests.fresh_process import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_SMALL_MODEL = """
import torch
from torch import nn
from ortmodule_py import ORTModule

ORTModule(nn.Linear(16, 4)).save_onnx(
    "model.onnx", torch.randn(8, 16), input_names=["x"], output_names=["y"], dynamic_shapes={"x": {0: "batch"}}
)
"""

SETUP = {
    "README.md": _SMALL_MODEL + "x = torch.randn(8, 16)",
    "quick_start_inference.md": _SMALL_MODEL,
    "migrating_onnxruntime.md": _SMALL_MODEL + "import numpy as np",
    "optimizers.md": """
import torch
from torch import nn

model = nn.Linear(4, 2)
loss = model(torch.randn(3, 4)).sum()
""",
    "settings.md": """
from torch import nn

model = nn.Linear(4, 2)
""",
    "compatibility.md": """
import torch
from torch import nn
from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

model = ORTModule(nn.Linear(4, 2), DebugOptions(log_level=LogLevel.ERROR))
model(torch.randn(3, 4)).sum().backward()
""",
    "inference.md": """
import numpy as np
import onnx
import torch
from torch import nn
from ortmodule_py import ORTModule

ORTModule(nn.Linear(8, 2)).save_onnx(
    "model.onnx", torch.randn(4, 8), input_names=["x"], output_names=["y"], dynamic_shapes={"x": {0: "batch"}}
)
""",
    "memory_optimizer.md": """
import torch
from torch import nn
from ortmodule_py import ORTModule

model = nn.Embedding(64, 256)
input_ids, labels = torch.randint(64, (2, 5)), torch.randint(64, (2, 5))
hidden = torch.randn(2, 5, 256)
""",
    "quantization.md": """
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
weights = [numpy_helper.from_array(random.standard_normal((64, 64)).astype(np.float32), name) for name in ("w", "v")]
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 64]) for name in ("x", "y")]
nodes = [
    helper.make_node("MatMul", ["x", "w"], ["h"], "one"),
    helper.make_node("Relu", ["h"], ["r"], "relu"),
    helper.make_node("MatMul", ["r", "v"], ["y"], "two"),
]
graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
feeds = [{"x": random.standard_normal((4, 64)).astype(np.float32)} for _ in range(3)]
""",
}


@dataclass
class Block:
    """A fenced block and what the comment before it says."""

    page: Path
    line: int
    language: str
    comment: str
    text: str

    @property
    def command(self) -> str | None:
        """What prints this block, in a shell."""
        first = self.text.partition("\n")[0]
        if not self.language and first.startswith("$ "):
            return first[2:]
        if self.comment.startswith("output of:"):
            return self.comment.removeprefix("output of:").strip()
        return None

    @property
    def reason_not_run(self) -> str:
        """Why it cannot run; empty where it can."""
        given = self.comment.startswith("not run:")
        return self.comment.removeprefix("not run:").strip() if given else ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def _blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    comment, opened = "", None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```") and opened is None:
            opened = Block(page, number, line[3:].strip(), comment, "")
        elif line.startswith("```") and opened is not None:
            found.append(opened)
            comment, opened = "", None
        elif opened is not None:
            opened.text += line + "\n"
        elif line.strip():
            match = re.fullmatch(r"<!-- (.*) -->", line.strip())
            comment = match.group(1) if match else ""
    assert opened is None, f"{opened} is not closed"
    return found


BLOCKS = [block for page in PAGES for block in _blocks(page)]


def _program(block: Block) -> str:
    """The statements, without the prompts of an interactive session."""
    lines = block.text.splitlines()
    if not any(line.startswith(">>> ") for line in lines):
        return block.text
    return "\n".join(line[4:] for line in lines if line.startswith((">>> ", "... ")))


def test_every_block_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) >= 15
    for block in BLOCKS:
        if block.language.startswith("{"):  # a directive of the site, no code
            continue
        runs = block.language == "python" or block.command is not None
        assert runs != bool(block.reason_not_run), f"{block}: {block.language} {block.comment}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if "```python" in p.read_text()], ids=str)
def test_python_blocks(page: Path, tmp_path: Path) -> None:
    setup = SETUP.get(page.name, "")
    parts = [
        f"# {block}\n{setup}\n{_program(block)}"
        for block in BLOCKS
        if block.page == page and block.language == "python" and not block.reason_not_run
    ]
    finished = forked_process.run(
        "-c", "\n".join(parts), cwd=tmp_path, variables={"ORTMODULE_LOG_LEVEL": "ERROR"}
    )
    assert finished.returncode == 0, finished.stderr


def _shape(line: str) -> str:
    """A line without its numbers and the width of its columns."""
    return re.sub(r"\s+", " ", re.sub(r"\d[\d,.]*", "0", line)).strip()


def _is_shown(line: str, printed: list[str]) -> bool:
    wanted = _shape(line)
    if wanted.endswith("..."):
        return any(other.startswith(wanted[:-3].strip()) for other in printed)
    return wanted in printed


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in BLOCKS if b.command], ids=str)
def test_output(block: Block) -> None:
    assert block.command is not None
    words = shlex.split(block.command)
    start = words.index("python")
    variables = dict(word.split("=", 1) for word in words[:start])
    variables["ORTMODULE_MACHINE_RATES"] = "estimate"
    finished = forked_process.run(*words[start + 1 :], variables=variables)
    assert finished.returncode == 0, finished.stderr
    printed = [_shape(line) for line in (finished.stderr + finished.stdout).splitlines()]
    missing = [
        line
        for line in block.text.splitlines()
        if line.strip() and not line.startswith("$ ") and not _is_shown(line, printed)
    ]
    assert not missing, "\n".join([*missing, "but it printed", finished.stderr, finished.stdout])
