"""Compares a step with eager PyTorch; the tolerance is a multiple of eager's own error."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py.report.compare.observation import (
    Batch,
    Change,
    Generators,
    Observation,
    in_float64,
    is_inexact,
    observe,
    real_numbers,
)

_LOW_PRECISION = (torch.float16, torch.bfloat16)
_PERTURBATIONS = {
    torch.float64: 1e-15,
    torch.float32: 3e-7,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}
"""Relative, about one rounding."""
_REFERENCE_LIMIT = 1e-2
"""Eager's error against float64, relative to the largest gradient, above which the float64 run is no
reference: it computed something else, for example with other random numbers."""


@dataclass
class Deviation:
    """The error of one tensor against the reference, and the allowed error (absolute)."""

    kind: str
    """gradient, output, buffer or input."""
    name: str
    error: float
    allowed: float

    @property
    def is_within(self) -> bool:
        """Whether the error is allowed; False for NaN."""
        return self.error <= self.allowed

    @property
    def ratio(self) -> float:
        """Error as a multiple of the allowed error."""
        if self.error == 0:
            return 0.0
        return self.error / self.allowed if self.allowed else math.inf

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: error {self.error:.3g}, allowed {self.allowed:.3g}"


@dataclass
class Comparison:
    """The deviations of all tensors of a step, and the differences from eager PyTorch as text."""

    deviations: list[Deviation] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    reference: str = "float64"
    largest_gradient: float = 0.0

    def worst(self, kind: str) -> Deviation | None:
        """The deviation with the largest ratio."""
        found = [d for d in self.deviations if d.kind == kind]
        return max(found, key=lambda d: d.ratio, default=None)

    @property
    def ok(self) -> bool:
        """Whether there is no difference."""
        return not self.differences


@dataclass
class Eager:
    """Runs the original module in eager PyTorch: as it is, in float64, and perturbed."""

    module: nn.Module
    target: Callable[[nn.Module], Callable[..., Any]]
    """Module -> callable to run: the module itself, or a function that drops some of its outputs."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    generators: Generators
    why_inexact: str = ""

    def observe(self) -> Observation:
        """Run the module itself."""
        self.generators.restore()
        return observe(self.target(self.module), self.module, Batch(self.args, self.kwargs))

    def exact(self) -> Observation | None:
        """Run a copy in float64; None, with the reason in `why_inexact`, if that fails."""
        try:
            module = copy.deepcopy(self.module).double()  # which leaves complex numbers alone
            if any(t.is_complex() for t in (*module.parameters(), *module.buffers())):
                module._apply(in_float64)
            self.generators.restore()
            batch = Batch(self.args, self.kwargs, in_float64)
            return observe(self.target(module), module, batch)
        except Exception as error:  # the model's code may not support float64
            self.why_inexact = f"float64 fails: {type(error).__name__}: {error}".splitlines()[0]
            return None

    def perturbed(self, seed: int) -> Observation | None:
        """Run a copy whose parameters and inputs are perturbed by one rounding; None if it cannot be copied."""
        generator = torch.Generator().manual_seed(seed)

        def perturb(tensor: Tensor) -> Tensor:
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            return tensor * (1 + _PERTURBATIONS.get(tensor.dtype.to_real(), 0.0) * noise)

        try:
            module = copy.deepcopy(self.module)
        except Exception:  # the model's code
            return None
        with torch.no_grad():
            for parameter in module.parameters():
                if is_inexact(parameter):
                    parameter.copy_(perturb(parameter))
        self.generators.restore()
        change: Change = perturb
        return observe(self.target(module), module, Batch(self.args, self.kwargs, change))


def compare(ours: Observation, plain: Observation, eager: Eager) -> Comparison:
    """Compare a step with eager's: its error against float64 may be twice that of eager.

    If an error is larger, eager's noise is measured by perturbed runs, and errors within a multiple of
    the noise are allowed.
    """
    exact = eager.exact()
    result = Comparison()
    if exact is not None and not _is_comparable(plain, exact):
        exact, eager.why_inexact = None, "float64 computes something else"
    if exact is None:
        result.reference = f"eager ({eager.why_inexact})"
    result.differences = _structure(ours, plain)
    reference = plain if exact is None else exact
    result.largest_gradient = _largest(reference.gradients.values())
    result.deviations = list(_deviations(ours, plain, reference, result.largest_gradient))
    if not all(d.is_within for d in result.deviations):
        for seed in range(2):
            _allow_noise(result.deviations, plain, eager.perturbed(seed))
    failed = [d for d in result.deviations if not d.is_within]
    result.differences += map(str, sorted(failed, key=lambda d: -d.ratio))
    return result


def _groups(seen: Observation) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "gradient", seen.gradients
    yield "output", seen.outputs
    yield "buffer", seen.buffers
    yield "input", seen.inputs


def _structure(ours: Observation, plain: Observation) -> list[str]:
    """Values that are absent in one of both, or differ in type, dtype or shape."""
    found = []
    for (kind, mine), (_, theirs) in zip(_groups(ours), _groups(plain), strict=True):
        for name in [*theirs, *(n for n in mine if n not in theirs)]:
            a, b = _described(mine, name), _described(theirs, name)
            if a != b:
                found.append(f"{kind} {name}: {a}, but eager {b}")
    return found


def _described(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return "absent"
    value = values[name]
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if is_plain else type(value).__name__


def _deviations(
    ours: Observation, plain: Observation, reference: Observation, largest_gradient: float
) -> Iterator[Deviation]:
    low = _is_low_precision(plain)
    groups = zip(_groups(ours), _groups(plain), _groups(reference), strict=True)
    for (kind, mine), (_, theirs), (_, exact) in groups:
        for name, tensor in theirs.items():
            other, best = mine.get(name), exact.get(name)
            if not isinstance(other, Tensor) or not isinstance(best, Tensor):
                continue
            if not isinstance(tensor, Tensor) or not tensor.shape == other.shape == best.shape:
                continue
            if is_inexact(tensor):
                scale = largest_gradient if kind == "gradient" else max(_largest([tensor]), 1e-2)
                allowed = _allowed(tensor, _error(tensor, best), scale, low)
                yield Deviation(kind, name, _error(other, best), allowed)
            else:
                allowed = 2.0 * _unequal(tensor, best)
                yield Deviation(kind, name, _unequal(tensor, other), allowed)


def _allowed(tensor: Tensor, own: float, scale: float, low: bool) -> float:
    """A multiple of eager's own error, but at least a small part of the largest value."""
    # If all values cancel to zero, the precision is the only scale.
    noise = (8 if scale else 1024) * torch.finfo(tensor.dtype).eps
    if low:
        return max(3 * own, 3e-2 * scale, noise)
    floor = 1e-7 if tensor.dtype in (torch.float64, torch.complex128) else 1e-4
    return max(2 * own, floor * scale, noise)


def _allow_noise(
    deviations: list[Deviation], plain: Observation, perturbed: Observation | None
) -> None:
    if perturbed is None:
        return
    theirs, others = dict(_groups(plain)), dict(_groups(perturbed))
    for deviation in deviations:
        a = theirs[deviation.kind][deviation.name]
        b = others[deviation.kind].get(deviation.name)
        if isinstance(b, Tensor) and a.shape == b.shape:
            noise = _error(a, b) if is_inexact(a) else float(_unequal(a, b))
            deviation.allowed = max(deviation.allowed, 4 * noise)


def _is_comparable(plain: Observation, exact: Observation) -> bool:
    """Whether float64 computed the same step, within eager's precision."""
    limit = 0.5 if _is_low_precision(plain) else _REFERENCE_LIMIT
    largest = _largest(exact.gradients.values())
    for name, gradient in plain.gradients.items():
        best = exact.gradients.get(name)
        if (gradient is None) != (best is None):
            return False
        if gradient is not None and best is not None:
            if gradient.shape != best.shape:
                return False
            if not _error(gradient, best) <= limit * largest:
                return False
    return True


def _is_low_precision(seen: Observation) -> bool:
    tensors = [t for _, group in _groups(seen) for t in group.values() if isinstance(t, Tensor)]
    autocast = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
    return autocast or any(t.dtype in _LOW_PRECISION for t in tensors)


def _largest(values: Any) -> float:
    floats = [t for t in values if isinstance(t, Tensor) and is_inexact(t) and t.numel()]
    finite = (_numbers(t.detach()).nan_to_num(0.0, 0.0, 0.0) for t in floats)
    return max((float(t.abs().max()) for t in finite), default=0.0)


def _numbers(tensor: Tensor) -> Tensor:
    dense = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return real_numbers(dense).double()


def _error(a: Tensor, b: Tensor) -> float:
    """The largest absolute difference; infinite if only one of two elements is finite."""
    a, b = _numbers(a), _numbers(b)
    known = a.isfinite()
    if not torch.equal(known, b.isfinite()):
        return math.inf
    difference = (a - b)[known]
    return float(difference.abs().max()) if difference.numel() else 0.0


def _unequal(a: Tensor, b: Tensor) -> float:
    """The number of elements that differ."""
    return float((a != b).sum())
