"""Graphs saved by `DebugOptions(save_onnx=True)`: one `.onnx` file per stage."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py import _C
from ortmodule_py.options.debug import DebugOptions

EXECUTION_MODEL = "execution_model"
STAGES = {
    "torch_exported": "exported",
    "optimized_pre_grad": "forward",
    "optimized": "joint",
    EXECUTION_MODEL: "lowered",
}
"""Stage in the file name -> stage of the engine."""

_WITH_WEIGHTS = ("torch_exported", "optimized_pre_grad")


class StageFiles:
    """Writes the files of each piece; a failure is logged once and training continues.

    Must not refer to the ORTModule: Dynamo keeps the compiler, and with it this object, alive.
    """

    def __init__(self, module: nn.Module, options: DebugOptions, logger: logging.Logger) -> None:
        self._module, self._options, self._logger = module, options, logger
        self._failed = False
        self._not_run: list[tuple[Any, Path]] = []

    def compiled(self, piece: Any) -> None:
        """Save all stages of a piece before it runs."""

        def save() -> None:
            options = self._options
            paths = save_stages(piece, self._module, options.save_path, options.onnx_prefix)
            if piece.facts()["training"]:
                self._not_run.append((piece, paths[EXECUTION_MODEL]))

        self._try(save)

    def ran(self) -> None:
        """Save the execution model again after the first forward, which decides what is recomputed."""
        for piece, path in self._not_run:
            if piece.facts()["forwards"]:
                self._try(partial(_save, piece, EXECUTION_MODEL, path, _constants(piece)))
        self._not_run = [
            (piece, path) for piece, path in self._not_run if not piece.facts()["forwards"]
        ]

    def _try(self, save: Callable[[], None]) -> None:
        try:
            save()
        except Exception as error:  # a failed file must not end training
            if not self._failed:
                self._logger.warning("ortmodule_py: graphs are not saved: %s", error)
            self._failed = True


def save_stages(piece: Any, module: nn.Module, directory: Path, prefix: str) -> dict[str, Path]:
    """Write `{prefix}_{stage}_{training|inference}.onnx` of a compiled piece; returns the paths by stage.

    The files of the forward stages contain parameters and buffers, all files contain constants. Later
    pieces of the same mode get a number at the end.
    """
    mode = "training" if piece.facts()["training"] else "inference"
    constants = _constants(piece)
    weights = _weights(piece, module)
    paths = {}
    for stage in STAGES:
        if mode == "inference" and stage == "optimized_pre_grad":
            continue
        path = _free_path(directory, f"{prefix}_{stage}_{mode}")
        given = constants | weights if stage in _WITH_WEIGHTS else constants
        _save(piece, stage, path, given)
        paths[stage] = path
    return paths


def _save(piece: Any, stage: str, path: Path, data: dict[str, Any]) -> None:
    _C.save_onnx(piece.graph(STAGES[stage]), str(path), data)


def _constants(piece: Any) -> dict[str, Any]:
    return {name: row_major_bytes(tensor) for name, tensor in piece.constants().items()}


def _weights(piece: Any, module: nn.Module) -> dict[str, Any]:
    """Data of the piece's parameters and buffers; others may have no data."""
    wanted = set(piece.weight_names())
    # The piece may know a tied weight by any of its names.
    tensors = itertools.chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
    )
    return {name: row_major_bytes(tensor) for name, tensor in tensors if name in wanted}


def row_major_bytes(tensor: Tensor) -> Any:
    """Row-major data of a tensor as bytes, since numpy does not have all dtypes."""
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
