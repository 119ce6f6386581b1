"""The memory budget of a training step, over all pieces of a module."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ortmodule_py import _C
from ortmodule_py.base.machine_rates import machine_rates
from ortmodule_py.base.offload import default_budget_bytes
from ortmodule_py.base.sharding import (
    Beside,
    beside_runs,
    held_parameters,
    local_bytes,
    units_of,
)
from ortmodule_py.compile.forward_record import ForwardRecord
from ortmodule_py.options.memory import CONFIG, OFFLOADED, MemoryRequest

_BUDGET = "budget"
_EMULATED_LINK = 24e3
"""Bytes per microsecond."""


@dataclass(eq=False)
class StepBudget:
    """Makes the memory options of each piece from the user's request.

    A budget for the whole device leaves room for the parameters and optimizer state of `module`, if
    it is known. `earlier` are pieces that other compilers made from the same function. `warned` holds the
    warnings that were given; compilers may share it.
    """

    request: MemoryRequest
    logger: logging.Logger
    module: nn.Module | None = None
    earlier: Sequence[Any] = ()
    warned: set[str] = field(default_factory=set)
    bytes: int | None = field(default=None, init=False)
    """The budget of all pieces of a forward together, if there is one in bytes."""
    _reserved: dict[torch.device, int] = field(default_factory=dict, init=False)
    _accumulates: bool = field(default=False, init=False)
    _options: Any = field(default=None, init=False)
    """`_C.MemoryOptions` of the last piece."""
    _shortfall: Any = field(default=None, init=False)
    """`_C.BudgetShortfall` of a piece in the current forward."""

    def begin_forward(self, pieces: Sequence[Any]) -> None:
        """Call before the module runs, with its pieces."""
        self._reserved.clear()
        self._shortfall = None
        budget = self.request.budget
        if self._accumulates or not pieces or budget is None or budget.total_bytes is None:
            return
        # Gradients of an earlier step take memory beside this one.
        self._accumulates = torch.is_grad_enabled() and self._has_gradients()
        if self._accumulates:
            for piece in pieces:
                piece.compiled.assume_accumulation()

    def memory_options(
        self,
        device: torch.device,
        pieces: Sequence[Any],
        first_run: int,
        is_part: bool,
        why_no_offload: str,
    ) -> Any:
        """`_C.MemoryOptions` of a new piece beside `pieces`; `first_run`: see `ForwardRecord`.

        `why_no_offload`: see `offload.why_not`.

        `is_part`: the graph has breaks. A share of the peak is then one of each piece, and may be less than
        a small piece can reach, which is no error.
        """
        request = self.request
        options = _C.MemoryOptions()
        options.level = request.level
        options.strict = request.strict
        relative = request.budget is not None and request.budget.activation_fraction is not None
        trained = _trained_before([*self.earlier, *pieces], first_run)
        options.mid_training = trained or (is_part and relative)
        for element in request.config:
            options.add_config(element.cluster_id, element.strategy, element.count)
        self._set_offload(options, device, why_no_offload)
        if request.level > 0 or request.budget is not None or options.offload:
            rates = machine_rates(device)
            if rates is not None:
                options.set_rates(rates.flops_per_us, rates.bytes_per_us, rates.flops16_per_us)
                if rates.to_host_bytes_per_us > 0:
                    options.set_link(rates.to_host_bytes_per_us, rates.to_device_bytes_per_us)
        if request.budget is not None:
            self._set_budget(options, device)
        self._options = options
        return options

    def _set_offload(self, options: Any, device: torch.device, why_not: str) -> None:
        request = self.request
        limit = request.offload_bytes
        options.offload = request.asked and not why_not
        options.host_budget_bytes = default_budget_bytes() if limit is None else limit
        if options.offload and device.type == "cpu":  # emulated: nothing is too small to copy
            options.set_link(_EMULATED_LINK, _EMULATED_LINK, host_copy_us=0.0)
        asked = [element for element in request.config if element.strategy == OFFLOADED]
        if asked and why_not and why_not not in self.warned:
            self.warned.add(why_not)
            self.logger.warning(
                "ortmodule_py: [%s] '%s' keeps nothing on the host: %s", CONFIG, asked[0], why_not
            )

    def _set_budget(self, options: Any, device: torch.device) -> None:
        budget = self.request.budget
        assert budget is not None
        if budget.activation_fraction is not None:
            options.budget_fraction = budget.activation_fraction
        elif budget.activation_bytes is not None:
            options.budget_bytes = budget.activation_bytes
        else:
            assert budget.total_bytes is not None
            warn_beyond_device(budget.total_bytes, device, self.logger)
            # Once per forward, as the activations saved by its earlier pieces are temporary.
            if device not in self._reserved and self.module is not None:
                self._reserved[device] = reserved_bytes(self.module, device)
            options.reserved_bytes = self._reserved.get(device, 0)
            options.budget_bytes = budget.total_bytes - options.reserved_bytes
        if options.budget_bytes is not None and self.bytes is None:
            self.bytes = options.budget_bytes

    def add_piece(self, compiled: Any, training: bool, runs: Sequence[Any]) -> None:
        """Add a new piece; `runs` are the runs of pieces before it in this forward."""
        if self._accumulates:
            compiled.assume_accumulation()
        if self.bytes is not None and training:
            _C.reserve_budget(compiled, runs)

    def divide(self, record: ForwardRecord) -> None:
        """After a forward with new pieces, divide the budget among them, from the next step on.

        Raises:
            ORTModuleError: they cannot fit it, and `ORTMODULE_MEMORY_OPT_STRICT` is set.
        """
        if self.bytes is None or not torch.is_grad_enabled():
            return
        peak = _C.divide_budget(record.runs, self.bytes, self._beside(record))
        if peak is not None:
            found = self._of_pieces(peak)
            if self.request.strict:
                raise _C.ORTModuleError(found.text(self._options))
            self._warn(found)

    def fell_short(self, found: Any) -> None:
        """A piece runs above its budget (`_C.BudgetShortfall`); `end_forward` reports it."""
        self._shortfall = found

    def end_forward(self, record: ForwardRecord) -> None:
        """After a forward: warn, once, if the step does not fit the budget."""
        found, self._shortfall = self._shortfall, None
        if found is None or _BUDGET in self.warned:
            return
        if self.bytes is not None and len(set(record.runs)) > 1:
            # Together the pieces may fit, although one of them exceeds its share.
            found = self._of_pieces(_C.planned_peak(record.runs, self._beside(record)))
        if found.step_bytes > found.budget_bytes:
            self._warn(found)

    def _beside(self, record: ForwardRecord) -> list[Any]:
        """`_C.BesideRun` of each run: a budget for the whole device also covers what FSDP2 holds."""
        budget = self.request.budget
        whole = budget is not None and budget.total_bytes is not None
        found = beside(self.module, record)
        return engine_beside(found, with_gathered=whole)

    def _of_pieces(self, peak_bytes: int) -> Any:
        assert self.bytes is not None
        return _C.BudgetShortfall(budget_bytes=self.bytes, step_bytes=peak_bytes, has_pieces=True)

    def _warn(self, found: Any) -> None:
        if _BUDGET not in self.warned:
            self.warned.add(_BUDGET)
            self.logger.warning(
                "ortmodule_py: %s. It runs above the budget, with the least memory that was found; said once",
                found.text(self._options),
            )

    def release(self) -> None:
        """Drop the reference to the module."""
        self.module = None

    def _has_gradients(self) -> bool:
        module = self.module
        return module is not None and any(p.grad is not None for p in module.parameters())


def _trained_before(pieces: Sequence[Any], first_run: int) -> bool:
    """Whether any piece ran for training before run `first_run` of this process."""
    known = (piece.facts() for piece in pieces)
    return any(f["training"] and 0 < f["last_run"] <= first_run for f in known)


def reserved_bytes(module: nn.Module, device: torch.device) -> int:
    """Bytes of a whole-device budget that the step cannot use.

    They are this rank's parts of parameters, buffers and optimizer state (two values per trainable
    parameter, as in Adam, also before it is allocated); on CUDA also the process's other tensors. If
    those are larger than the optimizer state, they are assumed to include it.
    """
    parameters = [(local_bytes(p), p.requires_grad) for p in held_parameters(module)]
    held = sum(size for size, _ in parameters)
    held += sum(local_bytes(b) for b in module.buffers())
    state = sum(2 * size for size, trained in parameters if trained)
    if device.type != "cuda":
        return held + state
    others = max(torch.cuda.memory_allocated(device) - held, 0)
    return held + others + (state if others < state else 0)


def beside(module: nn.Module | None, record: ForwardRecord) -> list[Beside]:
    """What FSDP2 holds around each run of a forward of `module`; empty if nothing is sharded."""
    if module is None or not any(record.parameters):
        return []
    gradients = [run.facts().get("gradient_bytes", 0) for run in record.runs]
    return beside_runs(units_of(module), record.parameters, gradients, record.passed)


def engine_beside(found: Sequence[Beside], *, with_gathered: bool) -> list[Any]:
    """`found` as `_C.BesideRun`; without the gathered parameters figures are of the engine's bytes alone."""
    return [
        _C.BesideRun(
            gradient_bytes=one.gradient_bytes,
            around_bytes=one.passing_bytes + (one.around_bytes if with_gathered else 0),
            behind_bytes=one.behind_bytes if with_gathered else 0,
        )
        for one in found
    ]


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
