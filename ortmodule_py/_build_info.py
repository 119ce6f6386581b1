"""The torch that the extension was built for, which is checked before torch is imported.

Under another minor version of torch, loading would fail with an undefined symbol.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

BUILD_COMMAND = "python -m pip install --no-build-isolation --no-deps ."


def in_source_tree() -> bool:
    """Whether the package is used where its sources are, so that it can be built anew there."""
    return Path(__file__).resolve().parents[1].joinpath("setup.py").exists()


def built_for() -> dict[str, str]:
    """Returns {"torch": version, "cuda": version or "", "cuda_kernels": "ON" or ""} of the build.

    A build for a torch with CUDA may have no CUDA kernels (`ORTMODULE_CUDA=OFF`).
    """
    suffix = EXTENSION_SUFFIXES[0].removesuffix(".so")
    note = Path(__file__).with_name(f"_C{suffix}.json")
    if not note.exists():
        what = (
            f"Build it in the source tree: {BUILD_COMMAND}"
            if in_source_tree()
            else f"Install the wheel for cp{sys.version_info.major}{sys.version_info.minor}"
        )
        raise ImportError(
            f"ortmodule_py has no extension for this Python ({note.stem} is missing). {what}"
        )
    facts: dict[str, str] = json.loads(note.read_text())
    return facts


def installed_torch() -> dict[str, str] | None:
    """Returns {"torch": version, "cuda": version or ""} of this environment without importing torch,
    which takes seconds; None without torch."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        if torch is None:  # hidden, as tests do it
            return None
        return {"torch": torch.__version__, "cuda": torch.version.cuda or ""}
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    note = Path(spec.origin).with_name("version.py")
    text = note.read_text() if note.exists() else ""
    found = {
        name: match[2] if match else ""
        for name in ("__version__", "cuda")
        for match in [re.search(rf"^{name}\b[^=\n]*= *(['\"])(.*?)\1", text, re.MULTILINE)]
    }
    return {"torch": found["__version__"], "cuda": found["cuda"]}


def check_torch(running: dict[str, str] | None) -> None:
    """Raises ImportError if the extension was built for another torch than `running`.

    Args:
        running: {"torch": version, "cuda": version or ""}; None for no torch.
    """
    built = built_for()
    version = ".".join(built["torch"].split(".")[:2])
    install = f"python -m pip install 'torch=={version}.*'"
    if running is None:
        raise ImportError(
            f"training needs torch {version}, but found none (inference does not). Install it: {install}"
        )
    same_version = version == ".".join(running["torch"].split(".")[:2])
    lacks_cuda = bool(built["cuda"]) and not running["cuda"]
    if same_version and not lacks_cuda:
        return
    cuda = f" with CUDA {built['cuda']}" if lacks_cuda else ""
    this = f"torch {running['torch']}{', which has none' * lacks_cuda}"
    found = f"ortmodule_py was built for torch {built['torch']}{cuda}, but this is {this}. "
    if in_source_tree():
        raise ImportError(f"{found}Rebuild it in the source tree: {BUILD_COMMAND}")
    raise ImportError(
        f"{found}Install that torch: {install}\n"
        "or, to keep this torch, the wheel of ortmodule_py whose version names it"
    )
