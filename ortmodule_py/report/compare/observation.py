"""The observable results of one training step: outputs, loss, gradients, buffers, inputs."""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]
"""Applied to each tensor of a batch that is inexact: a cast, or a perturbation."""


def is_inexact(tensor: Tensor) -> bool:
    """Whether its numbers are rounded: floats and complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def real_numbers(tensor: Tensor) -> Tensor:
    """The tensor itself; of complex numbers the real and imaginary parts, in a last dim of two."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def in_float64(tensor: Tensor) -> Tensor:
    """In float64 or complex128, if it is inexact."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


@dataclass
class Observation:
    """Copies of the results of one forward and backward, by path or parameter name."""

    loss: float | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of all values in nested containers, and (`len(path)`, length) of the containers."""
    items: list[tuple[Any, Any]] | None = None
    if isinstance(value, Mapping):
        items = [(f"[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None) or [f"[{i}]" for i in range(len(value))]
        items = [(n if n[0] == "[" else f".{n}", i) for n, i in zip(names, value, strict=True)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        items = [(f".{f.name}", getattr(value, f.name)) for f in fields]
    if items is None:
        yield path, value
        return
    yield f"len({path})", len(items)
    for name, item in items:
        yield from leaves(item, path + name)


class Batch:
    """A copy of a model's arguments, which protects the caller's from mutation."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], change: Change = lambda t: t
    ) -> None:
        self._copies: dict[int, Tensor] = {}
        self._change = change
        self.roots: dict[int, Tensor] = {}
        """The copies that require a gradient, by the id of the caller's tensor."""
        self.names = {
            id(value): name
            for name, value in [*leaves(args, "args"), *leaves(kwargs, "kwargs")]
            if isinstance(value, Tensor)
        }
        self.args: tuple[Any, ...] = tuple(map(self._copy, args))
        self.kwargs: dict[str, Any] = {name: self._copy(item) for name, item in kwargs.items()}

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self._copies:
                self._copies[id(value)] = self._copied_tensor(value)
            return self._copies[id(value)]
        if type(value) in (list, tuple):
            return type(value)(map(self._copy, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._copy, value))
        if isinstance(value, (dict, UserDict)):
            # A copy keeps the default of a defaultdict and the encodings of a BatchEncoding.
            copied = copy.copy(value)
            for key, item in value.items():
                copied[key] = self._copy(item)
            return copied
        return value

    def _copied_tensor(self, value: Tensor) -> Tensor:
        root = value.detach().clone()
        if is_inexact(root):
            root = self._change(root)
        if not value.requires_grad:
            return root
        self.roots[id(value)] = root.requires_grad_()
        # The model may mutate a non-leaf, but not a leaf.
        return root if value.is_leaf else root.clone()

    def gradient_roots(self) -> dict[str, Tensor]:
        """The inputs that require a gradient, by path."""
        return {self.names[key]: root for key, root in self.roots.items()}

    def contents(self) -> dict[str, Tensor]:
        """The current values of all inputs, by path."""
        return {self.names[key]: copy.detach() for key, copy in self._copies.items()}


def scalar_loss(result: Any) -> Tensor | None:
    """The tensor that a training script would call backward on; None if no output requires a gradient.

    The output if it is a scalar, else its `loss`, else a tuple's first element if that is a scalar,
    else the sum of all inexact outputs with constant weights, complex ones by their parts.
    """
    candidates = [result]
    if isinstance(result, Mapping):
        candidates.append(result.get("loss"))
    elif isinstance(result, (list, tuple)) and result:
        candidates.append(result[0])
    candidates.append(getattr(result, "loss", None))
    for candidate in candidates:
        if not isinstance(candidate, Tensor) or candidate.is_complex():
            continue
        if candidate.numel() == 1 and candidate.requires_grad:
            return candidate.sum()
    generator = torch.Generator().manual_seed(0)
    terms = []
    for _, value in leaves(result, ""):
        if isinstance(value, Tensor) and value.requires_grad and is_inexact(value):
            parts = real_numbers(value)
            # Quarters are exact in every precision.
            weights = torch.randint(-4, 5, parts.shape, generator=generator) / 4
            terms.append((parts * weights.to(parts.device, parts.dtype)).sum())
    return torch.stack([term.double() for term in terms]).sum() if terms else None


def observe(run: Callable[..., Any], module: nn.Module, batch: Batch) -> Observation:
    """Forward and backward of `run`, which runs `module`; does not change `.grad` of parameters."""
    wanted = {n: p for n, p in module.named_parameters() if p.requires_grad}
    wanted |= batch.gradient_roots()
    with torch.enable_grad():
        result = run(*batch.args, **batch.kwargs)
        loss = scalar_loss(result)
    seen = Observation(loss=None if loss is None else float(loss.detach()))
    for name, value in leaves(result, "output"):
        seen.outputs[name] = value.detach().clone() if isinstance(value, Tensor) else value
    del result
    if loss is not None:
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        seen.gradients = dict(zip(wanted, gradients, strict=True))
    seen.buffers = {n: b.detach().clone() for n, b in module.named_buffers()}
    seen.inputs = batch.contents()
    return seen


class Generators:
    """The states of the random generators of torch (all devices), Python and numpy."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        numpy: Any = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        """Restore all states."""
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)

    def torch_has_drawn(self) -> bool:
        """Whether one of torch's generators was used since the states were saved."""
        now = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        same = all(torch.equal(a, b) for a, b in zip(self._cuda, now, strict=False))
        return not same or not torch.equal(self._cpu, torch.get_rng_state())
