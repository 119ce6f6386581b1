"""Sort and TopK; equal elements come in eager's order."""

from __future__ import annotations

import torch

from .case import Case, Check, Outcome, case, integers, normal

_SORT = "aten.sort.default"
_STABLE = "aten.sort.stable"
_TOP = "aten.topk.default"


def _in_order(dim: int = -1, largest: bool = False, count: int | None = None) -> Check:
    """Torch leaves the order of equal elements open on a GPU: any positions of the elements."""

    def check(outcome: Outcome) -> None:
        x, (values, positions) = outcome.inputs[0], outcome.outputs
        wanted = x.sort(dim, descending=largest)[0].narrow(dim, 0, count or x.shape[dim])
        assert torch.equal(values, wanted)
        assert torch.equal(x.gather(dim, positions), values)
        in_order = positions.sort(dim)[0]
        assert bool((in_order.diff(dim=dim) > 0).all()), "a position comes twice"
        if outcome.grad_outputs:
            (dy,), (dx,) = outcome.grad_outputs, outcome.grads
            assert dx is not None
            assert torch.equal(dx, torch.zeros_like(x).scatter(dim, positions, dy))

    return check


def cases() -> list[Case]:
    return [
        case(_SORT, lambda n: (normal(n, 5),), check_on_gpu=_in_order()),
        case(_SORT, lambda n: (normal(7, n, 3), 0, True), label="-first",
             check_on_gpu=_in_order(0, True)),
        case(_SORT, lambda n: (normal(2, n, 5, 1, 3), 2), label="-5d",
             check_on_gpu=_in_order(2)),
        case(_SORT, lambda n: (normal(n, 600), 1), label="-long", check_on_gpu=_in_order()),
        case(_SORT, lambda n: (integers(3, n, 40), 1), label="-ties", check_on_gpu=_in_order()),
        case(_SORT, lambda n: (normal(n, 5), 0), function=lambda x, d: torch.sort(x.t(), d),
             label="-transposed"),
        case(_STABLE, lambda n: (normal(n, 40),), stable=True, dim=1, descending=True),
        case(_TOP, lambda n: (normal(n, 9), 3), check_on_gpu=_in_order(-1, True, 3)),
        case(_TOP, lambda n: (normal(9, n), 2, 0, False), label="-smallest",
             check_on_gpu=_in_order(0, False, 2)),
        case(_TOP, lambda n: (normal(n, 700), 20, -1, True, True), label="-long",
             check_on_gpu=_in_order(-1, True, 20)),
        case(_TOP, lambda n: (normal(4, n, 3), n, 1), label="-all", check_on_gpu=_in_order(1, True)),
        case(_TOP, lambda n: (normal(2, n, 5, 1, 3), 5, 2), label="-5d",
             check_on_gpu=_in_order(2, True, 5)),
    ]  # fmt: skip
