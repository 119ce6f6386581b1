"""The process that runs one variant of one model; ``benchmarks.processes`` talks to it.

It is started with its configuration as JSON, reads one JSON command per line from standard input
and answers each with one JSON line. Everything else that is printed goes to standard error.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


def _processor_seconds() -> float:
    """User and system time of this process, its threads, and children that have ended."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


class Worker:
    """Holds the model, and has one method per command."""

    def __init__(self, config: Answer) -> None:
        if config.get("core") is not None:
            os.sched_setaffinity(0, {config["core"]})
        import torch

        # Not part of anybody's first step: Dynamo imports the others at its first capture or before.
        import torch._dynamo.backends.debugging
        import torch._dynamo.repro.after_dynamo
        import torch._functorch.aot_autograd

        from ortmodule_py.testing import install_counting_allocator

        install_counting_allocator()
        torch.set_num_threads(config["threads"])
        self.torch = torch
        self.config = config
        self.variant: str = config["variant"]

    def setup(self) -> Answer:
        """Make the module, its optimizer and a batch."""
        from benchmarks import models, variants

        self.model = models.make(self.config["model"], layers=self.config.get("layers"))
        self.parameters = list(self.model.module.parameters())
        self.run = variants.wrap(self.model, self.variant)
        self.optimizer = self.torch.optim.AdamW(self.parameters, lr=1e-4)
        self.batch = self.model.batch(self.config.get("batch_size") or self.model.batch_size)
        return {"parameter_bytes": sum(p.nbytes for p in self.parameters)}

    def _step(self) -> None:
        self.run(**self.batch).backward()

    def _clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _timed_step(self, clock: Callable[[], float] = time.process_time) -> tuple[float, float]:
        self._clear_gradients()
        wall, processor = time.perf_counter(), clock()
        self._step()
        return time.perf_counter() - wall, clock() - processor

    def first(self) -> Answer:
        """The first forward and backward, with whatever it compiles."""
        from benchmarks import variants

        wall, processor = self._timed_step(_processor_seconds)
        answer = {"first_wall_s": wall, "first_processor_s": processor}
        report = variants.report(self.run, self.variant)
        return answer | {"stages_ms": report.get("stages_ms", {})}

    def steps(self, count: int, least_s: float = 0.0) -> Answer:
        """Forward and backward, each timed; gradients start as None.

        At least ``count`` steps and ``least_s`` seconds: a turn of a few short steps would time
        the caches that the variant before has emptied.
        """
        times: list[tuple[float, float]] = []
        while len(times) < count or sum(wall for wall, _ in times) < least_s:
            times.append(self._timed_step())
        return {"wall_ms": [t[0] * 1e3 for t in times], "processor_ms": [t[1] * 1e3 for t in times]}

    def warm(self) -> Answer:
        """Two steps that nobody looks at."""
        self.steps(2)
        return {}

    def memory(self) -> Answer:
        """Peaks of one step in several settings; see ``benchmarks.run`` for their meaning."""
        from benchmarks import variants
        from ortmodule_py import testing

        self._clear_gradients()
        self._step()
        self.optimizer.step()  # makes the optimizer's state
        with testing.measure_peak() as accumulating:
            self._step()
        self._clear_gradients()
        with testing.measure_peak() as fresh:
            loss = self.run(**self.batch)
            saved = testing.cpu_memory_stats().current_bytes - fresh.start_bytes
            loss.backward()
        del loss
        with testing.measure_peak() as whole:
            self._clear_gradients()
            self._step()
            self.optimizer.step()
        self._clear_gradients()
        testing.reset_vm_hwm()
        resident = testing.vm_rss_bytes()
        self._step()
        answer = {
            "activation_peak_bytes": accumulating.peak_above_start,
            "fresh_peak_bytes": fresh.peak_above_start,
            "saved_bytes": saved,
            "total_peak_bytes": whole.peak_bytes,
            "vm_hwm_bytes": testing.vm_hwm_bytes() - resident,
        }
        return answer | {"report": variants.report(self.run, self.variant)}

    def gradients(self) -> Answer:
        """Largest errors of gradients and of statistics against float64 eager, without dropout."""
        from benchmarks import models, variants

        model = models.make(self.config["model"], dropout=0.0)
        batch = model.batch(model.batch_size)
        exact = models.make(self.config["model"], dropout=0.0).module.double()
        exact(
            **{k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        ).backward()
        variants.wrap(model, self.variant)(**batch).backward()
        largest, worst, where = 0.0, 0.0, ""
        pairs = zip(model.module.named_parameters(), exact.parameters(), strict=True)
        for (name, parameter), reference in pairs:
            if parameter.grad is None or reference.grad is None:
                raise RuntimeError(f"{name} has no gradient")
            largest = max(largest, reference.grad.abs().max().item())
            error = (parameter.grad.double() - reference.grad).abs().max().item()
            if math.isnan(error):
                return {"gradient_error": error, "gradient_error_where": name}
            if error > worst:
                worst, where = error, name
        return {
            "gradient_error": worst / largest,
            "gradient_error_where": where,
            "statistics_error": _statistics_error(model.module, exact),
        }

    def new_shape(self, batch_size: int, length: int | None = None) -> Answer:
        """The first and the second step at another shape."""
        from benchmarks import variants

        self.batch = self.model.batch(batch_size, length if self.model.lengths else None)
        before = variants.report(self.run, self.variant)
        first, again = (self._timed_step(_processor_seconds) for _ in range(2))
        after = variants.report(self.run, self.variant)
        return {
            "plans_ms": _stage(after, "plan") - _stage(before, "plan") if after else None,
            "captures": after["captures"] - before["captures"] if after else None,
            "new_shape_wall_ms": first[0] * 1e3,
            "new_shape_processor_ms": first[1] * 1e3,
            "again_wall_ms": again[0] * 1e3,
            "again_processor_ms": again[1] * 1e3,
        }


def _statistics_error(module: Any, exact: Any) -> float | None:
    """Largest relative error of running statistics after one step; None if there are none."""
    errors = [
        ((mine.double() - reference).abs().max() / reference.abs().max()).item()
        for (name, mine), reference in zip(module.named_buffers(), exact.buffers(), strict=True)
        if "running" in name
    ]
    return max(errors, default=None)


def _stage(report: Answer, name: str) -> float:
    return float(report["stages_ms"].get(name, 0.0))


_COMMANDS: dict[str, Callable[..., Answer]] = {
    "setup": Worker.setup,
    "first": Worker.first,
    "warm": Worker.warm,
    "steps": Worker.steps,
    "memory": Worker.memory,
    "gradients": Worker.gradients,
    "new_shape": Worker.new_shape,
}


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def main() -> None:
    """Answer commands until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker: Worker | None = None
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("command")
        try:
            if worker is None:
                worker = Worker(json.loads(sys.argv[1]))
            answer = _COMMANDS[name](worker, **command)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": _reason(error)}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
