"""Probes of the rows of the table: run on a torch that is newer than all tested ones, once, and remembered.

Each runs a tiny program in eager PyTorch and in an ORTModule. A row whose probe fails is turned off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Wrap = Callable[[nn.Module], Any]
"""Makes a silent ORTModule."""
Report = Callable[[Any], Any]
"""What happened in an ORTModule, as `last_run_report` gives it."""


class _Of(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Trial:
    """Runs one program in eager PyTorch and in an ORTModule, and keeps what happened in the latter."""

    def __init__(self, wrap: Wrap, report: Report) -> None:
        self._wrap = wrap
        self._report = report
        self.captures = 0
        self.graph_breaks: Sequence[str] = ()
        self.eager_pieces: Sequence[str] = ()

    def __call__(
        self,
        make: Callable[[], Any],
        *calls: tuple[Any, ...],
        between: Callable[[Any], None] | None = None,
    ) -> bool:
        """Whether what `make` gives, a function or a module, does in an ORTModule what it does in eager
        PyTorch: values, gradients and errors of these calls are the same."""
        eager, captured = make(), make()
        model = self._wrap(captured if isinstance(captured, nn.Module) else _Of(captured))
        same = True
        for i, args in enumerate(calls):
            if i > 0 and between is not None:
                between(eager)
                between(captured)
            same &= _alike(_outcome(eager, args), _outcome(model, args))
        report = self._report(model)
        self.captures = report["captures"]
        self.graph_breaks = [str(reason) for reason in report["graph_breaks"]]
        self.eager_pieces = [str(piece) for piece in report["eager_pieces"]]
        return same


def _outcome(run: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """Value and gradients of a call, or what it raised."""
    given = [a.detach().clone() if isinstance(a, Tensor) else a for a in args]
    for a, leaf in zip(args, given, strict=True):
        if isinstance(a, Tensor):
            leaf.requires_grad_(a.requires_grad)
    try:
        y = run(*given)
        if y.requires_grad:
            y.sum().backward()
    except Exception as error:
        return [type(error)]
    gradients = [leaf.grad for leaf in given if isinstance(leaf, Tensor)]
    return [y.requires_grad, y.detach(), *gradients]


def _alike(got: list[Any], want: list[Any]) -> bool:
    return len(got) == len(want) and all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        if isinstance(a, Tensor) and isinstance(b, Tensor)
        else a is b
        for a, b in zip(got, want, strict=True)
    )
