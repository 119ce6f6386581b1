"""What a budget for the whole device has to leave room for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def trained_before(pieces: Sequence[Any], first_run: int) -> bool:
    """Whether any piece ran for training before run `first_run` of this process."""
    known = (piece.facts() for piece in pieces)
    return any(f["training"] and 0 < f["last_run"] <= first_run for f in known)


def reserved_bytes(module: nn.Module, device: torch.device) -> int:
    """Bytes of a whole-device budget that are not the step's: parameters, buffers, two values of
    optimizer state per trainable parameter, as Adam keeps them, before they exist, and on CUDA
    whatever else the process has there: what exceeds that state is taken to hold it already."""
    parameters = [(p, p.requires_grad) for p in module.parameters()]
    held = sum(p.numel() * p.element_size() for p, _ in parameters)
    held += sum(b.numel() * b.element_size() for b in module.buffers())
    state = sum(2 * p.numel() * p.element_size() for p, trained in parameters if trained)
    if device.type != "cuda":
        return held + state
    others = max(torch.cuda.memory_allocated(device) - held, 0)
    return held + others + (state if others < state else 0)


def warn_beyond_device(total_bytes: int, device: torch.device, logger: logging.Logger) -> None:
    """A budget that the device cannot hold protects from nothing: said, not refused."""
    if device.type != "cuda":
        return
    free, has = torch.cuda.mem_get_info(device)
    elsewhere = has - free - torch.cuda.memory_reserved(device)
    if total_bytes > has - elsewhere:
        logger.warning(
            "ortmodule_py: the budget is %s bytes, but %s has %s, of which others hold %s",
            f"{total_bytes:,}",
            device,
            f"{has:,}",
            f"{elsewhere:,}",
        )
