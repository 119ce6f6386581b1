"""Trains the modules of the cases of `test_compatibility` as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.fresh_process import ROOT
from tests.semantics import Calls, as_in_eager

Report = dict[str, Any]


def trained(module: nn.Module, *inputs: Any, steps: int = 2) -> Report:
    """Trains it as in eager PyTorch; `inputs` are tensors, or what makes one from the step's number."""

    def step(model: Any) -> list[Any]:
        results = []
        for i in range(steps):
            y = model(*(value(i) if callable(value) else value for value in inputs))
            y.float().square().sum().backward()
            results.append(y)
        return results

    return as_in_eager(module, step)


def rows_of(size: int) -> Callable[[int], Tensor]:
    return lambda i: torch.linspace(-1, 1, (3 + i) * size).view(3 + i, size)


def calls(function: Callable[..., Any], *inputs: Any, **attributes: Any) -> Report:
    return trained(Calls(function, **attributes), *(inputs or (rows_of(4),)))


def layer_drop(self: Any, x: Tensor) -> Tensor:
    """A forward whose layers run by chance."""
    x = self.fc(x)
    for layer in self.layers:
        if torch.rand([]) < 0.5:
            x = layer(x)
    return x.tanh()


def word(outcome: Report | str) -> str:
    """The word of the page for the outcome of a case."""
    if isinstance(outcome, str):
        return outcome
    if outcome["compiled"] and not outcome["graph_breaks"] and not outcome["eager_pieces"]:
        return "compiled"
    return (
        "partly"
        if outcome["pieces_run"] and outcome["captures"] > len(outcome["eager_pieces"])
        else "eager"
    )


def tested(path: str, word: str = "compiled") -> Callable[[], str]:
    """A case that is another test, and its outcome."""

    def case() -> str:
        file, _, name = path.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()
        return word

    return case
