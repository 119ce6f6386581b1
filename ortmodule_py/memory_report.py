"""What the memory optimizer did, for people: the table of plans and what the bytes are."""

from __future__ import annotations

from typing import Any

from torch import nn


def reserved_bytes(module: nn.Module) -> int:
    """Bytes of a whole-device budget that are not the step's: parameters, buffers, and two values
    of optimizer state per trainable parameter, as Adam keeps them, before they exist."""
    parameters = [(p, p.requires_grad) for p in module.parameters()]
    held = sum(p.numel() * p.element_size() for p, _ in parameters)
    held += sum(b.numel() * b.element_size() for b in module.buffers())
    state = sum(2 * p.numel() * p.element_size() for p, trained in parameters if trained)
    return held + state


def facts_of(compiler: Any) -> dict[str, Any] | None:
    """The memory optimizer's facts of the training piece with the most saved bytes."""
    facts = [piece.compiled.memory() for piece in compiler.pieces]
    known = [fact for fact in facts if fact is not None]
    return max(known, key=lambda fact: fact["before"]["saved_bytes"], default=None)
