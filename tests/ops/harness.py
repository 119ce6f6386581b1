"""All checks of an op, written once: capture without Dynamo, run in the engine, compare with eager."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _pytree as pytree

from ortmodule_py import _C
from ortmodule_py.base.devices import piece_device
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.piece import lower

from .case import Case, Outcome, operator_of

SIZE, OTHER_SIZE = 7, 11

DEVICE = torch.device(os.environ.get("ORTMODULE_TEST_DEVICE", "cpu"))
"""Where the engine's operands are; eager, which says what is right, stays on the CPU."""
EMULATED = os.environ.get("ORTMODULE_CUDA_EMULATION", "0") == "1"
"""Whether operands on the CPU run through the CUDA kernels, compiled for the host."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Allowed error by type, relative to the largest value, where eager's own is not larger still."""


OVERWRITES = {"aten.select_scatter.default"}
"""Operators of which nothing may flow back to an operand; eager says so by zeros."""


class EagerRefuses(Exception):
    """Torch itself does not run this variant, or captures leave its operator to eager on the device."""


# ---- arguments ----------------------------------------------------------------------------------


@dataclass
class Arguments:
    """A case's arguments, flattened."""

    leaves: list[Any]
    spec: Any

    @classmethod
    def of(cls, case: Case, size: int) -> Arguments:
        """Built from a seed that belongs to the case and the size."""
        torch.manual_seed(zlib.crc32(f"{case.name} {size}".encode()))
        return cls(*pytree.tree_flatten((tuple(case.build(size)), case.keywords)))

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def with_tensors(self, tensors: Sequence[Any]) -> Arguments:
        """The same arguments with other tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        return Arguments(leaves, self.spec)

    def in_dtype(self, dtype: torch.dtype) -> Arguments:
        """float64 converted, tensors and arguments alike."""
        leaves = [dtype if leaf is torch.float64 else leaf for leaf in self.leaves]
        wide = [t.to(dtype) if t.dtype == torch.float64 else t for t in self.tensors]
        return Arguments(leaves, self.spec).with_tensors(wide)

    def strided(self) -> Arguments:
        """Tensors as views with other strides: dimensions permuted, elements apart."""
        return self.with_tensors([_restride(t, i) for i, t in enumerate(self.tensors)])

    def call(self, function: Callable[..., Any]) -> list[Any]:
        """Flat results of the function."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return pytree.tree_leaves(function(*args, **kwargs))


def _restride(tensor: Tensor, position: int) -> Tensor:
    if tensor.dim() == 0:
        return tensor
    if position % 2 == 0 and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    wide = tensor.new_zeros([*tensor.shape[:-1], 2 * tensor.shape[-1]])
    wide[..., ::2] = tensor
    return wide[..., ::2]


def with_leaves(case: Case, arguments: Arguments) -> Arguments:
    """Fresh tensors; those that are differentiable require a gradient."""
    fresh = []
    for position, tensor in enumerate(arguments.tensors):
        wanted = case.gradient and tensor.is_floating_point() and position not in case.constant
        fresh.append(tensor.detach().requires_grad_(wanted))
    return arguments.with_tensors(fresh)


# ---- capture ------------------------------------------------------------------------------------


def device_kind() -> str:
    """The kind of device that graphs are made for."""
    return "cuda" if EMULATED else DEVICE.type


class _Recorder(_C.GraphBuilder):
    """The builder, which also notes what it is told."""

    def __init__(self) -> None:
        super().__init__(kernels=device_kind())
        self.targets: list[str] = []
        self.has_bodies = False

    def body(self, *args: Any) -> Any:
        self.has_bodies = True
        return super().body(*args)

    def call(self, target: str, *args: Any, **kwargs: Any) -> Any:
        self.targets.append(target)
        return super().call(target, *args, **kwargs)


class _Call(nn.Module):
    """The case's call on tensors, with ints that follow the symbol (if there is one)."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Arguments,
        slopes: list[int],
        takes_symbol: bool,
    ) -> None:
        super().__init__()
        self.function, self.arguments, self.slopes = function, arguments, slopes
        self.takes_symbol = takes_symbol

    def forward(self, *values: Any) -> list[Any]:
        rest = iter(values)
        symbol = next(rest) if self.takes_symbol else SIZE
        leaves = []
        for leaf, slope in zip(self.arguments.leaves, self.slopes, strict=True):
            if isinstance(leaf, Tensor):
                leaves.append(next(rest))
            else:
                leaves.append(leaf + slope * (symbol - SIZE) if slope else leaf)
        return Arguments(leaves, self.arguments.spec).call(self.function)


def _graph_module(call: _Call, placeholders: int, fake_outputs: Sequence[Any]) -> fx.GraphModule:
    """As Dynamo would give it: outputs one by one, with fake values."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"input_{i}") for i in range(placeholders)]
    results = graph.call_module("call", tuple(inputs))
    outputs = []
    for position, fake in enumerate(fake_outputs):
        outputs.append(graph.call_function(operator.getitem, (results, position)))
        outputs[-1].meta["example_value"] = fake
    graph.output(tuple(outputs))
    root = nn.Module()
    root.call = call
    return fx.GraphModule(root, graph)


@dataclass
class Compiled:
    """A compiled case and what capture told the builder."""

    piece: Any
    targets: list[str]
    symbolic: bool
    fixed_by_torch: bool = False
    """Whether torch needs to know the symbol to make fake outputs, so that Dynamo captures the call
    again for another size."""
    fake_outputs: list[Any] = field(default_factory=list)
    """What torch's fake tensors say about the outputs: their strides, and types of statistics, are
    not always eager's."""

    def run(self, arguments: Arguments, size: int) -> list[Any]:
        """Flat results."""
        symbols = [size] if self.symbolic else []
        return list(self.piece(*symbols, *arguments.tensors))


def on_device(arguments: Arguments, kept: Sequence[int] = ()) -> Arguments:
    """The arguments with the tensors where the engine runs, but for those at the positions in
    `kept`; leaves stay leaves."""
    if DEVICE.type == "cpu":
        return arguments
    tensors = enumerate(arguments.tensors)
    return arguments.with_tensors([t if i in kept else _moved(t) for i, t in tensors])


def _moved(tensor: Tensor) -> Tensor:
    """With its strides, which a copy of a tensor with gaps would lose."""
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    there = storage.to(DEVICE).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return there.detach().requires_grad_(tensor.requires_grad)


def on_cpu(values: Sequence[Any]) -> list[Any]:
    """The values with the tensors where eager runs."""
    return [value.cpu() if isinstance(value, Tensor) else value for value in values]


def compile_fixed(case: Case, arguments: Arguments) -> Compiled:
    """Captured with the sizes of these arguments."""
    function = _captured(case, arguments)
    call = _Call(function, arguments, [0] * len(arguments.leaves), takes_symbol=False)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    tensors = on_device(arguments, case.on_host).tensors
    fakes = [mode.from_tensor(t, static_shapes=True) for t in tensors]
    return _compile(call, fakes, mode)


def compile_symbolic(case: Case, here: Arguments, there: Arguments) -> Compiled:
    """Captured with a symbolic size: whatever differs between the two sizes is linear in it."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    symbol = _new_symbol(mode.shape_env)
    slopes = [_slope(a, b) for a, b in zip(here.leaves, there.leaves, strict=True)]
    call = _Call(_captured(case, here), here, slopes, takes_symbol=True)
    pairs = enumerate(zip(here.tensors, there.tensors, strict=True))
    places = [
        torch.device("cpu") if i in case.on_host else DEVICE for i in range(len(here.tensors))
    ]
    fakes = [_symbolic_tensor(a, b, symbol, mode, places[i]) for i, (a, b) in pairs]
    return _compile(call, [symbol, *fakes], mode)


def _function(case: Case) -> Callable[..., Any]:
    return case.function or operator_of(case.target)


def _captured(case: Case, arguments: Arguments) -> Callable[..., Any]:
    """The function; what makes tensors of numbers alone makes them where the engine runs."""
    function = _function(case)
    if DEVICE.type == "cpu" or case.function or arguments.tensors:
        return function
    takes_device = any(a.name == "device" for a in operator_of(case.target)._schema.arguments)
    return functools.partial(function, device=DEVICE) if takes_device else function


def _new_symbol(shape_env: ShapeEnv) -> Any:
    from torch._dynamo.source import ConstantSource

    source = ConstantSource("size")
    symbol = shape_env.create_symbol(SIZE, source, dynamic_dim=DimDynamic.DYNAMIC)
    return shape_env.create_symintnode(symbol, hint=SIZE, source=source)


def _slope(here: Any, there: Any) -> int:
    """How an int grows with the size."""
    if isinstance(here, bool) or not isinstance(here, int) or here == there:
        return 0
    slope, rest = divmod(there - here, OTHER_SIZE - SIZE)
    assert rest == 0, f"{here} and {there} are not linear in the size"
    return slope


def _symbolic_tensor(
    here: Tensor, there: Tensor, symbol: Any, mode: FakeTensorMode, device: torch.device
) -> Tensor:
    assert here.is_contiguous() and there.is_contiguous()
    sizes = [
        a + _slope(a, b) * (symbol - SIZE) for a, b in zip(here.shape, there.shape, strict=True)
    ]
    with mode:
        fake = torch.empty(sizes, dtype=here.dtype, device=device)
    return fake.requires_grad_(here.requires_grad)


def _compile(call: _Call, fakes: list[Any], mode: FakeTensorMode) -> Compiled:
    if any(isinstance(fake, Tensor) for fake in fakes):
        piece_device(fakes)  # refuses what a module would leave to eager
    with mode, enable_python_dispatcher():
        fake_outputs = call(*fakes)
    # Asked here: what is fixed later, while the call is lowered, is a mistake.
    fixed = call.takes_symbol and fakes[0].node.maybe_as_int() is not None
    module = _graph_module(call, len(fakes), fake_outputs)
    builder = _Recorder()
    with tracing(TracingContext(mode)):
        try:
            lowered = lower(module, fakes, builder, DEVICE)
        except CannotLower as error:
            if runs_here(str(error).partition(" ")[0]):
                raise
            raise EagerRefuses(f"captures leave it to eager: {error}") from error
    options = _C.PieceOptions()
    options.device = str(DEVICE)
    options.emulate_cuda = EMULATED
    options.training = lowered.grad_enabled
    options.verify = not builder.has_bodies
    piece = builder.finish(options)
    return Compiled(piece, builder.targets, call.takes_symbol, fixed, fake_outputs)


# ---- checks -------------------------------------------------------------------------------------


def check_symbolic(case: Case) -> None:
    """One capture, run with two sizes."""
    here, there = (with_leaves(case, Arguments.of(case, n)) for n in (SIZE, OTHER_SIZE))
    if case.symbolic:
        compiled = compile_symbolic(case, here, there)
        check_graph(case, compiled, here)
        check_run(case, compiled, here, SIZE)
        if compiled.fixed_by_torch:
            compiled = compile_fixed(case, there)
        check_run(case, compiled, there, OTHER_SIZE)
    else:
        check_fixed(case, Arguments.of(case, SIZE))


def check_size(case: Case, size: int) -> None:
    """One capture for this size alone, which may be 0 or 1."""
    try:
        arguments = Arguments.of(case, size)
    except (RuntimeError, IndexError, ValueError) as error:
        raise EagerRefuses(str(error)) from error
    check_fixed(case, arguments)


def check_fixed(case: Case, arguments: Arguments) -> None:
    """One capture for these arguments."""
    arguments = with_leaves(case, arguments)
    try:
        arguments.call(_function(case))
    except (RuntimeError, IndexError, ValueError) as error:
        raise EagerRefuses(str(error)) from error
    compiled = compile_fixed(case, arguments)
    check_graph(case, compiled, arguments)
    check_run(case, compiled, arguments, SIZE)


def check_second(case: Case, arguments: Arguments) -> None:
    """The gradient of the gradient, by operands and by output gradients, against eager.

    Raises:
        EagerRefuses: torch, too, has no second derivative of the operator.
    """
    arguments = with_leaves(case, arguments)
    compiled = compile_fixed(case, arguments)
    try:
        theirs = second_gradients(arguments, arguments.call(_function(case)))
    except (RuntimeError, NotImplementedError) as error:
        raise EagerRefuses(str(error)) from error
    ours = second_gradients(arguments, compiled.run(arguments, SIZE))
    assert len(ours) == len(theirs)
    for position, (mine, theirs_at) in enumerate(zip(ours, theirs, strict=True)):
        some = mine if theirs_at is None else theirs_at
        if some is None:
            continue
        expected, found = (torch.zeros_like(some) if g is None else g for g in (theirs_at, mine))
        largest = float(expected.nan_to_num().abs().max()) if expected.numel() else 0.0
        allowed = 1e-8 * case.tolerance * max(1.0, largest)
        assert torch.allclose(found, expected, rtol=0, atol=allowed, equal_nan=True), (
            f"{case.name}: second gradient {position}: found {found}, expected {expected}"
        )


def second_gradients(arguments: Arguments, outputs: Sequence[Any]) -> list[Tensor | None]:
    """The gradients of a weighted sum of gradients, by operands, then by output gradients."""
    generator = torch.Generator().manual_seed(3)

    def numbers(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)

    leaves = [t for t in arguments.tensors if t.requires_grad]
    results = [t for t in outputs if isinstance(t, Tensor) and t.requires_grad]
    weights = [numbers(t).requires_grad_() for t in results]
    if not results:
        raise EagerRefuses("no output has a gradient")
    first = torch.autograd.grad(results, leaves, weights, create_graph=True, allow_unused=True)
    terms = [(g * numbers(g)).sum() for g in first if g is not None and g.requires_grad]
    if not terms:
        return [None] * (len(leaves) + len(weights))
    sources = leaves + weights
    return list(torch.autograd.grad(sum(terms[1:], terms[0]), sources, allow_unused=True))


def is_composite(target: str) -> bool:
    """Whether torch defines the operator by others: capture may see those instead."""
    name = operator_of(target).name()
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def runs_here(op: str) -> bool:
    """Whether an op, by its name or torch's, has a kernel or a body on the device."""
    named = (o for o in _C.ops() if op == o["name"] or op in o["torch"])
    facts: dict[str, Any] = next(named, {})
    kernels = facts.get("kernels", ())
    return (
        bool(facts.get("body")) or not kernels or any(k["device"] == device_kind() for k in kernels)
    )


def _fuses_here(case: Case, arguments: Arguments) -> bool:
    types = {str(t.dtype).removeprefix("torch.") for t in arguments.tensors}
    on = set(case.contains_on)
    return not on or (device_kind() in on and types <= on)


def check_graph(case: Case, compiled: Compiled, arguments: Arguments) -> None:
    """The operator arrived whole and became ops of ours, unless the case says otherwise."""
    arrived = (case.arrives_as or case.target) in compiled.targets
    unrolled = case.target.startswith("ortmodule_py.") and not _fuses_here(case, arguments)
    assert arrived or unrolled or is_composite(case.target), f"capture called {compiled.targets}"
    facts = compiled.piece.facts()
    if case.contains and not unrolled and not runs_here(case.contains):
        assert "no op converts it" in str(facts["refusals"]), facts["refusals"]
        return
    if case.aten:
        reasons = str(facts["refusals"])
        wanted = case.aten if runs_here(case.target) else "no op converts it"
        assert facts["nodes_aten"] == 0 or wanted in reasons, reasons
    elif not unrolled:
        assert facts["nodes_aten"] == 0, f"{facts['refusals']}\n{compiled.piece.text('joint')}"
    if case.contains:
        text = compiled.piece.text("joint")
        found = f" {case.contains} " in text or f" {case.contains}<" in text
        assert found == _fuses_here(case, arguments), text


def check_run(case: Case, compiled: Compiled, arguments: Arguments, size: int) -> None:
    """Outputs and gradients like eager's; peak memory as planned."""
    try:
        expected = Reference.of(case, arguments)
    except (RuntimeError, IndexError, ValueError) as error:
        raise EagerRefuses(str(error)) from error
    mine_there = on_device(arguments, case.on_host)
    given = [grad.to(DEVICE) for grad in expected.grad_outputs]
    try:
        outputs_there = compiled.run(mine_there, size)
        grads = on_cpu(gradients(outputs_there, mine_there, given))
    except RuntimeError as error:
        refusal = _refusal_there(_captured(case, arguments), mine_there, given)
        if refusal:
            raise EagerRefuses(refusal) from error
        raise
    outputs = on_cpu(outputs_there)
    assert len(outputs) == len(expected.outputs)
    for position, (mine, theirs) in enumerate(zip(outputs, expected.outputs, strict=True)):
        faked = compiled.fake_outputs[position : position + 1]
        _check_kind(mine, [theirs, *faked], f"output {position}")
        if isinstance(theirs, Tensor):
            # Where it lies: a copy of a view to the CPU has other strides.
            _check_strides(outputs_there[position], [theirs, *faked], f"output {position}")
    check = case.check_on_gpu if case.check_on_gpu and DEVICE.type != "cpu" else case.check
    if check is not None:
        inputs = [t.detach() for t in arguments.tensors]
        check(Outcome(inputs, outputs, expected.grad_outputs, grads))
        return
    tolerance = case.tolerance * _tolerance([*arguments.tensors, *outputs])
    for position, mine in enumerate(outputs):
        if isinstance(mine, Tensor):
            _check_close(mine, *expected.output(position), tolerance, f"output {position}")
    for position, mine in enumerate(grads):
        theirs, exact = expected.grad(position)
        if theirs is None:
            assert mine is None or not mine.any(), f"gradient {position} should be None"
            continue
        if mine is None and (theirs.numel() == 0 or case.target in OVERWRITES):
            assert not theirs.any()
            continue
        assert mine is not None, f"gradient {position} is missing"
        _check_kind(mine, [theirs], f"gradient {position}")
        _check_close(mine, theirs, exact, tolerance, f"gradient {position}")
    _check_peak(compiled)


def _refusal_there(
    function: Callable[..., Any], arguments: Arguments, grad_outputs: Sequence[Tensor]
) -> str:
    """Why eager does not run the call where the engine runs, or nothing."""
    try:
        gradients(arguments.call(function), arguments, grad_outputs)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize(DEVICE)
    except RuntimeError as error:
        return f"{type(error).__name__} {error}"
    return ""


def gradients(
    outputs: Sequence[Any], arguments: Arguments, grad_outputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of all tensor arguments."""
    results = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad]
    leaves = [t for t in arguments.tensors if t.requires_grad]
    if not results or not leaves:
        return [None] * len(arguments.tensors)
    found = iter(torch.autograd.grad(results, leaves, list(grad_outputs), allow_unused=True))
    return [next(found) if t.requires_grad else None for t in arguments.tensors]


@dataclass
class Reference:
    """Eager's results in the types of the arguments, and in float64."""

    outputs: list[Any]
    grads: list[Tensor | None]
    grad_outputs: list[Tensor]
    exact: Reference | None = None

    @classmethod
    def of(cls, case: Case, arguments: Arguments) -> Reference:
        """Runs eager once, or twice where a floating type is narrower."""
        torch.manual_seed(1)
        plain = cls._run(case, arguments, None)
        wide = arguments.with_tensors([_widened(t) for t in arguments.tensors])
        if wide.leaves and any(
            a.dtype != b.dtype for a, b in zip(arguments.tensors, wide.tensors, strict=True)
        ):
            with contextlib.suppress(RuntimeError):  # types may be part of the arguments
                plain.exact = cls._run(case, wide, plain.grad_outputs)
        return plain

    @classmethod
    def _run(cls, case: Case, arguments: Arguments, given: list[Tensor] | None) -> Reference:
        outputs = arguments.call(_function(case))
        results = [o for o in outputs if isinstance(o, Tensor) and o.requires_grad]
        if given is None:
            random = [torch.randn(o.shape, dtype=torch.float64).to(o.dtype) for o in results]
        else:
            random = [g.to(o.dtype) for g, o in zip(given, results, strict=True)]
        return cls(outputs, gradients(outputs, arguments, random), random)

    def output(self, position: int) -> tuple[Tensor, Tensor]:
        exact = (self.exact or self).outputs[position]
        return self.outputs[position], exact

    def grad(self, position: int) -> tuple[Tensor | None, Tensor | None]:
        return self.grads[position], (self.exact or self).grads[position]


def _tolerance(values: Sequence[Any]) -> float:
    types = {v.dtype for v in values if isinstance(v, Tensor)}
    return max((TOLERANCE[dtype] for dtype in types & TOLERANCE.keys()), default=0.0)


def _widened(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _check_kind(mine: Any, allowed: Sequence[Any], what: str) -> None:
    """Type and sizes like one of `allowed`, of which the first is eager's."""
    theirs = allowed[0]
    if not isinstance(theirs, Tensor):
        assert mine == theirs, f"{what} is {mine}, eager's {theirs}"
        return
    types = [like.dtype for like in allowed]
    assert mine.dtype in types, f"{what} is {mine.dtype}, eager's {theirs.dtype}"
    assert mine.shape == theirs.shape, f"{what} is {mine.shape}, eager's {theirs.shape}"


def _check_strides(mine: Tensor, allowed: Sequence[Tensor], what: str) -> None:
    """Strides like one of `allowed`, of which the first is eager's."""
    theirs = allowed[0]
    assert mine.requires_grad == theirs.requires_grad, f"{what} requires_grad={mine.requires_grad}"
    steps = [d for d, size in enumerate(theirs.shape) if size > 1]
    same = any(all(mine.stride(d) == like.stride(d) for d in steps) for like in allowed)
    assert same or theirs.numel() == 0, f"{what}: {mine.stride()}, eager's {theirs.stride()}"


def _check_close(mine: Tensor, theirs: Any, exact: Any, tolerance: float, what: str) -> None:
    """An error of at most twice eager's own, or of the table's tolerance."""
    mine, theirs, exact = mine.detach(), theirs.detach(), exact.detach()
    if not mine.dtype.is_floating_point:
        assert torch.equal(mine, theirs), f"{what}:\n{mine}\neager's:\n{theirs}"
        return
    mine, theirs, exact = mine.double(), theirs.double(), exact.double()
    special = ~torch.isfinite(theirs)
    same = torch.equal(torch.nan_to_num(mine[special]), torch.nan_to_num(theirs[special]))
    assert same and bool((mine.isnan() == theirs.isnan()).all()), f"{what}: {mine} eager's {theirs}"
    mine, theirs, exact = mine[~special], theirs[~special], exact[~special]
    if mine.numel() == 0:
        return
    scale = max(1.0, float(exact.abs().max()))
    error, eager_error = float((mine - exact).abs().max()), float((theirs - exact).abs().max())
    allowed = max(2 * eager_error, tolerance * scale)
    assert error <= allowed, f"{what}: error {error:.3g}, allowed {allowed:.3g}\n{mine}\n{exact}"


def _check_peak(compiled: Compiled) -> None:
    facts = compiled.piece.facts()
    if facts.get("exact") and facts["backwards"]:
        assert facts["measured_peak_bytes"] == facts["planned_peak_bytes"], facts
