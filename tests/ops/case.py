"""What a data file of this folder says about one call, and random inputs to say it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Check = Callable[["Outcome"], None]


@dataclass
class Outcome:
    """What one run computed, for checks that cannot compare with eager (random operators)."""

    inputs: list[Tensor]
    outputs: list[Any]
    grad_outputs: list[Tensor]
    grads: list[Tensor | None]


@dataclass
class Case:
    """One call of a torch operator.

    `build(n)` gives the arguments for a size n. Every int in them, sizes of tensors included, must
    be linear in n: where it is not constant it becomes a symbolic size.
    """

    target: str
    """The captured operator, "aten.softmax.int"; must be among the calls that capture makes."""
    build: Callable[[int], Sequence[Any]]
    keywords: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    """What is called, if it is not the operator itself."""
    constant: tuple[int, ...] = ()
    """Positions of tensor arguments (nested ones counted) without a gradient."""
    aten: str = ""
    """Why it may become an ATen node: part of the reason that the exporter gives."""
    contains: str = ""
    """An op that the optimized graph must hold: for fused ops."""
    contains_on: tuple[str, ...] = ()
    """Where it must: devices and types of arguments, "cuda", "bfloat16"; empty for everywhere."""
    arrives_as: str = ""
    """Another operator that capture makes of it."""
    symbolic: bool = True
    gradient: bool = True
    sizes: tuple[int, ...] = (0, 1)
    """Special sizes that it is run with, too."""
    tolerance: float = 1.0
    """Widens the tolerance by this factor; say why where you set it."""
    check: Check | None = None
    """Instead of the comparison with eager."""
    check_on_gpu: Check | None = None
    """The same where operands are on a GPU: torch leaves open there what it says on the CPU."""
    on_host: tuple[int, ...] = ()
    """Positions of tensor arguments that torch takes on the CPU only."""
    label: str = ""

    @property
    def name(self) -> str:
        """For test ids."""
        return self.target.removeprefix("aten.").removesuffix(".default") + self.label


def case(target: str, build: Callable[[int], Sequence[Any]], **options: Any) -> Case:
    """A case; options that are no field of Case are keyword arguments of the operator."""
    fields = {key: options.pop(key) for key in list(options) if key in Case.__annotations__}
    return Case(target, build, options, **fields)


def operator_of(target: str) -> Any:
    """The overload with this name."""
    namespace, packet, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


# ---- inputs: float64 ones are converted when a case is run in other types -----------------------


def normal(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn([max(size, 0) for size in sizes], dtype=torch.float64).to(dtype)


def positive(*sizes: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Numbers from 0.3 to 1.3."""
    return (torch.rand([max(size, 0) for size in sizes], dtype=torch.float64) + 0.3).to(dtype)


def unit(*sizes: int) -> Tensor:
    """Numbers from 0 to 1."""
    return torch.rand([max(size, 0) for size in sizes], dtype=torch.float64)


def integers(high: int, *sizes: int, low: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    """Integers from `low` up to, without, `high`."""
    return torch.randint(low, high, [max(size, 0) for size in sizes], dtype=dtype)


def flags(*sizes: int) -> Tensor:
    """True or False, with equal chances."""
    return torch.rand([max(size, 0) for size in sizes]) > 0.5


def small_steps(*sizes: int) -> Tensor:
    """Few different numbers, so that there are ties."""
    return integers(3, *sizes).to(torch.float64)


def numbers(*values: float) -> Tensor:
    """These numbers."""
    return torch.tensor(values, dtype=torch.float64)


def classes(count: int, *sizes: int, ignored: int = -100) -> Tensor:
    """Class indices, every third of them ignored."""
    drawn = integers(count, *sizes)
    drawn.view(-1)[1::3] = ignored
    return drawn
