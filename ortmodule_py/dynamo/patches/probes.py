"""Probes the table's rows in a torch that is newer than all tested ones.

Each probe runs a tiny program in eager PyTorch and in an ORTModule. The results are cached in a file per
version of torch and of this package. A row whose probe fails is turned off.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py import _C
from ortmodule_py.base.cache_files import FOLDER, cache_path, file_name, read_json, write_json
from ortmodule_py.dynamo.patches import table

Wrap = Callable[[nn.Module], Any]
"""Makes an ORTModule that logs nothing."""
Report = Callable[[Any], Any]
"""`last_run_report`."""


class _Of(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Trial:
    """Runs one program in eager PyTorch and in an ORTModule, and keeps the report of the latter."""

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
        """Whether these calls have the same values, gradients and errors in an ORTModule as in eager.

        `make` returns a function or a module; `between` changes it between two calls.
        """
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
    """Value and gradients of a call, or the type of its exception."""
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


def check(wrap: Wrap, report: Report) -> None:
    """Turn off each row that does not hold in this torch; does nothing in a tested one."""
    if table.running_torch() <= table.NEWEST or torch._dynamo.config.disable:
        return
    version = f"{file_name(torch.__version__)}-{file_name(_C.__version__)}"
    path = cache_path(f"dynamo-patches-{version}.json")
    states = read_json(path)
    if not isinstance(states, dict) or set(states) != set(table.rows):
        with _undisturbed():
            states = {name: _state(row, Trial(wrap, report)) for name, row in table.rows.items()}
        write_json(path, states)
    for name, state in states.items():
        if state != table.HOLDS:
            _turn_off(table.rows[name], str(state))


def _state(row: table.Row, trial: Trial) -> str:
    """`HOLDS`, or why the row does not."""
    if row.state != table.HOLDS:
        return row.state
    try:
        works = row.probe(trial)
    except Exception as error:
        return f"its probe fails: {type(error).__name__}: {error}".partition("\n")[0]
    return table.HOLDS if works else "its probe gives another result"


def _turn_off(row: table.Row, reason: str) -> None:
    row.turn_off(reason)
    effect = "is slower" if row.needed_by is None else "runs in eager PyTorch"
    logging.getLogger("ortmodule_py").warning(
        "ortmodule_py: torch %s is newer than all tested ones, and %r of build_info() does not hold (%s); "
        "code that needs it %s: %s",
        torch.__version__,
        row.name,
        reason,
        effect,
        row.purpose,
    )


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A context without our environment variables, which keeps the state of torch's generator.

    Dynamo does not measure the latency of each capture's guards, which would take a fifth of all time.
    """
    guards = vars(torch._dynamo.guards)
    measure = guards.get("profile_guard_manager")
    given = {name: os.environ[name] for name in os.environ if name.startswith("ORTMODULE_")}
    try:
        for name in set(given) - {FOLDER}:
            del os.environ[name]
        guards["profile_guard_manager"] = lambda *_: 0.0
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        guards["profile_guard_manager"] = measure
        os.environ.update(given)
