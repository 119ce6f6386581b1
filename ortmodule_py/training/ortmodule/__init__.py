"""The names of `onnxruntime.training.ortmodule`; see docs/migrating.md for each."""

from __future__ import annotations

from typing import Any, NoReturn

from ortmodule_py import ORTModuleError
from ortmodule_py.module import ORTModule as ORTModule
from ortmodule_py.options.debug import DebugOptions as DebugOptions, LogLevel as LogLevel

ORTModuleFallbackException = ORTModuleError
"""What a piece that cannot be compiled raises under `ORTMODULE_FALLBACK_POLICY=FALLBACK_DISABLE`."""
ORTModuleInitException = ORTModuleError
"""Never raised: no extensions are compiled after the installation."""


def register_graph_optimizer(
    target_modules: str = "all", devices: str = "all", priority: int = 0
) -> NoReturn:
    """Not supported: the training graph is not an ONNX protobuf in Python.

    Raises:
        NotImplementedError: always.
    """
    asked: tuple[Any, ...] = (target_modules, devices, priority)
    raise NotImplementedError(
        "[register_graph_optimizer] rewrites must be C++ passes of the engine, but found a Python "
        f"function to register for {asked}; see CONTRIBUTING.md, 'a fusion'"
    )
