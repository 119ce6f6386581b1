"""Saved graphs: one `.onnx` file per stage, as `DebugOptions(save_onnx=True)` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from . import _C

STAGES = {
    "torch_exported": "exported",
    "optimized_pre_grad": "forward",
    "optimized": "joint",
    "execution_model": "lowered",
}
"""File name's stage -> the engine's."""


def save_stages(piece: Any, module: nn.Module, directory: Path, prefix: str) -> list[Path]:
    """Write `{prefix}_{stage}_{training|inference}.onnx` of a compiled piece; returns the paths.

    Parameters and buffers are stored in the files of the forward stages. A later piece of the same
    mode gets a number before the mode.
    """
    facts = piece.facts()
    mode = "training" if facts["training"] else "inference"
    weights = {
        name: tensor.detach().cpu().contiguous().numpy()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if str(tensor.dtype) not in ("torch.bfloat16",)
    }
    paths = []
    for stage, engine_stage in STAGES.items():
        if mode == "inference" and stage == "optimized_pre_grad":
            continue
        path = _free_path(directory, f"{prefix}_{stage}_{mode}")
        graph = piece.graph(engine_stage)
        inputs = set(piece.input_names())
        given = weights if stage in ("torch_exported", "optimized_pre_grad") else {}
        _C.save_onnx(graph, str(path), {k: v for k, v in given.items() if k in inputs})
        paths.append(path)
    return paths


def _free_path(directory: Path, stem: str) -> Path:
    path = directory / f"{stem}.onnx"
    number = 2
    while path.exists() and path in _written:
        path = directory / f"{stem}_{number}.onnx"
        number += 1
    _written.add(path)
    return path


_written: set[Path] = set()
