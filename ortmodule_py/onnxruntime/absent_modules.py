"""Modules of onnxruntime that are left out: importing one is an error that says what to do instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_HERE = "ortmodule_py.onnxruntime"
_TOOL = "call quantize_static or quantize_dynamic, whose files are the same"
_BLOCKS = "sessions run files with weights in blocks, but onnxruntime's tool writes them"

# By the name within the package; the longest one that begins an import's name counts.
ABSENT_MODULES: dict[str, str] = {
    "quantization": "quantize_static, quantize_dynamic and the calibrators are in its package",
    "quantization.base_quantizer": _TOOL,
    "quantization.cuda_quantizer": "quantized models are for the CPU",
    "quantization.execution_providers": "models are quantized for the CPU; call get_qdq_config",
    "quantization.matmul_4bits_quantizer": _BLOCKS,
    "quantization.matmul_bnb4_quantizer": _BLOCKS,
    "quantization.matmul_nbits_quantizer": _BLOCKS,
    "quantization.onnx_model": "edit models with the onnx package",
    "quantization.onnx_quantizer": _TOOL,
    "quantization.operators": _TOOL,
    "quantization.qdq_loss_debug": "give quantize_static samples=, and it reports the errors",
    "quantization.qdq_quantizer": _TOOL,
    "quantization.registry": _TOOL,
    "quantization.static_quantize_runner": _TOOL,
    "tools": "they prepare models for onnxruntime's own formats and builds",
    "transformers": "sessions fuse operators themselves; open the exported model as it is",
    "transformers.float16": "call ortmodule_py.convert_precision.convert_precision",
}


class AbsentModules(MetaPathFinder):
    """Comes after all other finders, so it sees only names that no module has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Raises ModuleNotFoundError for a module of onnxruntime that is known to be left out."""
        name = _name_within(fullname)
        while name:
            if name in ABSENT_MODULES:
                raise ModuleNotFoundError(
                    f"[onnxruntime] {fullname} is left out: {ABSENT_MODULES[name]}", name=fullname
                )
            name = name.rpartition(".")[0]


def _name_within(fullname: str) -> str:
    """The name without the package's, which is also `onnxruntime` if a program made it so."""
    for package in (_HERE, "onnxruntime"):
        is_ours = package == _HERE or sys.modules.get(package) is sys.modules.get(_HERE)
        if is_ours and fullname.startswith(f"{package}."):
            return fullname[len(package) + 1 :]
    return ""


def report_absent_modules() -> None:
    """Makes imports of them say so. Once for the process."""
    if not any(isinstance(finder, AbsentModules) for finder in sys.meta_path):
        sys.meta_path.append(AbsentModules())
