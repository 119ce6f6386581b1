"""Saved graphs: one `.onnx` file per stage, as `DebugOptions(save_onnx=True)` asks for."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import _C
from .options import DebugOptions

STAGES = {
    "torch_exported": "exported",
    "optimized_pre_grad": "forward",
    "optimized": "joint",
    "execution_model": "lowered",
}
"""File name's stage -> the engine's."""

_WITH_WEIGHTS = ("torch_exported", "optimized_pre_grad")


def saver(
    module: nn.Module, options: DebugOptions, logger: logging.Logger
) -> Callable[[Any], None]:
    """What writes the files of each piece; where it cannot, it says so once, and training goes on.

    Dynamo keeps the compiler and with it this function, which must not keep the wrapper.
    """
    failed = False

    def save(piece: Any) -> None:
        nonlocal failed
        try:
            save_stages(piece, module, options.save_path, options.onnx_prefix)
        except Exception as error:  # no file is worth a training run
            if not failed:
                logger.warning("ortmodule_py: graphs are not saved: %s", error)
            failed = True

    return save


def save_stages(piece: Any, module: nn.Module, directory: Path, prefix: str) -> list[Path]:
    """Write `{prefix}_{stage}_{training|inference}.onnx` of a compiled piece; returns the paths.

    Parameters and buffers are stored in the files of the forward stages, constants in all. A later
    piece of the same mode gets a number before the mode.
    """
    mode = "training" if piece.facts()["training"] else "inference"
    constants = {name: _bytes(tensor) for name, tensor in piece.constants().items()}
    weights = _weights(piece, module)
    paths = []
    for stage, engine_stage in STAGES.items():
        if mode == "inference" and stage == "optimized_pre_grad":
            continue
        path = _free_path(directory, f"{prefix}_{stage}_{mode}")
        given = constants | weights if stage in _WITH_WEIGHTS else constants
        _C.save_onnx(piece.graph(engine_stage), str(path), given)
        paths.append(path)
    return paths


def _weights(piece: Any, module: nn.Module) -> dict[str, Any]:
    """Data of the parameters and buffers that the piece takes; others may have none."""
    wanted = set(piece.weight_names())
    # A tied weight has several names, and the piece takes it by any of them.
    tensors = itertools.chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )
    return {name: _bytes(tensor) for name, tensor in tensors if name in wanted}


def _bytes(tensor: Tensor) -> Any:
    """Row-major data in any type, also in those that numpy does not know."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()


def _free_path(directory: Path, stem: str) -> Path:
    path = directory / f"{stem}.onnx"
    number = 2
    while path.exists() and path in _written:
        path = directory / f"{stem}_{number}.onnx"
        number += 1
    _written.add(path)
    return path


_written: set[Path] = set()
