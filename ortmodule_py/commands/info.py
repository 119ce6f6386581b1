"""`info`: versions, processor, GPU, and what is wrong with this installation and how to mend it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ortmodule_py
from ortmodule_py import _build_info
from ortmodule_py.commands.command import Command, parser

_SUMMARY = "versions, processor, GPU, and what is wrong here and how to mend it"
_BESIDE = ("numpy", "rich", "matplotlib", "onnx", "onnxruntime", "transformers", "accelerate")
_FLAGS = {"avx2": "avx2", "avx512": "avx512bw", "avx512_vnni": "avx512_vnni", "amx": "amx_int8"}


@dataclass
class Info:
    """What the command prints. A problem keeps something from working; a note does not."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    """What is wrong, and what to do."""
    notes: list[tuple[str, str]] = field(default_factory=list)

    def problem(self, what: str, remedy: str) -> None:
        """Adds a problem."""
        self.problems.append((what, remedy))

    def note(self, what: str, remedy: str) -> None:
        """Adds a note."""
        self.notes.append((what, remedy))

    def text(self) -> str:
        """A line for each fact, then what was found."""
        lines = [f"{name:<20}{_shown(value)}" for name, value in self.facts.items()]
        for title, found in (("problem", self.problems), ("note", self.notes)):
            for what, remedy in found:
                lines += [f"{title}: {what}", f"  {remedy}"]
        return "\n".join([*lines, "" if self.problems else "no problems found"]).rstrip("\n")


def gather() -> Info:
    """Everything about this installation. Imports torch if it is the right one."""
    info = Info()
    _package(info)
    _machine(info)
    training = _torch(info)
    if training:
        _gpu(info)
        _variables(info)
    _inference(info)
    return info


def _package(info: Info) -> None:
    info.facts |= {
        "ortmodule_py": ortmodule_py.__version__,
        "installed as": "source tree" if _build_info.in_source_tree() else "wheel",
        "in": str(Path(ortmodule_py.__file__).parent),
        "Python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.platform()}, {' '.join(platform.libc_ver())}",
    }
    for name in _BESIDE:
        try:
            info.facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            info.facts[name] = None
    if info.facts["matplotlib"] is None:
        info.note(
            "matplotlib is not installed, so nothing draws pictures",
            "python -m pip install matplotlib",
        )


def _machine(info: Info) -> None:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    pairs = (line.partition(":") for line in text.splitlines())
    entries = {name.strip(): value.strip() for name, _, value in pairs}
    flags = set(entries.get("flags", "").split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    info.facts |= {
        "processor": entries.get("model name", platform.processor() or platform.machine()),
        "cores": cores,
        "instruction sets": [name for name, flag in _FLAGS.items() if flag in flags]
        or ["baseline"],
    }
    try:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        info.facts["memory"] = f"{pages / 2**30:.1f} GiB"
    except (ValueError, OSError):
        pass
    if flags and "avx2" not in flags:
        info.note(
            "this processor has no AVX2, so the slowest kernels run",
            "use a processor of 2014 or later",
        )


def _torch(info: Info) -> bool:
    """Whether training can be imported."""
    found = _build_info.installed_torch()
    try:
        built = _build_info.built_for()
    except ImportError as error:
        info.problem("the extension of training is missing", str(error))
        return False
    info.facts["built for"] = f"torch {built['torch']}, CUDA {built['cuda'] or 'none'}"
    info.facts["torch"] = None
    if found is not None:
        info.facts["torch"] = f"{found['torch']}, CUDA {found['cuda'] or 'none'}"
    try:
        _build_info.check_torch(found)
    except ImportError as error:
        what, _, remedy = str(error).partition(". ")
        if found is None:  # a choice where only files of models are run
            info.note("without torch there is inference only", remedy)
        else:
            info.problem(what, remedy)
        return False
    try:
        facts = ortmodule_py.build_info()
    except Exception as error:
        info.problem(f"training cannot be imported: {error}", f"install again: {_reinstall()}")
        return False
    info.facts["kernels built for"] = facts["cpu_isas"]
    info.facts["CUDA kernels"] = facts["cuda"].get("architectures") if facts["cuda"] else None
    failed = {name: state for name, state in facts["dynamo_patches"].items() if state != "holds"}
    for name, state in failed.items():
        info.note(
            f"the Dynamo patch {name} does not apply to this torch: {state}",
            "code that needs it runs in eager PyTorch",
        )
    return True


def _reinstall() -> str:
    if _build_info.in_source_tree():
        return _build_info.BUILD_COMMAND
    return "python -m pip install --force-reinstall --no-deps <the wheel>"


def _gpu(info: Info) -> None:
    import torch

    if not torch.cuda.is_available():
        info.facts["GPU"] = None
        if Path("/dev/nvidia0").exists():
            info.note(
                "this machine has a GPU, but torch does not see it",
                "install a CUDA build of torch and the ortmodule_py of that torch",
            )
        return
    info.facts["GPU"] = [
        f"{torch.cuda.get_device_name(i)} (sm_{''.join(map(str, torch.cuda.get_device_capability(i)))})"
        for i in range(torch.cuda.device_count())
    ]
    if not info.facts["CUDA kernels"]:
        info.problem(
            "torch sees a GPU, but this build has no CUDA kernels",
            "install the wheel with .cu in its version, or build with ORTMODULE_CUDA=ON",
        )


def _variables(info: Info) -> None:
    """Variables that are set, and those that are unknown, wrong or without effect."""
    from ortmodule_py.options.engine import EngineOptions
    from ortmodule_py.options.variables import PREFIX, notice

    given = {name: value for name, value in sorted(os.environ.items()) if name.startswith(PREFIX)}
    for name, value in given.items():
        info.facts[name] = value
        what = notice(name, value)
        if what is not None:
            info.note(what, f"unset {name}")
    try:
        bypass = EngineOptions.from_environment().bypass
    except ValueError as error:
        info.problem(str(error), "correct or unset it")
        return
    if bypass:
        info.note("eager PyTorch runs all modules", "unset ORTMODULE_BYPASS")


def _inference(info: Info) -> None:
    """Whether the engine computes: the smallest model, in memory."""
    try:
        session = ortmodule_py.InferenceSession(_RELU_MODEL)
        (y,) = session.run(None, {"x": np.array([-1, 2], np.float32)})
        right = y.tolist() == [0.0, 2.0]
    except Exception as error:
        info.problem(f"a session cannot run: {error}", f"install again: {_reinstall()}")
        return
    if not right:
        info.problem("a session computes wrong results", "please open an issue")


# y[2] = Relu(x[2]), operator set 13.
_RELU_MODEL = bytes.fromhex(
    "08073a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020802"
    "620f0a0179120a0a08080112040a02080242040a00100d"
)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def run(arguments: list[str]) -> int:
    """Prints the facts. Returns 1 if there is a problem."""
    given = parser("info", _SUMMARY, "Put the output into reports of errors.")
    given.add_argument("--json", action="store_true", help="as JSON")
    options = given.parse_args(arguments)
    info = gather()
    if options.json:
        pairs = {
            name: [{"what": what, "remedy": remedy} for what, remedy in found]
            for name, found in (("problems", info.problems), ("notes", info.notes))
        }
        print(json.dumps({"facts": info.facts, **pairs}, indent=1))
    else:
        print(info.text())
    return 1 if info.problems else 0


COMMAND = Command(_SUMMARY, run)
