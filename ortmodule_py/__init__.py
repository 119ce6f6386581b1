"""Trains PyTorch modules and runs ONNX models in a C++ engine that plans every byte before it runs.

Inference sessions need no torch: it is imported with the first name that belongs to training.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ortmodule_py import _inference
from ortmodule_py.inference import InferenceSession, RunOptions, SessionOptions

if TYPE_CHECKING:
    from ortmodule_py import _C as _C, nn as nn, optim as optim, training as training
    from ortmodule_py.build import ORTModuleError, build_info, set_seed as set_seed
    from ortmodule_py.check import CheckReport, check
    from ortmodule_py.explain import Explanation, explain
    from ortmodule_py.module import ORTModule, last_run_report
    from ortmodule_py.options.debug import DebugOptions, LogLevel

__version__: str = _inference.__version__

# Names of training, and where they are; None: a submodule of that name.
_TRAINING: dict[str, str | None] = {
    "CheckReport": "check",
    "DebugOptions": "options.debug",
    "Explanation": "explain",
    "LogLevel": "options.debug",
    "ORTModule": "module",
    "ORTModuleError": "build",
    "build_info": "build",
    "check": "check",
    "explain": "explain",
    "last_run_report": "module",
    "nn": None,
    "optim": None,
    "set_seed": "build",
    "training": None,
}


class _Package(ModuleType):
    """`check` and `explain` are functions, which hide the submodules of their names."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("check", "explain") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "_C":
        return _load_extension()
    if name not in _TRAINING:
        raise AttributeError(f"module 'ortmodule_py' has no attribute '{name}'")
    _check_torch()
    importlib.import_module("ortmodule_py.build")  # it checks the patches of TorchDynamo
    place = _TRAINING[name]
    module = importlib.import_module(f"ortmodule_py.{place or name}")
    value = module if place is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_TRAINING})


def _check_torch() -> None:
    """Raises ImportError for another torch than that of the build, before torch is imported."""
    from ortmodule_py import _build_info

    _build_info.check_torch(_build_info.installed_torch())


def _load_extension() -> ModuleType:
    """The extension of training. It needs torch's libraries, and the torch it was built for."""
    _check_torch()
    import torch as torch  # its libraries are those that the extension finds

    return importlib.import_module("ortmodule_py._C")


# Not `nn`, `optim`, `set_seed` and `training`: a star import would shadow the script's own names.
__all__ = [
    "CheckReport",
    "DebugOptions",
    "Explanation",
    "InferenceSession",
    "LogLevel",
    "ORTModule",
    "ORTModuleError",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "build_info",
    "check",
    "explain",
    "last_run_report",
]
