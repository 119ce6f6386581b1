"""ORTMODULE_VERIFY_EVERY: compares every n-th training forward with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ortmodule_py import _C
from ortmodule_py.base.sharding import units_of
from ortmodule_py.report.compare.comparison import Eager, compare
from ortmodule_py.report.compare.module_state import ModuleState
from ortmodule_py.report.compare.observation import Batch, Generators, observe


@dataclass
class Verifier:
    """Compares every n-th training forward of one ORTModule with eager PyTorch.

    Runs the live module, whose state is restored, and its compiled pieces. A model that draws random
    numbers is compiled a second time for this, with eager's random numbers.
    """

    every: int
    run: Callable[..., Any]
    target: Callable[[nn.Module], Callable[..., Any]]
    module: nn.Module
    make_twin: Callable[[], Callable[..., Any]]
    _twin: Callable[..., Any] | None = None
    """Runs the module with eager's random numbers."""
    _forwards: int = 0

    def before_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a training forward, and compare every n-th.

        Raises:
            ORTModuleError: a result differs (the message has the worst gradient), or the module is sharded.
        """
        self._forwards += 1
        if self._forwards % self.every:
            return
        if units_of(self.module):
            raise _C.ORTModuleError(
                "[ORTMODULE_VERIFY_EVERY] the module must compute with the parameters that it has, but "
                "found that fully_shard has sharded it; unset it, or verify the model before you shard it"
            )
        generators = Generators()
        state = ModuleState(self.module)
        try:
            self._compare(args, kwargs, generators, state)
        finally:
            state.restore()
            generators.restore()

    def _compare(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        generators: Generators,
        state: ModuleState,
    ) -> None:
        eager = Eager(self.module, self.target, args, kwargs, generators)
        plain = eager.observe()
        run = self.run
        if generators.torch_has_drawn():
            if self._twin is None:
                self._twin = self.make_twin()
            run = self._twin
        state.restore()
        generators.restore()
        ours = observe(run, self.module, Batch(args, kwargs))
        state.restore()
        result = compare(ours, plain, eager)
        if result.ok:
            return
        worst = result.worst("gradient")
        named = f"; the worst gradient is that of {worst.name}" if worst else ""
        raise _C.ORTModuleError(
            "[ORTMODULE_VERIFY_EVERY] a step must match eager PyTorch, but found "
            f"{len(result.differences)} differences at training forward {self._forwards}: "
            f"{result.differences[0]}{named}; ortmodule_py.check(model, *batch) lists all"
        )
