"""Checks the layout rules of CONTRIBUTING.md: file length, file names, directions of includes and imports.

Prints one line per violation and exits with 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 600
CODE_SUFFIXES = {".cpp", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake"}
CPP_SUFFIXES = {".cpp", ".h", ".cu", ".cuh"}
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc"}

# What each folder of csrc may include of the others; the longest folder named here decides. Kernel
# facts are data (KernelDef); the kernels' code is reached through the registry only.
KERNEL_FACTS = {"kernels/kernel.h"}
CORE = {"base", "ir", "onnx", "ops"}
GRAPH_STAGES = CORE | {"exporter", "gradient", "lower", "optimizer"}
PLANNED = GRAPH_STAGES | {"optimizer/memory", "plan"}
MAY_INCLUDE: dict[str, set[str]] = {
    "base": {"base"},
    "ir": {"base", "ir"},
    "onnx": {"base", "ir", "onnx"},
    "quantization": {"base", "ir", "onnx", "quantization"},
    "ops": CORE,
    "exporter": CORE | {"exporter"} | KERNEL_FACTS,
    "importer": CORE | {"importer"},
    "gradient": CORE | {"gradient"},
    "lower": CORE | {"lower"} | KERNEL_FACTS,
    "plan": CORE | {"lower", "plan"} | KERNEL_FACTS,
    "optimizer": GRAPH_STAGES,
    "optimizer/memory": PLANNED,
    "runtime": PLANNED | {"runtime"} | KERNEL_FACTS,
    "session": PLANNED | {"runtime", "session"} | KERNEL_FACTS,
    "inference": PLANNED | {"importer", "runtime", "session", "inference"} | KERNEL_FACTS,
    "kernels": {"base", "ir", "kernels"},
    "kernels/cpu": {"base", "ir", "kernels", "kernels/cpu"},
    "kernels/cuda": {"base", "ir", "kernels", "kernels/cuda"},
    "kernels/cublas": {"base", "ir", "kernels", "kernels/cublas"},
    "kernels/cudnn": {"base", "ir", "kernels", "kernels/cudnn"},
    "kernels/aten": {"base", "ir", "kernels", "kernels/aten"},
    "bindings": PLANNED
    | {"runtime", "session", "bindings", "bindings/casts"}
    | {"kernels", "kernels/cpu", "kernels/cuda", "kernels/aten"},
    "bindings/casts": {"base"},
    "bindings/inference": PLANNED
    | {"importer", "runtime", "session", "inference", "quantization"}
    | {"bindings/inference", "bindings/casts"},
}

# Foreign headers and the only places that may see them.
FOREIGN: list[tuple[str, re.Pattern[str], tuple[str, ...]]] = [
    (
        "torch and Python",
        re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$"),
        ("csrc/bindings/", "csrc/kernels/aten/"),
    ),
    (
        "protobuf",
        re.compile(r"^google/protobuf/|\.pb\.h$"),
        ("csrc/onnx/onnx_file.cpp", "csrc/onnx/onnx_wire.cpp"),
    ),
    ("zlib", re.compile(r"^zlib\.h$"), ("csrc/base/packed_bytes.cpp",)),
    (
        "CUDA",
        re.compile(r"^(cuda|cublas|cudnn|cub/|thrust/|cooperative_groups)"),
        (
            "csrc/kernels/cuda/",
            "csrc/kernels/cublas/",
            "csrc/kernels/cudnn/",
            "csrc/bindings/cuda/",
            "tests/cublas_emulation/",
            "tests/cuda_emulation/",
        ),
    ),
]
# Each package of ortmodule_py imports only from those that stand left of it, and modules beside
# them (`module.py`, `check.py` ...) from all of them.
PACKAGES = (
    "inference",
    "quantization",
    "onnxruntime",
    "base",
    "options",
    "trace",
    "lower",
    "dynamo",
    "compile",
    "report",
    "wrap",
)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def project_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in names.splitlines() if (ROOT / name).is_file()]


def folder_of(path: str) -> str:
    """Names the layer of a path below csrc: "ir/graph.h" -> "ir"; "session.h", which stands beside
    the folder of its parts, -> "session"."""
    parts = PurePosixPath(path).parts
    if len(parts) == 1:
        return PurePosixPath(path).stem
    inner = "/".join(parts[:2])
    return inner if inner in MAY_INCLUDE else parts[0]


def check_size_and_name(name: str, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{lines} lines, more than {MAX_LINES}: it holds two ideas, split it"
    words = PurePosixPath(name).stem.lower().split("_")
    for word in sorted({words[0], words[-1]} & EMPTY_NAMES):
        yield f'"{word}" in a file name says nothing: name it after what it holds'


def check_includes(name: str, text: str) -> Iterator[str]:
    for quote, target in INCLUDE.findall(text):
        for what, pattern, places in FOREIGN:
            if pattern.search(target) and not name.startswith(places):
                yield f"includes {target}: {what} headers belong to {', '.join(places)} only"
        if quote == '"' and not target.endswith(".pb.h"):
            yield from check_direction(name, target)


def check_direction(name: str, target: str) -> Iterator[str]:
    if not name.startswith("csrc/"):
        return
    if not (ROOT / "csrc" / target).is_file():
        yield f'includes "{target}", which is no path below csrc'
        return
    layer, wanted = folder_of(name.removeprefix("csrc/")), folder_of(target)
    allowed = MAY_INCLUDE.get(layer)
    if allowed is None:
        yield f'folder "{layer}" has no include rule in tools/lint_layout.py'
    elif wanted not in allowed and target not in allowed:
        yield f'includes "{target}": {layer} may not see {wanted}'


def imported_modules(text: str) -> Iterator[str]:
    """The modules of ortmodule_py that a source imports, by their dotted path within the package."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = node.module == "ortmodule_py"
            names = [f"{node.module}.{a.name}" for a in node.names] if whole else [str(node.module)]
            if node.level:
                names = [f"ortmodule_py.{'.' * node.level}{node.module or ''}"]
        else:
            continue
        yield from (n.removeprefix("ortmodule_py.") for n in names if n.startswith("ortmodule_py."))


def check_imports(name: str, text: str) -> Iterator[str]:
    """The directions between the packages of ortmodule_py."""
    package = PurePosixPath(name).parts[1]
    if package not in PACKAGES:
        return
    needs_torch = package not in ("inference", "quantization")
    extension = "_C" if needs_torch else "_inference"
    allowed = {extension, *PACKAGES[: PACKAGES.index(package) + 1]}
    for target in imported_modules(text):
        if target.startswith("."):
            yield "relative import: name the module from ortmodule_py on"
        elif target.partition(".")[0] not in allowed:
            yield f"imports ortmodule_py.{target}: {package} may not see it"


def main() -> int:
    violations = []
    for name in project_files():
        path = PurePosixPath(name)
        if path.suffix not in CODE_SUFFIXES and path.name != "CMakeLists.txt":
            continue
        text = (ROOT / name).read_text()
        found = list(check_size_and_name(name, text))
        if path.suffix in CPP_SUFFIXES:
            found += check_includes(name, text)
        if path.suffix == ".py" and path.parts[0] == "ortmodule_py" and len(path.parts) > 2:
            found += check_imports(name, text)
        violations += [f"{name}: {message}" for message in found]
    print("\n".join(violations) or "layout: ok")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
