"""The layout rules hold, and the checker sees what it must."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lint_layout", ROOT / "tools/lint_layout.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_follows_the_rules() -> None:
    command = [sys.executable, str(ROOT / "tools/lint_layout.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("csrc/base/x.h", '#include "ir/graph.h"', "base may not see ir"),
        ("csrc/kernels/cpu/x.cpp", '#include "ops/op_def.h"', "kernels/cpu may not see ops"),
        ("csrc/onnx/x.h", '#include "ops/op_def.h"', "onnx may not see ops"),
        ("csrc/gradient/x.h", '#include "lower/lower.h"', "gradient may not see lower"),
        ("csrc/lower/x.h", '#include "plan/plan.h"', "lower may not see plan"),
        ("csrc/optimizer/fusions/x.cpp", '#include "plan/plan.h"', "optimizer may not see plan"),
        ("csrc/ops/x.cpp", "#include <ATen/ATen.h>", "torch and Python headers belong to"),
        ("csrc/ir/x.cpp", "#include <google/protobuf/arena.h>", "protobuf headers belong to"),
        (
            "csrc/onnx/onnx_reader.cpp",
            '#include "ortmodule_onnx.pb.h"',
            "protobuf headers belong to",
        ),
        ("csrc/kernels/aten/x.cpp", "#include <cuda_runtime.h>", "CUDA headers belong to"),
        ("tests/cpp/x.cpp", "#include <torch/torch.h>", "torch and Python headers belong to"),
    ],
)
def test_a_wrong_include_is_named(lint: ModuleType, name: str, line: str, message: str) -> None:
    assert [found for found in lint.check_includes(name, line + "\n") if message in found]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("csrc/plan/x.cpp", '#include "kernels/kernel.h"'),
        ("csrc/ops/x.cpp", '#include "onnx/onnx_rule.h"'),
        ("csrc/optimizer/memory/x.cpp", '#include "plan/plan.h"'),
        ("csrc/onnx/onnx_file.cpp", '#include "ortmodule_onnx.pb.h"'),
        ("csrc/onnx/onnx_wire.cpp", "#include <google/protobuf/io/coded_stream.h>"),
        ("csrc/kernels/aten/x.cpp", "#include <ATen/ops/mm.h>"),
        ("csrc/kernels/cpu/x.cpp", '#include "base/dtype.h"'),
    ],
)
def test_a_right_include_passes(lint: ModuleType, name: str, line: str) -> None:
    assert not list(lint.check_includes(name, line + "\n"))


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("base/x.py", "from ortmodule_py.options import memory", "base may not see it"),
        (
            "trace/x.py",
            "from ortmodule_py.lower.piece import lower",
            "trace may not see it",
        ),
        (
            "report/compare/x.py",
            "def f():\n    from ortmodule_py.wrap import facade",
            "report may not",
        ),
        ("wrap/x.py", "from ortmodule_py import module", "wrap may not see it"),
        ("wrap/x.py", "from . import facade", "relative import"),
    ],
)
def test_a_wrong_import_is_named(lint: ModuleType, name: str, line: str, message: str) -> None:
    assert [e for e in lint.check_imports(f"ortmodule_py/{name}", line + "\n") if message in e]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("base/x.py", "from ortmodule_py import _C"),
        ("dynamo/patches/x.py", "from ortmodule_py.lower.piece import lower"),
        ("training/x.py", "from ortmodule_py.module import ORTModule"),
    ],
)
def test_a_right_import_passes(lint: ModuleType, name: str, line: str) -> None:
    assert not list(lint.check_imports(f"ortmodule_py/{name}", line + "\n"))


def test_long_files_and_empty_names_are_named(lint: ModuleType) -> None:
    found = list(lint.check_size_and_name("csrc/ops/matmul_utils.cpp", "\n" * 601))
    assert len(found) == 2
