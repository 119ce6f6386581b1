"""Selection of a model's outputs: those that training does not read are not computed."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

VARIABLE = "ORTMODULE_OUTPUTS"


def requested_outputs(argument: Sequence[str | int] | str | int | None) -> tuple[str, ...] | None:
    """Names (or positions) of the wanted outputs, from the argument or else the environment; None: all.

    Raises:
        ValueError: the list is empty.
        TypeError: the argument is not a sequence, or an entry is neither a name nor a position.
    """
    if argument is None:
        text = os.environ.get(VARIABLE, "")
        if not text.strip():
            return None
        names: list[Any] = [name.strip() for name in text.split(",") if name.strip()]
        where = VARIABLE
    else:
        where = "outputs"
        if isinstance(argument, (str, int)):
            argument = [argument]
        if not isinstance(argument, Iterable):
            raise TypeError(f"[{where}] outputs must be a sequence, but found {argument!r}")
        names = list(argument)
    if not names:
        raise ValueError(f"[{where}] at least one output must be named, but found none")
    for name in names:
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise TypeError(f"[{where}] an output must be a name or a position, but found {name!r}")
    return tuple(str(name) for name in names)


def with_outputs(module: nn.Module, wanted: tuple[str, ...]) -> Callable[..., Any]:
    """`module` as a function that in training returns None for every output that is not wanted."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        result = module(*args, **kwargs)
        return selected(result, wanted) if module.training else result

    return forward


def by_name(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments as keywords if the signature allows it, so that reports can name them."""
    names = list(signature.parameters.values())[: len(args)]
    if len(names) < len(args) or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in names):
        return args, kwargs
    given = {p.name: value for p, value in zip(names, args, strict=True)}
    if given.keys() & kwargs.keys():
        return args, kwargs  # an error, which the call itself raises
    return (), given | kwargs


def selected(result: Any, wanted: tuple[str, ...]) -> Any:
    """`result` with None for every output that is not wanted.

    Outputs are selected by key in a dict or model output, by field or position in a tuple, by field in a
    dataclass. A single tensor is returned as it is.

    Raises:
        ValueError: a wanted output does not exist.
        TypeError: `result` has another type.
    """
    if result is None or isinstance(result, Tensor):
        return result
    if isinstance(result, dict):
        _check(wanted, [str(key) for key in result])
        kept = {key: value if str(key) in wanted else None for key, value in result.items()}
        # The constructor of a model output takes fields; keys of a plain dict may be of any type.
        return kept if type(result) is dict else type(result)(**kept)
    if isinstance(result, (tuple, list)):
        fields = getattr(result, "_fields", None)
        names = list(fields) if fields else [str(i) for i in range(len(result))]
        positions = [str(i) for i in range(len(result))]
        _check(wanted, names if fields else positions)
        values = [
            value if name in wanted or position in wanted else None
            for name, position, value in zip(names, positions, result, strict=True)
        ]
        kind: Any = type(result)
        return kind(*values) if fields else kind(values)
    if dataclasses.is_dataclass(result):
        return _with_fields(result, wanted)
    raise TypeError(
        "[outputs] forward must return a dict, a tuple or a dataclass for outputs to be chosen, but "
        f"found {type(result).__name__}; leave outputs out"
    )


def _with_fields(result: Any, wanted: tuple[str, ...]) -> Any:
    """The constructor of the dataclass is not called: it may refuse None."""
    names = [field.name for field in dataclasses.fields(result)]
    _check(wanted, names)
    kept = object.__new__(type(result))
    for name in names:
        object.__setattr__(kept, name, getattr(result, name) if name in wanted else None)
    return kept


def _check(wanted: tuple[str, ...], known: list[str]) -> None:
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"[outputs] an output must be one of {', '.join(known)}, but found {name!r}"
            )


def parameters_behind(outputs: Iterable[Tensor]) -> set[int]:
    """Identities of the leaves that a backward pass from these outputs reaches."""
    left, seen = [output.grad_fn for output in outputs], set[Any]()
    found: set[int] = set()
    while left:
        node: Any = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.add(id(leaf))
        left.extend(following for following, _ in node.next_functions)
    return found
