"""One budget in bytes for the pieces of a module whose graph breaks: while one runs, the others hold
what they keep for backward, and then their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MOST_COMBINATIONS = 50_000


@dataclass(frozen=True)
class PiecePlan:
    """One of the plans that a piece may take."""

    peak_bytes: int
    saved_bytes: int
    """What is left of it when its forward is done: saved values and outputs."""
    time_us: float


def held_by_others(plans: Sequence[PiecePlan], gradient_bytes: Sequence[int]) -> list[int]:
    """What the other pieces hold while each runs, forward in this order and backward in the other:
    what earlier ones saved, and the gradients of later ones."""
    before, after, held = 0, sum(gradient_bytes), []
    for plan, gradients in zip(plans, gradient_bytes, strict=True):
        after -= gradients
        held.append(before + after)
        before += plan.saved_bytes
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
    pieces: Sequence[Sequence[PiecePlan]], gradient_bytes: Sequence[int], budget_bytes: int
) -> tuple[PiecePlan, ...]:
    """A plan for each piece: the fastest that fit together, or those with the least peak."""

    def badness(plans: tuple[PiecePlan, ...]) -> tuple[int, float]:
        over = max(peak_of(plans, gradient_bytes) - budget_bytes, 0)
        return over, sum(plan.time_us for plan in plans)

    return min(_candidates(pieces), key=badness)


def trained_before(pieces: Sequence[Any], first_run: int) -> bool:
    """Whether any piece ran for training before run `first_run` of this process."""
    known = (piece.facts() for piece in pieces)
    return any(f["training"] and 0 < f["last_run"] <= first_run for f in known)


def reserve(piece: Any, earlier: Sequence[Any], first_run: int) -> None:
    """A new piece takes what the `earlier` ones of this forward, which began with run `first_run`, leave;
    see `divide`."""
    left = (f["saved_bytes"] + f["output_bytes"] for _, f in _in_forward(earlier, first_run))
    saved = sum(left)
    if saved > 0:
        piece.leave_to_others(saved, True)


def divide(pieces: Sequence[Any], budget_bytes: int, first_run: int) -> int | None:
    """Gives each of the pieces that ran after run `first_run` its part of a budget that each of them
    knows. The step's peak, if it does not fit."""
    running = _in_forward(pieces, first_run)
    if len(running) < 2:
        return None
    gradients = [facts["gradient_bytes"] for _, facts in running]
    plans = [
        [
            PiecePlan(f["peak_bytes"], f["saved_bytes"] + facts["output_bytes"], f["time_us"])
            for f in piece.memory()["frontier"]
        ]
        for piece, facts in running
    ]
    chosen = fastest_within(plans, gradients, budget_bytes)
    for (piece, _), plan in zip(running, chosen, strict=True):
        piece.leave_to_others(budget_bytes - plan.peak_bytes, False)
    peak = peak_of(chosen, gradients)
    return peak if peak > budget_bytes else None


def _in_forward(pieces: Sequence[Any], first_run: int) -> list[tuple[Any, dict[str, Any]]]:
    """Training pieces that ran after run `first_run`, with their facts, in the order of their runs."""
    known = [(piece, piece.facts()) for piece in pieces]
    ran = [(p, f) for p, f in known if f["training"] and f["last_run"] > first_run]
    return sorted(ran, key=lambda pair: pair[1]["last_run"])
