"""The C++ library as a user has it: an installed tree without the sources, and programs that use it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tools.torch_facts import find_torch

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((Path(__file__).parent / "cpp_programs").glob("*.cpp"))
COMPILERS = ["g++", "clang++"]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Runs without what would help a program to find libraries or Python. Returns its output."""
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "CCACHE_DIR", "LANG")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tree that was installed to one place and moved to another, as packages are."""
    build = ROOT / "build" / find_torch().build_tag
    first = tmp_path_factory.mktemp("first") / "prefix"
    with open(build / ".lock", "w") as lock:  # as setup.py: two builds in one folder spoil it
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("cmake", "--build", build, "--target", "ortmodule_cpp", cwd=ROOT)
        run("cmake", "--install", build, "--prefix", first, cwd=ROOT)
    moved = tmp_path_factory.mktemp("moved") / "prefix"
    shutil.move(first, moved)
    yield moved


def library_of(prefix: Path) -> Path:
    (library,) = prefix.glob("lib*/libortmodule_core.so")
    return library


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mlp.onnx`: x[n,4] -> y[n,classes], its sums; `digits.onnx`: the first ten pixels."""
    folder = tmp_path_factory.mktemp("models")
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((4, 10)).astype("float32"),
        "wide": np.full((10, 64), 1 / 64, "float32"),  # so that a run takes more than its outputs
        "axis": np.array([1]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
        helper.make_node("MatMul", ["y", "wide"], ["spread"]),
        helper.make_node("ReduceSum", ["spread", "axis"], ["sums"], keepdims=0),
    ]
    save(
        folder / "mlp.onnx",
        nodes,
        {"x": ["n", 4]},
        {"y": ["n", "classes"], "sums": ["n"]},
        weights,
    )
    chosen = np.zeros((28 * 28, 10), "float32")
    chosen[:10] = np.eye(10, dtype="float32")
    save(
        folder / "digits.onnx",
        [
            helper.make_node("Flatten", ["Input3"], ["flat"]),
            helper.make_node("MatMul", ["flat", "chosen"], ["Plus214_Output_0"]),
        ],
        {"Input3": [1, 1, 28, 28]},
        {"Plus214_Output_0": [1, 10]},
        {"chosen": chosen},
    )
    return folder


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: dict[str, np.ndarray],
) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10, producer_name="test")
    onnx.save(model, path)


def compiler(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.mark.parametrize("name", COMPILERS)
def test_the_example_builds_outside_of_the_source_tree_and_runs(
    installed: Path, models: Path, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "examples" / "cpp_inference", source)
    options = [f"-DCMAKE_PREFIX_PATH={installed}", f"-DCMAKE_CXX_COMPILER={compiler(name)}"]
    strict = "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Werror"
    run("cmake", "-S", source, "-B", tmp_path / "build", *options, strict, cwd=tmp_path)
    run("cmake", "--build", tmp_path / "build", cwd=tmp_path)
    program = tmp_path / "build" / "cpp_inference"
    output = run(program, models / "mlp.onnx", "n=3", cwd=tmp_path)
    assert "x: float [3, 4] = 1, 1, 1, 1, 1, ..." in output
    assert "y: float [3, 10]" in output and "sums: float [3]" in output
    predicted = re.search(r"(\d+) bytes at the peak, 132 of them outputs", output)
    measured = re.search(r"measured: (\d+) bytes at the peak", output)
    assert predicted and measured and predicted[1] == measured[1], output
    failed = subprocess.run([program, tmp_path / "none.onnx"], capture_output=True, text=True)
    assert failed.returncode == 1 and "none.onnx" in failed.stderr
    linked = run("ldd", program, cwd=tmp_path)
    assert str(installed.resolve()) in linked and "not found" not in linked
    assert not re.search(r"torch|python|libc10", linked.replace(str(tmp_path), ""), re.IGNORECASE)


@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.parametrize("source", PROGRAMS, ids=lambda path: path.stem)
def test_programs_written_for_onnxruntime_compile_and_run(
    installed: Path, models: Path, tmp_path: Path, source: Path, name: str
) -> None:
    program = tmp_path / source.stem
    headers = [f"-I{installed / 'include' / 'ortmodule' / 'onnxruntime'}", f"-I{installed}/include"]
    library = library_of(installed)
    link = [library, f"-Wl,-rpath,{library.parent}", "-pthread"]
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
    run(compiler(name), *strict, *headers, source, "-o", program, *link, cwd=tmp_path)
    arguments = [] if source.stem == "digits" else [models / "mlp.onnx"]
    output = run(program, *arguments, cwd=models)
    expected = {
        "documents": "inputs: 1",
        "explorer": "ran: 1x10",
        "digits": "probability 0.943",
        "classifier": "Error code: 2",
        "bindings": "half: 1.5",
        "memory": "asynchronous: 2 runs",
    }
    assert expected[source.stem] in output


def test_a_provider_that_is_absent_is_one_warning(
    installed: Path, models: Path, tmp_path: Path
) -> None:
    program = tmp_path / "classifier"
    flags = run(
        "pkg-config",
        "--cflags",
        "--libs",
        "ortmodule-onnxruntime",
        cwd=tmp_path,
        PKG_CONFIG_PATH=str(next(installed.glob("lib*/pkgconfig"))),
    ).split()
    source = next(path for path in PROGRAMS if path.stem == "classifier")
    run("g++", "-std=c++17", source, "-o", program, *flags, "-pthread", cwd=tmp_path)
    folder = str(library_of(installed).parent)
    output = run(program, models / "mlp.onnx", cwd=tmp_path, LD_LIBRARY_PATH=folder)
    warnings = [line for line in output.splitlines() if "CUDAExecutionProvider" in line]
    assert len(warnings) == 2 and "runs the model" in warnings[0], output  # two sessions


def test_the_library_shows_the_public_interface_only(installed: Path, tmp_path: Path) -> None:
    library = library_of(installed)
    symbols = run("nm", "-D", "--defined-only", "--demangle", library, cwd=tmp_path)
    names = [line.split(" ", 2)[2] for line in symbols.splitlines()]
    public = re.compile(
        r"^((typeinfo|typeinfo name|vtable|guard variable) for )?ortmodule::inference::v1::"
    )
    assert names and [name for name in names if not public.match(name)] == []
    needed = run("readelf", "-d", library, cwd=tmp_path)
    assert "libortmodule_core.so.0" in needed and "libprotobuf-lite" in needed
    headers = sorted((installed / "include").rglob("*.h"))
    assert headers
    for header in headers:
        assert not re.search(r"#include [<\"](torch|ATen|google|Python)", header.read_text())


def test_every_header_compiles_by_itself(installed: Path, tmp_path: Path) -> None:
    folder = installed / "include"
    for header in sorted(folder.rglob("*.h")):
        unit = tmp_path / "unit.cpp"
        unit.write_text(
            f"#include <{header.relative_to(folder)}>\n#include <{header.relative_to(folder)}>\n"
        )
        run(
            "g++",
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wshadow",
            "-Werror",
            "-fsyntax-only",
            f"-I{folder}",
            unit,
            cwd=tmp_path,
        )
