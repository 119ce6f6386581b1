"""One budget in bytes for the pieces of a module whose graph breaks: while one runs, the others hold
what they keep for backward, and then their gradients."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

MOST_COMBINATIONS = 50_000


@dataclass(frozen=True)
class PiecePlan:
    """One of the plans that a piece may take."""

    peak_bytes: int
    saved_bytes: int
    """What is left of it when its forward is done: saved values and outputs."""
    time_us: float
    output_bytes: int = 0
    """The outputs alone: the caller holds those of the last piece while the others run backward."""


def gradients_in_turn(runs: Sequence[Any], gradient_bytes: Sequence[int]) -> list[int]:
    """Of each run, the gradients that it leaves: a piece that ran again later has made its own there."""
    last = {run: i for i, run in enumerate(runs)}
    return [
        g if last[run] == i else 0
        for i, (run, g) in enumerate(zip(runs, gradient_bytes, strict=True))
    ]


def held_by_others(plans: Sequence[PiecePlan], gradient_bytes: Sequence[int]) -> list[int]:
    """What the other pieces hold while each runs, forward in this order and backward in the other:
    what earlier ones saved, the gradients of later ones, and the last one's outputs."""
    outputs = plans[-1].output_bytes if plans else 0
    before, after, held = 0, outputs + sum(gradient_bytes), []
    for plan, gradients in zip(plans, gradient_bytes, strict=True):
        after -= gradients
        held.append(before + after)
        before += plan.saved_bytes
    if held:
        held[-1] -= outputs
    return held


def peak_of(plans: Sequence[PiecePlan], gradient_bytes: Sequence[int]) -> int:
    """The peak of a step over pieces."""
    held = held_by_others(plans, gradient_bytes)
    return max((p.peak_bytes + h for p, h in zip(plans, held, strict=True)), default=0)


def _candidates(pieces: Sequence[Sequence[PiecePlan]]) -> Iterator[tuple[PiecePlan, ...]]:
    """All combinations where they are few; else from the fastest one on, each time with the step to a
    piece's next smaller plan that costs the least time per byte saved. Plans are ordered by peak."""
    if math.prod(map(len, pieces)) <= MOST_COMBINATIONS:
        yield from itertools.product(*pieces)
        return
    at = [len(plans) - 1 for plans in pieces]
    yield tuple(plans[i] for plans, i in zip(pieces, at, strict=True))
    while any(at):

        def cost(k: int) -> float:
            now, smaller = pieces[k][at[k]], pieces[k][at[k] - 1]
            saved = now.peak_bytes - smaller.peak_bytes + now.saved_bytes - smaller.saved_bytes
            return (smaller.time_us - now.time_us) / max(saved, 1)

        at[min((k for k in range(len(at)) if at[k]), key=cost)] -= 1
        yield tuple(plans[i] for plans, i in zip(pieces, at, strict=True))


def fastest_within(
    pieces: Sequence[Sequence[PiecePlan]],
    gradient_bytes: Sequence[int],
    budget_bytes: int,
    runs: Sequence[int] | None = None,
) -> tuple[PiecePlan, ...]:
    """A plan for each piece: the fastest that fit together, or those with the least peak. `runs` are
    the positions of the pieces in the order in which they run, gradients those of the runs."""
    turns = range(len(pieces)) if runs is None else runs

    def badness(plans: tuple[PiecePlan, ...]) -> tuple[int, float]:
        in_turn = [plans[i] for i in turns]
        over = max(peak_of(in_turn, gradient_bytes) - budget_bytes, 0)
        return over, sum(plan.time_us for plan in in_turn)

    return min(_candidates(pieces), key=badness)


def trained_before(pieces: Sequence[Any], first_run: int) -> bool:
    """Whether any piece ran for training before run `first_run` of this process."""
    known = (piece.facts() for piece in pieces)
    return any(f["training"] and 0 < f["last_run"] <= first_run for f in known)


def reserve(piece: Any, earlier: Sequence[Any]) -> None:
    """A new piece takes what the `earlier` runs of this forward leave; see `divide`."""
    known = [run.facts() for run in earlier]
    saved = sum(f["saved_bytes"] + f["output_bytes"] for f in known if f["training"])
    if saved > 0:
        piece.set_budget_share(saved, lenient=True)


def divide(ran: Sequence[Any], budget_bytes: int) -> int | None:
    """Gives each of the pieces that `ran` in a forward, once for each run, its part of a budget that each
    of them knows. The step's peak, if it does not fit.

    A piece's part is the peak of its plan; for other shapes all parts grow alike, up to the budget.
    """
    facts = {run: run.facts() for run in ran}
    runs = [run for run in ran if facts[run]["training"]]
    if len(runs) < 2:
        return None
    pieces = list(dict.fromkeys(runs))
    gradients = gradients_in_turn(runs, [facts[run]["gradient_bytes"] for run in runs])
    plans = [list(_frontier(piece, facts[piece]["output_bytes"])) for piece in pieces]
    turns = [pieces.index(run) for run in runs]
    chosen = fastest_within(plans, gradients, budget_bytes, turns)
    peak = peak_of([chosen[i] for i in turns], gradients)
    growth = max(budget_bytes / max(peak, 1), 1.0)
    for piece, plan in zip(pieces, chosen, strict=True):
        piece.set_budget_share(budget_bytes - plan.peak_bytes, growth)
    return peak if peak > budget_bytes else None


def _frontier(piece: Any, output_bytes: int) -> Iterator[PiecePlan]:
    for f in piece.memory()["frontier"]:
        yield PiecePlan(
            f["peak_bytes"], f["saved_bytes"] + output_bytes, f["time_us"], output_bytes
        )


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
