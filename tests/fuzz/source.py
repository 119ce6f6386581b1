"""The module under construction: source lines that are run as they are written."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 31
LENGTH = 29
"""Sizes that stand for changing ones while a module is generated; fixed sizes are smaller primes' kin."""

PRELUDE = """\
import math
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * 1.0

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None
"""


def is_static(size: int) -> bool:
    """Whether a size stays the same from call to call."""
    return size % BATCH != 0 and size % LENGTH != 0


@dataclass(frozen=True)
class Var:
    """A tensor of the forward function."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point

    def size(self, dim: int) -> str:
        """Source text of a size: a literal, or an expression for one that changes."""
        d = self.shape[dim]
        return str(d) if is_static(d) else f"{self.name}.shape[{dim}]"


class Rejected(Exception):
    """The line does not apply: torch refuses it, or its values are of no use."""


class SourceBuilder:
    """Appends lines to `__init__` and `forward`, running each on example values at once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.init_lines: list[str] = []
        self.lines: list[str] = []
        self.variables: list[Var] = []
        self.features: set[str] = set()
        self.module = nn.Module()
        self.module.train()
        self.env: dict[str, Any] = {"self": self.module}
        exec(PRELUDE, self.env)
        self._count = 0

    # ---- names and choices

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        self._count += 1
        return f"{stem}{self._count}"

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, accept: Callable[[Var], bool] = lambda v: v.is_float) -> Var:
        """A tensor, the newest ones more often."""
        found = [v for v in self.variables if accept(v)]
        if not found:
            raise Rejected
        position = min(int(self.rng.expovariate(0.6)), len(found) - 1)
        return found[-1 - position]

    def scalar(self) -> str:
        """A Python number."""
        return self.rng.choice(["0.5", "2.0", "-0.3", "1.25", "3", "0.1", "-1"])

    def has_layer(self, name: str, stem: str) -> bool:
        """Whether `__init__` makes a submodule of this name and kind."""
        made = any(line.startswith(f"self.{name} =") for line in self.init_lines)
        return made and name.startswith(stem)

    # ---- writing

    def add_input(self, name: str, value: Tensor) -> Var:
        self.env[name] = value
        variable = Var(name, tuple(value.shape), value.dtype)
        self.variables.append(variable)
        return variable

    def setup(self, line: str) -> None:
        """A line of `__init__`."""
        self._run(line)
        self.init_lines.append(line)

    def attribute(self, stem: str, expression: str) -> str:
        """`self.<name> = expression` in `__init__`; returns `self.<name>`."""
        name = f"self.{self.fresh(stem)}"
        self.setup(f"{name} = {expression}")
        return name

    def buffer(self, stem: str, expression: str) -> str:
        name = self.fresh(stem)
        self.setup(f"self.register_buffer('{name}', {expression})")
        return f"self.{name}"

    def statement(self, text: str, *changed: Var) -> None:
        """A line without a new tensor; `changed` are those whose values it changes."""
        self._run(text)
        for variable in changed:
            self._check(self.env[variable.name])
        self.lines.extend(text.split("\n"))

    def emit(self, expression: str, template: str = "{name} = {expression}") -> Var:
        """A line that makes one tensor."""
        name = self.fresh("v")
        text = template.format(name=name, expression=expression)
        self._run(text)
        variable = self._note(name)
        self.lines.extend(text.split("\n"))
        self.variables.append(variable)
        return variable

    def emit_many(self, expression: str, count: int) -> list[Var]:
        """A line that makes several tensors."""
        names = [self.fresh("v") for _ in range(count)]
        text = f"{', '.join(names)}{',' if count == 1 else ''} = {expression}"
        self._run(text)
        made = [self._note(name) for name in names]
        self.lines.append(text)
        self.variables.extend(made)
        return made

    def _run(self, text: str) -> None:
        try:
            exec(text, self.env)
        # Eager PyTorch refuses this statement while the module is being written: another is drawn.
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            raise Rejected(str(error)) from error

    def _note(self, name: str) -> Var:
        value = self.env[name]
        if not isinstance(value, Tensor):
            raise Rejected
        self._check(value)
        return Var(name, tuple(value.shape), value.dtype)

    def _check(self, value: Tensor) -> None:
        if value.numel() == 0 or value.numel() > 60_000 or value.dim() > 6:
            raise Rejected
        if value.is_floating_point() or value.is_complex():
            largest = float(value.detach().abs().max())
            if not math.isfinite(largest) or largest > 100.0:
                raise Rejected

    # ---- the result

    def source(self, parameters: Sequence[str], result: str) -> str:
        """The module as Python source."""
        init = [
            "def __init__(self):",
            *(f"    {line}" for line in ["super().__init__()", *self.init_lines]),
        ]
        forward = [
            f"def forward(self, {', '.join(parameters)}):",
            *(f"    {line}" for line in [*self.lines, f"return {result}"]),
        ]
        body = "\n".join("    " + line for line in [*init, "", *forward])
        return f"{PRELUDE}\n\nclass Model(nn.Module):\n{body}\n"


_ = (F, torch.utils.checkpoint)  # what generated lines refer to
