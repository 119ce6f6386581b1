"""Facts about this build, and the seed of its random numbers.

Importing it checks the patches of TorchDynamo if this torch is newer than the tested ones.
"""

from __future__ import annotations

from typing import Any

import torch

from ortmodule_py import _C
from ortmodule_py.compile.backend import ortmodule as ortmodule  # the entry point of torch.compile
from ortmodule_py.dynamo import patches
from ortmodule_py.dynamo.patches import probes
from ortmodule_py.module import ORTModule, last_run_report
from ortmodule_py.options.debug import DebugOptions, LogLevel

ORTModuleError = _C.ORTModuleError


def build_info() -> dict[str, Any]:
    """Returns how this build was made: versions, CPU instruction sets, CUDA architectures.

    `dynamo_patches` says for each patch of TorchDynamo whether it applies to this torch, or why not.
    """
    info: dict[str, Any] = _C.build_info()
    info["dynamo_patches"] = patches.states()
    return info


def set_seed(seed: int) -> None:
    """Calls `torch.manual_seed`: all random numbers of the engine derive from torch's generators."""
    torch.manual_seed(seed)


probes.check(lambda module: ORTModule(module, DebugOptions(LogLevel.ERROR)), last_run_report)
