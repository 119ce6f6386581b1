"""`ORTMODULE_PRINT_MEMORY_STATS`: a line with the allocated bytes at four points of a step."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ortmodule_py.base.cpu_memory import cpu_memory_stats, install_counting_allocator
from ortmodule_py.base.environment import rank
from ortmodule_py.base.tree import tensors

_MIB = 2**20


def _is_shown(step: int) -> bool:
    """Steps 0 to 9, then powers of two."""
    return step < 10 or step & (step - 1) == 0


class MemoryStatsPrinter:
    """Prints one line before and after forward and backward.

    On the CPU it counts tensor storages allocated after its construction, by requested bytes; torch's
    CPU allocator has no cache. On a GPU, that of the module's first parameter, it reads the counters of
    torch's caching allocator without a synchronization. A forward without backward prints no lines for
    backward, and a backward pass that fails prints only the line of its start.
    """

    def __init__(self, module: nn.Module, logger: logging.Logger) -> None:
        self._module = module
        self._logger = logger
        self._step = 0
        self._rank = rank()
        install_counting_allocator()

    def before_forward(self) -> None:
        """To be called at the start of a forward."""
        self._print("pre_forward")

    def after_forward(self, result: Any, training: bool) -> None:
        """To be called at the end of a forward, with its result. Without a backward pass the step ends
        here."""
        self._print("post_forward")
        outputs = [t for t in tensors(result) if t.requires_grad] if training else []
        if not outputs:
            self._step += 1
            return
        begun = [False]

        def on_gradient(gradient: Tensor) -> Tensor:
            if not begun[0]:
                begun[0] = True
                self._print("pre_backward")
                torch.autograd.Variable._execution_engine.queue_callback(finish)
            return gradient

        def finish() -> None:
            begun[0] = False
            self._print("post_backward")
            self._step += 1

        for output in outputs:
            output.register_hook(on_gradient)

    def _print(self, phase: str) -> None:
        if self._rank != 0 or not _is_shown(self._step):
            return
        parameters = list(self._module.parameters())
        device = parameters[0].device if parameters else torch.device("cpu")
        held = {
            **(_cuda_counts(device) if device.type == "cuda" else _cpu_counts()),
            "param": sum(_bytes(p) for p in parameters),
            "grad": sum(_bytes(p.grad) for p in parameters if p.grad is not None),
            "buffer": sum(_bytes(b) for b in self._module.buffers()),
        }
        values = " | ".join(f"{name}: {count // _MIB}" for name, count in held.items())
        self._logger.warning(
            "rank-%d step %d memory (MiB) | phase: %s | %s", self._rank, self._step, phase, values
        )


def _cpu_counts() -> dict[str, int]:
    stats = cpu_memory_stats()
    none = dict.fromkeys(("cached", "max cached", "inactive", "max inactive"), 0)
    return {"allocated": stats.current_bytes, "max allocated": stats.peak_bytes, **none}


def _cuda_counts(device: torch.device) -> dict[str, int]:
    stats = torch.cuda.memory_stats(device)
    kinds = {"allocated": "allocated", "cached": "reserved", "inactive": "inactive_split"}
    counts = {}
    for name, kind in kinds.items():
        # Counters are missing before the first allocation of a process.
        counts[name] = stats.get(f"{kind}_bytes.all.current", 0)
        counts[f"max {name}"] = stats.get(f"{kind}_bytes.all.peak", 0)
    return counts


def _bytes(tensor: Tensor) -> int:
    # Parameters of lazy layers have no shape yet.
    return 0 if is_lazy(tensor) else tensor.numel() * tensor.element_size()
