"""Memory outside of the step that a budget for the whole device must leave room for."""

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
    """Bytes of a whole-device budget that the step cannot use.

    They are parameters, buffers and optimizer state (two values per trainable parameter, as in Adam,
    also before it is allocated); on CUDA also the process's other tensors. If those are larger than
    the optimizer state, they are assumed to include it.
    """
    parameters = [(p, p.requires_grad) for p in module.parameters()]
    held = sum(p.numel() * p.element_size() for p, _ in parameters)
    held += sum(b.numel() * b.element_size() for b in module.buffers())
    state = sum(2 * p.numel() * p.element_size() for p, trained in parameters if trained)
    if device.type != "cuda":
        return held + state
    others = max(torch.cuda.memory_allocated(device) - held, 0)
    return held + others + (state if others < state else 0)


def warn_beyond_device(total_bytes: int, device: torch.device, logger: logging.Logger) -> None:
    """Warn if the device has less memory than the budget, which then has no effect."""
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if total_bytes > total - others:
        logger.warning(
            "ortmodule_py: the budget is %s bytes, but %s has %s, of which other processes use %s",
            f"{total_bytes:,}",
            device,
            f"{total:,}",
            f"{others:,}",
        )
