"""The table of captures' dependencies on torch, most of them on private functions of Dynamo.

Each file of this package adds a row or two. `patch` decorates the replacement of a function of torch:
the row finds the function, checks its signature against the replacement's, and calls the replacement
only while Dynamo captures for one of our compilers. `expect` adds a row without a replacement.
`ortmodule_py.build_info()` shows the state of each row.

In a torch newer than all tested ones each row is probed (`probes.py`). A row that does not hold is
turned off: functions that need it run in eager PyTorch.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

FindCompiler = Callable[[Any], Any]
"""Our compiler inside a Dynamo backend, or None."""
Probe = Callable[[Any], bool]
"""Runs a tiny program in a `probes.Trial`; returns whether the row holds."""
NeededBy = Callable[[fx.GraphModule], bool]
"""Whether a captured graph may be wrong if the row does not hold."""
Version = tuple[int, int]

OLDEST: Version = (2, 11)
NEWEST: Version = (2, 14)
"""The newest torch that every row was tested with, as in `tools/torch_facts.py`."""
LOAD_ATTRIBUTE = "torch._dynamo.symbolic_convert:InstructionTranslatorBase._load_attr"
"""Where Dynamo reads `object.name`; before torch 2.14 it calls its `getattr` there."""
HOLDS = "holds"

rows: dict[str, Row] = {}
"""By name."""
_COMPILER = "_ortmodule_compiler"
_find_compiler: FindCompiler


def running_torch() -> Version:
    """Major and minor version of the running torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


@dataclass
class Row:
    """One dependency of captures on torch."""

    name: str
    purpose: str
    """Its effect, in one sentence for users."""
    probe: Probe
    needed_by: NeededBy | None
    """None: without the row, results are the same, but slower."""
    state: str = HOLDS
    """`HOLDS`, or the reason why not."""
    off: bool = False
    """Whether functions that need it run in eager PyTorch."""

    def turn_off(self, reason: str) -> None:
        """Run functions that need this row in eager PyTorch from now on."""
        self.state, self.off = reason, True


@dataclass
class Patch(Row):
    """The replacement of a function of torch."""

    paths: Mapping[Version, str] = field(default_factory=dict)
    """`module:Class.function` to replace, by the first torch where it applies."""
    replacement: Callable[..., Any] = lambda original: None
    """Takes the original function, then its arguments."""
    traced: bool = False
    """Whether Dynamo traces the function, one of a module, instead of calling it: it is then replaced while
    ORTModules run."""
    put: Callable[[], None] = lambda: None
    take_back: Callable[[], None] = lambda: None
    _active: bool = False

    def apply(self) -> None:
        """Install the replacement; `state` is the reason if that fails."""
        since = [version for version in self.paths if version <= running_torch()]
        if not since:
            self.state = f"not for torch before {'.'.join(map(str, min(self.paths)))}"
            return
        path = self.paths[max(since)]
        found = _find(path)
        if found is None:
            self.state = f"torch {torch.__version__} has no {path}"
            return
        owner, name, original = found
        self.state = _misfit(self.replacement, original, path) or HOLDS
        if self.state != HOLDS:
            return
        made = self._around(original)
        if self.traced:
            self.put = functools.partial(setattr, owner, name, made)
            self.take_back = functools.partial(setattr, owner, name, original)
            _traced.append(self)
            return
        # Several rows may replace one function, one around the other: a row that is turned off stays
        # in its place and calls the original.
        static = isinstance(inspect.getattr_static(owner, name, None), (staticmethod, classmethod))
        setattr(owner, name, staticmethod(made) if static else made)
        self.put = functools.partial(setattr, self, "_active", True)
        self.take_back = functools.partial(setattr, self, "_active", False)
        self._active = True

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        replacement = self.replacement
        if self.traced:
            return lambda *args, **kwargs: replacement(original, *args, **kwargs)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            if not self._active or capturing_compiler() is None:
                return original(*args, **kwargs)
            return replacement(original, *args, **kwargs)

        return patched

    def turn_off(self, reason: str) -> None:
        """Also call torch's own function from now on."""
        if self.state == HOLDS and not self.traced:
            self.take_back()
        super().turn_off(reason)


def patch(
    name: str,
    purpose: str,
    replaces: str | Mapping[Version, str],
    *,
    probe: Probe,
    needed_by: NeededBy | None,
    traced: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a row to the table; the decorated function replaces the function `replaces` of torch."""
    paths = {OLDEST: replaces} if isinstance(replaces, str) else replaces

    def add(replacement: Callable[..., Any]) -> Callable[..., Any]:
        rows[name] = Patch(
            name, purpose, probe, needed_by, "not applied", False, paths, replacement, traced
        )
        return replacement

    return add


def expect(name: str, purpose: str, *, needed_by: NeededBy | None) -> Callable[[Probe], Probe]:
    """Add a row without a replacement; the decorated function is its probe."""

    def add(probe: Probe) -> Probe:
        rows[name] = Row(name, purpose, probe, needed_by)
        return probe

    return add


def install(find_compiler: FindCompiler) -> None:
    """Install all replacements, for captures whose backend `find_compiler` recognizes."""
    global _find_compiler
    _find_compiler = find_compiler
    for row in rows.values():
        if isinstance(row, Patch):
            row.apply()


def states() -> dict[str, str]:
    """The state of each row: `HOLDS`, or the reason why not."""
    return {name: row.state for name, row in sorted(rows.items())}


def missing_for(gm: fx.GraphModule) -> Row | None:
    """A row that this graph needs and that is turned off, or None."""
    return next((row for row in rows.values() if row.off and _needs(row, gm)), None)


def _needs(row: Row, gm: fx.GraphModule) -> bool:
    if row.needed_by is None:
        return False
    try:
        return row.needed_by(gm)
    except AttributeError:  # this torch has another structure
        return True


def capturing_compiler() -> Any | None:
    """The compiler of ours that Dynamo currently captures for, or None."""
    output = dynamo_output()
    if output is None:
        return None
    known = vars(output)
    if _COMPILER not in known:
        known[_COMPILER] = _find_compiler(output.compiler_fn)
    return known[_COMPILER]


def dynamo_output() -> Any | None:
    """The OutputGraph of Dynamo's current capture, or None."""
    try:
        return torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output
    except AttributeError:  # no capture
        return None


def break_graph(what: str, why: str, *hints: str) -> None:
    """Break the graph at the call that Dynamo traces: `what` is in the report, the rest in Dynamo's log."""
    torch._dynamo.exc.unimplemented(gb_type=what, context=what, explanation=why, hints=list(hints))


def used_objects() -> Sequence[Any]:
    """The Python objects that Dynamo's current capture uses."""
    output = dynamo_output()
    return () if output is None else output.side_effects.keepalive


def calls(gm: fx.GraphModule) -> Iterator[Any]:
    """The functions and method names that a captured graph calls."""
    for graph in gm.modules():  # bodies of higher-order operators, too
        if isinstance(graph, fx.GraphModule):
            yield from (node.target for node in graph.graph.nodes if node.op.startswith("call"))


def calls_named(gm: fx.GraphModule, names: set[str]) -> bool:
    """Whether a captured graph calls a function or method with one of these names."""
    return any(getattr(target, "__name__", target) in names for target in calls(gm))


def _find(path: str) -> tuple[Any, str, Callable[..., Any]] | None:
    owner_path, _, name = path.rpartition("." if "." in path.partition(":")[2] else ":")
    try:
        owner = pkgutil.resolve_name(owner_path)
        return owner, name, getattr(owner, name)
    except (ImportError, AttributeError):
        return None


def _misfit(replacement: Callable[..., Any], original: Callable[..., Any], path: str) -> str:
    """Why the replacement does not fit the function's signature, or ""."""
    wanted = [
        p.name
        for p in inspect.signature(replacement).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ][1:]
    if not wanted:  # it takes the function's arguments whatever they are, even those of a builtin
        return ""
    try:
        given = list(inspect.signature(original).parameters)
    except (TypeError, ValueError):
        return f"{path} of torch {torch.__version__} is not a Python function"
    if given[: len(wanted)] == wanted:
        return ""
    return f"{path} of torch {torch.__version__} takes ({', '.join(given)}), not ({', '.join(wanted)}, ...)"


class _DuringRuns:
    """Installs the replacements that Dynamo traces while any thread is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                for row in _traced:
                    if row.state == HOLDS:
                        row.put()
            self._inside += 1

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                for row in _traced:
                    if row.state == HOLDS:
                        row.take_back()


_traced: list[Patch] = []
during_runs = _DuringRuns()
"""A context around each run of an ORTModule."""
