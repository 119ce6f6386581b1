"""One case in eager PyTorch, in float64 and in the engine, compared."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.options.memory import ConfigElement

from .generator import Call, Case, generate
from .row_major_norms import batch_norm_of_rows
from .second_gradients import REFUSALS, differentiate_twice

Path = str
Corrupt = Callable[[nn.Module], None]


class Difference(Exception):
    """What the engine did differently from eager PyTorch."""


@dataclass
class Observation:
    """What can be seen of one call and its backward passes."""

    outputs: dict[Path, Any] = field(default_factory=dict)
    gradients: dict[Path, Tensor | None] = field(default_factory=dict)
    first_gradients: dict[Path, Tensor | None] = field(default_factory=dict)
    buffers: dict[Path, Tensor] = field(default_factory=dict)
    inputs: dict[Path, Tensor] = field(default_factory=dict)
    requires_grad: dict[Path, bool] = field(default_factory=dict)


def leaves(value: Any, path: Path = "out") -> Iterator[tuple[Path, Any]]:
    """Everything in nested containers, by path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        yield f"{path}#", type(value).__name__
        for position, item in enumerate(value):
            yield from leaves(item, f"{path}.{position}")
    else:
        yield path, value


def is_inexact(tensor: Tensor) -> bool:
    """Whether its numbers are rounded."""
    return tensor.is_floating_point() or tensor.is_complex()


def numbers(tensor: Tensor) -> Tensor:
    """Its numbers in float64; of a complex tensor the parts."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    return tensor.double()


# ---- running -------------------------------------------------------------------------------------


def _cotangents(
    outputs: dict[Path, Any], call: Call, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that the loss uses and their gradients, some of them not contiguous."""
    generator = torch.Generator().manual_seed(call.loss_seed)
    found = [(n, v) for n, v in outputs.items() if isinstance(v, Tensor) and v.requires_grad]
    coins = torch.rand(len(found), generator=generator).tolist()
    used = [value for (_, value), coin in zip(found, coins, strict=True) if coin < 0.75]
    used = used or [value for _, value in found[:1]]
    grads = []
    for value in used:
        exact = torch.complex128 if value.is_complex() else torch.float64
        draw = torch.randn(value.shape, generator=generator, dtype=exact)
        kind = int(torch.randint(4, (), generator=generator))
        if kind == 0:
            draw = torch.ones((), dtype=exact).expand(value.shape)
        elif kind == 1 and value.dim() > 1:
            draw = draw.transpose(0, 1).contiguous().transpose(0, 1)
        grads.append(draw.to(value.dtype) if kind else draw.to(value.dtype).expand(value.shape))
    del dtype
    return used, grads


_SPOILED_SIZES = [1 << k for k in range(17)] + [3 << k for k in range(15)]


def _gradients(module: nn.Module, tensors: dict[Path, Tensor]) -> dict[Path, Tensor | None]:
    named = [*module.named_parameters(), *tensors.items()]
    return {n: None if p.grad is None else p.grad.detach().clone() for n, p in named}


def _spoil_free_memory() -> None:
    """What lies in memory that was given back becomes NaN: whoever still reads it is found."""
    kept = [torch.full((size,), torch.nan) for size in _SPOILED_SIZES for _ in range(4)]
    del kept


def observe(
    case: Case,
    module: nn.Module,
    index: int,
    dtype: torch.dtype,
    move: Callable[[Tensor], Tensor] = lambda value: value,
) -> Observation:
    """Call `module` as the case says; the same seeds each time. `move` may change the inputs."""
    call = case.calls[index]
    args, kwargs = case.arguments(index, dtype)
    args = [move(arg) for arg in args]
    kwargs = {name: move(arg) for name, arg in kwargs.items()}
    tensors = {f"arg {i}": t for i, t in enumerate(args)} | {
        f"arg {k}": t for k, t in kwargs.items()
    }
    original = module.module if isinstance(module, ORTModule) else module
    seen = Observation()
    original.zero_grad()
    for _ in range(2 if call.action == "accumulate" else 1):
        torch.manual_seed(call.loss_seed)
        with torch.set_grad_enabled(case.mode != "no_grad"), _autocast(case, dtype):
            result = module(*args, **kwargs)
        live = dict(leaves(result))
        _spoil_free_memory()
        used, grads = _cotangents(live, call, dtype)
        named = [*original.parameters(), *tensors.values()]
        if used and call.action == "second":
            sources = [t for t in named if t.requires_grad]
            differentiate_twice(sources, used, grads, between=_spoil_free_memory)
        elif used:
            torch.autograd.backward(used, grads, retain_graph=call.action == "retain")
        if used and call.action == "retain":
            seen.first_gradients = _gradients(original, tensors)
            torch.autograd.backward(used, grads)
    for name, value in live.items():
        seen.outputs[name] = value.detach() if isinstance(value, Tensor) else value
        seen.requires_grad[name] = isinstance(value, Tensor) and value.requires_grad
    seen.gradients = _gradients(original, tensors)
    seen.buffers = {n: b.detach().clone() for n, b in original.named_buffers()}
    seen.inputs = {n: t.detach() for n, t in tensors.items()}
    return seen


def _autocast(case: Case, dtype: torch.dtype) -> Any:
    enabled = case.autocast and dtype == torch.float32
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def is_valid(case: Case) -> bool:
    """Whether eager PyTorch runs the case, with finite values."""
    try:
        module = case.module(case.dtype)
        for index in range(len(case.calls)):
            if not _is_finite(observe(case, module, index, case.dtype)):
                return False
        if case.dtype != torch.float64:
            exact = case.module(torch.float64)
            return all(
                _is_finite(observe(case, exact, index, torch.float64))
                for index in range(len(case.calls))
            )
    # Only eager PyTorch ran here: a module that it refuses is no case. The engine's errors are
    # differences, see run_seed.
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return False
    return True


def _is_finite(seen: Observation) -> bool:
    groups = [seen.outputs, seen.gradients, seen.buffers]
    tensors = [t for group in groups for t in group.values() if isinstance(t, Tensor)]
    floats = [numbers(t) for t in tensors if is_inexact(t) and t.numel()]
    return all(bool(t.isfinite().all()) and float(t.abs().max()) < 1e4 for t in floats)


# ---- comparing -----------------------------------------------------------------------------------


@dataclass
class Tolerance:
    """How much an error may be: a part of the largest value, or a multiple of eager's own error."""

    relative: float
    of_eager: float = 2.0

    def check(self, name: str, ours: Tensor, eager: Tensor, exact: Tensor, largest: float) -> None:
        """Raises Difference with the error and what was allowed."""
        if ours.numel() == 0:
            return
        mine = float((numbers(ours) - numbers(exact)).abs().max())
        theirs = float((numbers(eager) - numbers(exact)).abs().max())
        # What cancels to zero is noise of values of order one; where all of it does, there is no scale.
        eps = torch.finfo(ours.dtype).eps if is_inexact(ours) else 0.0
        noise = (8 if largest > 64 * eps else 1024) * eps
        allowed = max(self.of_eager * theirs, self.relative * largest, noise)
        if not mine <= allowed:
            raise Difference(
                f"{name}: error {mine:.3g}, allowed {allowed:.3g}, largest {largest:.3g}"
            )


def tolerance(case: Case) -> Tolerance:
    """The bound for a case's precision."""
    if case.autocast:
        return Tolerance(3e-2, 3.0)
    if case.dtype != torch.float64:
        return Tolerance(1e-4)
    # torch computes a sixth in float32 there, in float64 too.
    return Tolerance(1e-7 if "hardsigmoid" in case.source or "hardswish" in case.source else 1e-9)


def _largest(values: Sequence[Any]) -> float:
    floats = [numbers(v) for v in values if isinstance(v, Tensor) and is_inexact(v) and v.numel()]
    return max((float(v.abs().max()) for v in floats), default=0.0)


def _strides(tensor: Tensor) -> list[int]:
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def _same_kind(name: str, ours: Tensor, eager: Tensor) -> None:
    if ours.dtype != eager.dtype or ours.shape != eager.shape:
        raise Difference(
            f"{name}: {ours.dtype} {tuple(ours.shape)}, eager {eager.dtype} {tuple(eager.shape)}"
        )


def compare(case: Case, ours: Observation, eager: Observation, exact: Observation) -> None:
    """Raises Difference at the first thing that is not as in eager PyTorch."""
    bound = tolerance(case)
    if list(ours.outputs) != list(eager.outputs):
        raise Difference(f"outputs: {list(ours.outputs)}, eager {list(eager.outputs)}")
    if ours.requires_grad != eager.requires_grad:
        raise Difference(f"requires_grad: {ours.requires_grad}, eager {eager.requires_grad}")
    for name, theirs in eager.outputs.items():
        mine = ours.outputs[name]
        if not isinstance(theirs, Tensor):
            if mine != theirs:
                raise Difference(f"{name}: {mine!r}, eager {theirs!r}")
            continue
        _same_kind(name, mine, theirs)
        if theirs.numel() and _strides(mine) != _strides(theirs):
            raise Difference(f"{name}: strides {mine.stride()}, eager {theirs.stride()}")
        _close(bound, name, mine, theirs, exact.outputs[name], max(_largest([theirs]), 1e-2))
    largest = _largest(list(exact.gradients.values()))
    for name, grad in eager.gradients.items():
        mine = ours.gradients[name]
        if (mine is None) != (grad is None):
            raise Difference(f"gradient of {name}: {_presence(mine)}, eager {_presence(grad)}")
        if grad is None or mine is None:
            continue
        reference = exact.gradients[name]
        assert reference is not None
        _same_kind(f"gradient of {name}", mine, grad)
        if not name.startswith("arg") and _strides(mine) != _strides(grad):
            raise Difference(f"gradient of {name}: strides {mine.stride()}, eager {grad.stride()}")
        bound.check(f"gradient of {name}", mine, grad, reference, largest)
    for group in ("buffers", "inputs"):
        for name, theirs in getattr(eager, group).items():
            mine = getattr(ours, group)[name]
            _same_kind(name, mine, theirs)
            limit = max(_largest([theirs]), 1e-2)
            _close(bound, f"{group} {name}", mine, theirs, getattr(exact, group)[name], limit)


def _presence(grad: Tensor | None) -> str:
    return "None" if grad is None else "a tensor"


def _close(
    bound: Tolerance, name: str, ours: Tensor, eager: Tensor, exact: Tensor, largest: float
) -> None:
    if is_inexact(eager):
        bound.check(name, ours, eager, exact, largest)
    elif not torch.equal(ours, eager):
        raise Difference(f"{name}: {int((ours != eager).sum())} of {eager.numel()} elements differ")


def _check_own(case: Case, ours: Observation) -> None:
    """Laws that hold without a look at eager PyTorch."""
    for name, first in ours.first_gradients.items():
        twice = ours.gradients[name]
        if first is None or twice is None:
            continue
        if not torch.equal(twice.nan_to_num(), (2 * first).nan_to_num()):
            raise Difference(f"gradient of {name}: the second backward is not the first")


_LEFT_TO_EAGER = (
    "an input that requires a gradient is changed in place",
    "is changed in place where gradients are off",
    "an expanded tensor is changed in place",
    "with eager's numbers into a tensor with gaps",
)
"""What the engine leaves to eager PyTorch, with a reason, by decision."""


def check_report(case: Case, model: ORTModule) -> dict[str, Any]:
    """Raises Difference unless everything ran in the engine, at the planned peak."""
    report = last_run_report(model)
    # A layer of torch.nn that itself breaks the graph.
    layers = ("parameters are in no compiled piece",) if "graph break" in case.features else ()
    allowed = (*_LEFT_TO_EAGER, *layers)
    left = [why for why in report["eager_pieces"] if not any(r in why for r in allowed)]
    if report["eager_pieces"] and not left:
        return report
    if left or not report["compiled"]:
        raise Difference(f"not compiled: {report['eager_pieces']}")
    if report["graph_breaks"] and "graph break" not in case.features:
        raise Difference(f"graph breaks: {report['graph_breaks']}")
    planned, measured = report["planned_peak_bytes"], report["measured_peak_bytes"]
    # A forward in training mode is measured when its backward runs, which may be never.
    if report["prediction_exact"] and measured and planned != measured:
        raise Difference(f"planned peak {planned}, measured {measured}")
    return report


# ---- the case ------------------------------------------------------------------------------------


def is_sensitive(case: Case, index: int, ours: Observation) -> bool:
    """Whether eager itself leaves the bound when its parameters, its inputs and what it normalizes move
    by one rounding.

    Or ours is as near as it is then, tensor by tensor: where a gradient cancels, eager's one error
    may be small by luck, and many draws of it are the measure.
    """
    step = {torch.float64: 1e-15, torch.float32: 3e-7}[case.dtype]
    step = 1e-2 if case.autocast else step
    exact = _history(case, index, torch.float64, None)
    plain = _history(case, index, case.dtype, None)

    def draw(seed: int) -> Observation:
        return _history(case, index, case.dtype, torch.Generator().manual_seed(seed), step)

    def is_near(some: Observation, eager: Observation) -> bool:
        try:
            compare(case, some, eager, exact)
        except Difference:
            return False
        return True

    draws = [draw(seed) for seed in range(4)]
    if not all(is_near(moved, plain) for moved in draws):
        return True
    draws += [plain, *(draw(seed) for seed in range(4, 32))]
    return is_near(ours, _farthest(draws, exact, ours))


def _farthest(draws: list[Observation], exact: Observation, ours: Observation) -> Observation:
    """Of each tensor the draw with the largest error; of what is not floats, the one that is ours."""
    result = copy.copy(draws[0])
    for group in ("outputs", "gradients", "buffers", "inputs"):
        chosen = dict(getattr(draws[0], group))
        for name, first in chosen.items():
            drawn = [getattr(draw, group).get(name) for draw in draws]
            if not isinstance(first, Tensor):
                mine = getattr(ours, group).get(name)
                chosen[name] = next((v for v in drawn if v == mine), first)
                continue
            tensors = [v for v in drawn if isinstance(v, Tensor) and v.shape == first.shape]
            against = getattr(exact, group).get(name)
            if not is_inexact(first):
                against = getattr(ours, group).get(name)
            if first.numel() and isinstance(against, Tensor) and against.shape == first.shape:
                errors = [float((numbers(v) - numbers(against)).abs().max()) for v in tensors]
                pick = max if is_inexact(first) else min
                chosen[name] = tensors[errors.index(pick(errors))]
        setattr(result, group, chosen)
    return result


def is_wrong_in_eager(case: Case, index: int, ours: Observation) -> bool:
    """Whether eager's gradients are others where batch norms see row-major images, and ours those.

    Torch 2.13's batch norm is wrong backwards on the CPU, for an image that is channels-last as well
    and a gradient that is not, or is neither (a batch of one, transposed).
    """
    given = _history(case, index, torch.float64, None).gradients
    with patch.object(F, "batch_norm", batch_norm_of_rows):
        rows = _history(case, index, torch.float64, None).gradients
    near = 1e-4 * _largest(list(rows.values()))

    def same(some: dict[Path, Tensor | None]) -> bool:
        return all(
            grad is None
            or (other := some[name]) is None
            or torch.allclose(numbers(other), numbers(grad), rtol=1e-4, atol=near, equal_nan=True)
            for name, grad in rows.items()
        )

    return same(ours.gradients) and not same(given)


class _Normalizing(TorchFunctionMode):
    """Changes what is normalized: a variance of rounding alone becomes values of any size, and no move
    of the inputs reaches it where something constant lies between (a softmax over one element)."""

    functions = (F.batch_norm, F.instance_norm, F.layer_norm, F.group_norm, F.rms_norm)

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.functions:
            args = (self.change(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _history(
    case: Case, index: int, dtype: torch.dtype, noise: torch.Generator | None, step: float = 0.0
) -> Observation:
    def move(value: Tensor) -> Tensor:
        if noise is None or not is_inexact(value):
            return value
        with torch.no_grad():
            factors = 1 + step * torch.randn(value.shape, generator=noise, dtype=dtype)
            if torch._debug_has_internal_overlap(value) != 1:
                return value.mul_(factors)
        # It cannot be written: rows that were one in memory move apart.
        return (value.detach() * factors).requires_grad_(value.requires_grad)

    def moved(value: Tensor) -> Tensor:
        factors = torch.randn(value.shape, generator=noise, dtype=dtype)
        return value * (1 + step * factors).to(value.dtype)

    module = case.module(dtype)
    for parameter in module.parameters():
        move(parameter)
    with _Normalizing(moved) if noise is not None else contextlib.nullcontext():
        for i in range(index):
            observe(case, module, i, dtype, move)
        return observe(case, module, index, dtype, move)


def run(case: Case, corrupt: Corrupt | None = None) -> dict[str, Any]:
    """Compare all calls of a case; returns the engine's report. Raises Difference."""
    torch._dynamo.reset()
    eager, exact = case.module(case.dtype), case.module(torch.float64)
    model = ORTModule(copy.deepcopy(eager))
    model._compiler.options.torch_rng = case.torch_rng
    model._compiler.options.memory.config_source = "none"  # lists what could be on the host
    philox = bool(case.features & {"dropout", "noise"}) and not case.torch_rng
    for index in range(len(case.calls)):
        ours = observe(case, model, index, case.dtype)
        if corrupt is not None:
            corrupt(model.module)
            ours.gradients |= _gradients(model.module, {})
        _check_own(case, ours)
        if index == 0 and corrupt is None:
            _check_recomputed(case, eager, ours, model)
        if philox:
            _check_repeats(case, eager, index)
            continue
        plain = observe(case, eager, index, case.dtype)
        reference = (
            plain if case.dtype == torch.float64 else observe(case, exact, index, torch.float64)
        )
        try:
            compare(case, ours, plain, reference)
        except Difference as difference:
            if is_sensitive(case, index, ours) or is_wrong_in_eager(case, index, ours):
                return {"sensitive": str(difference)}
            raise Difference(f"call {index}: {difference}") from None
    return check_report(case, model)


def _check_recomputed(case: Case, eager: nn.Module, kept: Observation, model: ORTModule) -> None:
    """With everything recomputed or on the host that can be, or any part of it: the same bits."""
    config = [
        element for piece in model._compiler.pieces for element in _config(case, piece.compiled)
    ]
    if not config:
        return
    other = ORTModule(copy.deepcopy(eager))
    other._compiler.options.torch_rng = case.torch_rng
    other._compiler.options.memory.config = config
    other._compiler.options.memory.config_source = "chosen"
    recomputed = observe(case, other, 0, case.dtype)
    for group in ("outputs", "gradients", "first_gradients", "buffers", "inputs"):
        for name, value in getattr(kept, group).items():
            again = getattr(recomputed, group)[name]
            same = (
                torch.equal(value.nan_to_num(), again.nan_to_num())
                if _both(value, again)
                else (isinstance(value, Tensor) == isinstance(again, Tensor))
            )
            if not same:
                raise Difference(
                    f"{name} differs where values are recomputed: {', '.join(map(str, config))}"
                )


def _both(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor)


def _config(case: Case, compiled: Any) -> list[ConfigElement]:
    """Every row with strategy 1 of every second case, or with 3 under the emulation with ORTMODULE_OFFLOAD=1;
    of the others any rows, ways and counts."""
    facts = compiled.memory()
    rows = (
        [(r["cluster_id"], r["strategy"], r["frequency"]) for r in facts["rows"]] if facts else []
    )
    if case.seed % 2 == 0:
        wanted = 3 if any(way == 3 for _, way, _ in rows) else 1
        return [ConfigElement(name, wanted, -1) for name, way, _ in sorted(rows) if way == wanted]
    rng = random.Random(case.seed)
    return [
        ConfigElement(name, strategy, rng.choice((-1, rng.randint(1, frequency))))
        for name, strategy, frequency in sorted(rows)
        if rng.random() < 0.6
    ]


def _check_repeats(case: Case, eager: nn.Module, index: int) -> None:
    """With draws: the same seed gives the same bits, in values and gradients."""
    first, second = (
        observe(case, ORTModule(copy.deepcopy(eager)), index, case.dtype) for _ in range(2)
    )
    for group in ("outputs", "gradients", "buffers"):
        for name, value in getattr(first, group).items():
            again = getattr(second, group)[name]
            if isinstance(value, Tensor) and not torch.equal(value, again):
                raise Difference(f"call {index}: {name} differs between runs of one seed")


def run_seed(seed: int) -> dict[str, Any]:
    """The outcome of a seed, as plain values."""
    return run_generated(generate(seed, is_valid))


def run_generated(case: Case) -> dict[str, Any]:
    """The outcome of a case that eager PyTorch runs, as plain values."""
    seed = case.seed
    outcome: dict[str, Any] = {"seed": seed, "features": sorted(case.features)}
    try:
        report = run(case)
    except Difference as difference:
        return outcome | {"status": "differs", "message": str(difference), "case": case.describe()}
    except Exception:  # any error that eager does not raise
        text = traceback.format_exc().strip()
        short = text.splitlines()[-1]
        if any(refusal in text for refusal in REFUSALS):
            return outcome | {"status": "refused", "message": short}
        return outcome | {
            "status": "error",
            "message": short,
            "trace": text,
            "case": case.describe(),
        }
    if "sensitive" in report:
        return outcome | {"status": "sensitive", "message": report["sensitive"]}
    keep = ("captures", "nodes_total", "nodes_aten_fallback", "prediction_exact")
    return outcome | {"status": "same", **{key: report[key] for key in keep}}


def quiet() -> None:
    """No logs and one thread: cases are small and the machine may be shared."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)


def main() -> None:
    """Runs the seeds of the command line; lines of JSON say where it is: it may crash anywhere."""
    quiet()
    for seed in map(int, sys.argv[1:]):
        print(json.dumps({"start": seed}), flush=True)
        case = generate(seed, is_valid)
        print(json.dumps({"case": case.describe()}), flush=True)
        print(json.dumps(run_generated(case)), flush=True)


if __name__ == "__main__":
    main()
