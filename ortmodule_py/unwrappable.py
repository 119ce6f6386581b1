"""What an ORTModule cannot be made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ortmodule_py.options.engine import DebugOptions

NO_DATA_PARALLEL = "[ORTModule] torch.nn.DataParallel is not supported; use DistributedDataParallel"


def refuse_to_wrap(module: Any, debug_options: Any) -> None:
    """Raise where the arguments of `ORTModule` are not what they must be."""
    from ortmodule_py.module import ORTModule

    if not isinstance(module, nn.Module):
        raise TypeError(
            f"[ORTModule] module must be a torch.nn.Module, but found {type(module).__name__}"
        )
    if isinstance(module, ORTModule):
        raise TypeError("[ORTModule] module is an ORTModule already; pass the original module")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            "[ORTModule] module must be what was scripted or traced, which Dynamo can capture, "
            f"but found a {type(module).__name__}; pass the original module"
        )
    if isinstance(module, nn.DataParallel):
        raise NotImplementedError(NO_DATA_PARALLEL)
    if debug_options is not None and not isinstance(debug_options, DebugOptions):
        raise TypeError(
            "[ORTModule] debug_options must be a DebugOptions, but found "
            f"{type(debug_options).__name__}; pass DebugOptions(log_level=..., save_onnx=...)"
        )
