"""The guards of one layer, asked of another: whether Dynamo would trace the two alike.

Dynamo guards whatever it reads of a layer by its source, as `L['self'].layers[0].dropout.p`. The same source below
another layer names what that layer has there. The trace is the same if all guards hold for it.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import fx
from torch._guards import ChainedSource, Guard, Source

from ortmodule_py.trace.repeats import describe

_guards: Any = torch._dynamo.guards
_Builder: Any = torch._dynamo.variables.builder.VariableBuilder
_ModuleSource: Any = torch._dynamo.source.NNModuleSource
_TypeSource: Any = torch._dynamo.source.TypeSource

_BY_VALUE = frozenset({"CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH"})
"""Guards of a value; torch compares with ==, which takes 1 for True and 0.0 for -0.0."""
_COMPARED = _BY_VALUE | {
    *("TYPE_MATCH", "ID_MATCH", "CLASS_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "MODULE_MATCH"),
    *("CLOSURE_MATCH", "NONE_MATCH", "HASATTR", "NOT_PRESENT_IN_GENERIC_DICT", "SEQUENCE_LENGTH"),
    *("DICT_CONTAINS", "DICT_NOT_CONTAINS", "DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"),
    "EMPTY_NN_MODULE_HOOKS_DICT",
}
"""Guards of which torch's own comparison for copied regions is used."""
_FOREIGN = frozenset({"RANDOM_VALUE", "SYNTHETIC_LOCAL", "EPHEMERAL", "BACKWARD_STATE"})
"""Kinds of sources whose values belong to one call."""


class UnequalError(Exception):
    """A layer is not traced as an earlier one, or that is not known."""


@dataclasses.dataclass
class _Known:
    """A guard, and what it found for the layer that was traced."""

    guard: Guard
    kind: str
    value: Any
    expected: Any


class GuardsOf:
    """The guards of a traced layer, but for those of the sources `own`, which may differ from layer to layer.

    `UnequalError` if one of them cannot be asked of another layer.
    """

    def __init__(self, source: Source, tx: Any, own: Set[Source] = frozenset()) -> None:
        self.source = plain_source(source)
        self.path = _module_path(self.source)
        self._tx = tx
        self._read: dict[Source, Any] = {}
        self._known: list[_Known] = []
        self._tensors: list[Source] = []
        self._twins: list[tuple[Guard, Source]] = []
        paths = Paths(self, None)
        below = [guard for guard in tx.output.guards if paths.moves(guard.originating_source)]
        typed = {
            guard.originating_source for guard in below if guard.create_fn_name() == "TYPE_MATCH"
        }
        for guard in below:
            source = guard.originating_source
            if source not in own and not _is_of_class(source, typed):
                self._add(guard)

    def _add(self, guard: Guard) -> None:
        kind, source = guard.create_fn_name(), guard.originating_source
        if kind == "TENSOR_MATCH":
            self._tensors.append(source)
        elif kind == "DUPLICATE_INPUT":
            self._twins.append((guard, guard.create_fn.keywords["source_b"]))
        elif kind in _COMPARED:
            value = self.value(source)
            expected = _guards.GUARD_VALUE_DISPATCH[kind].get_metadata_fn(guard, value)
            self._known.append(_Known(guard, kind, value, expected))
        else:
            raise UnequalError(kind)

    def value(self, source: Source) -> Any:
        """The Python object that a source names."""
        frame = self._tx.output.root_tx
        try:
            return source.get_value({"G": frame.f_globals, "L": frame.f_locals}, {}, self._read)
        except Exception as error:  # the code of a source is a user's property, for example
            raise UnequalError(source.name) from error

    def moved_to(self, source: Source) -> Paths:
        """The sources of another layer; `UnequalError` if a guard does not hold for it."""
        paths = Paths(self, plain_source(source))
        for known in self._known:
            value = self.value(paths.of(known.guard.originating_source))
            if not _guards.GUARD_VALUE_DISPATCH[known.kind].eval_fn(value, known.expected):
                raise UnequalError(known.kind)
            if known.kind in _BY_VALUE and not _same(value, known.value):
                raise UnequalError(known.kind)
        for guard, twin in self._twins:
            if self.value(paths.of(guard.originating_source)) is not self.value(paths.of(twin)):
                raise UnequalError("objects that are one")
        for tensor in self._tensors:
            paths.inputs[tensor] = self._input(tensor, paths.of(tensor))
        return paths

    def _input(self, known: Source, source: Source) -> Any:
        """Make a tensor of another layer an input, as Dynamo does where the layer reads it."""
        value = self.value(source)
        if type(value) is not type(self.value(known)):
            raise UnequalError("types of tensors")
        old = _Builder(self._tx, known)(self.value(known))
        new = _Builder(self._tx, source)(value)
        if _described(old) != _described(new):
            raise UnequalError("sizes of tensors")
        return new

    def guards(self, paths: Paths) -> list[Guard]:
        """The guards, of another layer."""
        made = [paths.guard(known.guard, known.guard.create_fn) for known in self._known]
        for guard, twin in self._twins:
            create: Any = guard.create_fn
            moved = functools.partial(
                create.func, **{**create.keywords, "source_b": paths.of(twin)}
            )
            made.append(paths.guard(guard, moved))
        return made


class Paths:
    """Sources below one layer -> the same below another."""

    def __init__(self, guards: GuardsOf, target: Source | None) -> None:
        self._guards = guards
        self._target = target
        self._moved: dict[Source, Source | None] = {}
        self.inputs: dict[Source, Any] = {}
        """Tensors of the traced layer -> Dynamo's variables of the other's."""
        self._path = "" if target is None else _module_path(target)

    def moves(self, source: Source) -> bool:
        """Whether a source lies below the layer."""
        return self._find(source) is not source

    def of(self, source: Source) -> Source:
        """The same below the other layer; a source elsewhere stays what it is."""
        moved = self._find(source)
        assert moved is not None
        return moved

    def _find(self, source: Source) -> Source | None:
        if source == self._guards.source:
            return self._target
        if not isinstance(source, ChainedSource):
            return source
        if source not in self._moved:
            parts = {part.name: getattr(source, part.name) for part in dataclasses.fields(source)}
            parts = {name: part for name, part in parts.items() if isinstance(part, Source)}
            found = {name: self._find(part) for name, part in parts.items()}
            changed = {name: part for name, part in found.items() if part is not parts[name]}
            if None in changed.values():
                self._moved[source] = None
            else:
                self._moved[source] = dataclasses.replace(source, **changed) if changed else source
        return self._moved[source]

    def value(self, source: Source) -> Any:
        """The Python object that a source names."""
        return self._guards.value(source)

    def guard(self, known: Guard, create: Any) -> Guard:
        """The guard of the other layer."""
        source = self.of(known.originating_source)
        return Guard(source, create, stack=known.stack, user_stack=known.user_stack)

    def install(self) -> None:
        """Add the guards of the other layer to the capture."""
        _guards.install_guard(*self._guards.guards(self))

    def input_for(self, node: fx.Node) -> Any | None:
        """Dynamo's variable of what the other layer reads where this one reads `node`; None for the same node."""
        argument = node.meta.get("grapharg")
        source = None if argument is None else argument.source
        if node.op != "placeholder" or source is None or source.guard_source.name in _FOREIGN:
            raise UnequalError(f"reads {node}")
        if source in self.inputs:
            return self.inputs[source]
        if self.moves(source):
            raise UnequalError(f"reads {node}")
        return None

    def rename(self, node: fx.Node, around: Mapping[str, Any]) -> None:
        """Let the path of modules of a copied call name the other layer, inside of the modules `around` it."""
        stack = node.meta.get("nn_module_stack")
        if stack is None:
            return
        old, new = self._guards.path, self._path
        inside = {key: entry for key, entry in stack.items() if entry[0].startswith(old)}
        moved = {key: (new + path[len(old) :], *rest) for key, (path, *rest) in inside.items()}
        node.meta["nn_module_stack"] = {**around, **moved}


def plain_source(source: Source) -> Source:
    """The source of a module without what marks it as one."""
    while isinstance(source, _ModuleSource):
        source = source.base
    return source


def _is_of_class(source: Source, typed: set[Source]) -> bool:
    """Whether a source lies below the class of an object whose class is guarded: layers of a class share it."""
    while isinstance(source, ChainedSource):
        if isinstance(source, _TypeSource) and source.base in typed:
            return True
        source = source.base
    return False


def _module_path(source: Source) -> str:
    """The path of a module as Dynamo gives it to calls: without the dictionaries that hold the modules."""
    return re.sub(r"\._(?:modules|parameters|buffers)\[(['\"])([^'\"\]]+)\1\]", r".\2", source.name)


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and repr(value) == repr(other)


def _described(variable: Any) -> Any:
    fake = variable.as_proxy().node.meta["example_value"]
    return type(variable), type(fake), fake.is_leaf, fake.layout, describe(fake)
