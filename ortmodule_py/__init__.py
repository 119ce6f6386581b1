"""Train PyTorch modules in a C++ engine that plans every byte of a step before it runs."""

from __future__ import annotations

from typing import Any

import torch  # before the extension, which needs its libraries

from ortmodule_py import _build_info

_build_info.check_torch(torch.__version__)

import ortmodule_py._C as _C  # noqa: E402
import ortmodule_py.nn as nn  # noqa: E402, F401
import ortmodule_py.optim as optim  # noqa: E402, F401
from ortmodule_py.check import CheckReport, check  # noqa: E402
from ortmodule_py.dynamo import patches as _patches  # noqa: E402
from ortmodule_py.dynamo.patches import probes as _probes  # noqa: E402
from ortmodule_py.explain import Explanation, explain  # noqa: E402
from ortmodule_py.module import ORTModule, last_run_report  # noqa: E402
from ortmodule_py.options.debug import DebugOptions, LogLevel  # noqa: E402

__version__: str = _C.__version__
ORTModuleError = _C.ORTModuleError


def build_info() -> dict[str, Any]:
    """Returns how this build was made: versions, CPU instruction sets, CUDA architectures.

    `dynamo_patches` says for each patch of TorchDynamo whether it applies to this torch, or why not.
    """
    info: dict[str, Any] = _C.build_info()
    info["dynamo_patches"] = _patches.states()
    return info


def set_seed(seed: int) -> None:
    """Calls `torch.manual_seed`: all random numbers of the engine derive from torch's generators."""
    torch.manual_seed(seed)


import ortmodule_py.training as training  # noqa: E402, F401

_probes.check(lambda module: ORTModule(module, DebugOptions(LogLevel.ERROR)), last_run_report)

# Not `nn`, `optim`, `set_seed` and `training`: a star import would shadow the script's own names.
__all__ = [
    "CheckReport",
    "DebugOptions",
    "Explanation",
    "LogLevel",
    "ORTModule",
    "ORTModuleError",
    "__version__",
    "build_info",
    "check",
    "explain",
    "last_run_report",
]
