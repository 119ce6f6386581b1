"""A random small module, its inputs and how it is trained, all from one seed."""

from __future__ import annotations

import linecache
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import operations_complex, operations_packed, operations_state
from .operations import OPERATIONS, dropout
from .operations_noise import noise
from .source import BATCH, LENGTH, Rejected, SourceBuilder

_ = (operations_complex, operations_packed, operations_state)  # register their operations


@dataclass(frozen=True)
class InputSpec:
    """One argument of forward."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """float, ids or mask."""
    layout: str
    """dense, transposed, strided, channels_last or expanded."""
    requires_grad: bool
    keyword: bool


@dataclass(frozen=True)
class Call:
    """One call of the module and the backward passes after it."""

    sizes: dict[int, int]
    """Real sizes for the ones that stand for changing sizes."""
    action: str
    """once, retain, accumulate or second (gradients of the gradients)."""
    loss_seed: int


@dataclass
class Case:
    """Everything that a seed stands for."""

    seed: int
    source: str
    inputs: list[InputSpec]
    mode: str
    """train, eval or no_grad."""
    dtype: torch.dtype
    autocast: bool
    torch_rng: bool
    calls: list[Call]
    features: set[str] = field(default_factory=set)

    def describe(self) -> str:
        """The module's source and the way it is used."""
        lines = [self.source.partition("\nclass Model")[2]]
        lines[0] = "class Model" + lines[0]
        lines += [f"# {spec}" for spec in self.inputs]
        lines.append(f"# mode={self.mode} dtype={self.dtype} autocast={self.autocast}")
        lines.append(f"# torch_rng={self.torch_rng} features={sorted(self.features)}")
        lines += [f"# {call}" for call in self.calls]
        return "\n".join(lines)

    def module(self, dtype: torch.dtype) -> nn.Module:
        """The module with its first parameters."""
        name = f"fuzz_case_{self.seed}.py"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        env: dict[str, Any] = {"__name__": f"fuzz_case_{self.seed}"}
        exec(compile(self.source, name, "exec"), env)
        torch.manual_seed(self.seed)
        module: nn.Module = env["Model"]()
        wide = {torch.float64: torch.complex128}.get(dtype, torch.complex64)

        def converted(value: Tensor) -> Tensor:
            if value.is_complex():
                return value.to(wide)  # Module.to would drop the imaginary part
            return value.to(dtype) if value.is_floating_point() else value

        module._apply(converted)
        return module.train(self.mode != "eval")

    def arguments(self, call: int, dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Fresh arguments of a call; the same values each time."""
        args: list[Tensor] = []
        kwargs: dict[str, Tensor] = {}
        for position, spec in enumerate(self.inputs):
            generator = torch.Generator().manual_seed(1000 * self.seed + 10 * call + position)
            value = make_input(spec, self.calls[call].sizes, dtype, generator)
            if spec.keyword:
                kwargs[spec.name] = value
            else:
                args.append(value)
        return args, kwargs


def make_input(
    spec: InputSpec, sizes: dict[int, int], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """A leaf tensor in the layout that the spec asks for."""
    shape = [sizes.get(size, size) for size in spec.shape]
    if spec.kind == "ids":
        value = torch.randint(0, 12, shape, generator=generator)
    elif spec.kind == "mask":
        value = torch.rand(shape, generator=generator) > 0.3
    else:
        value = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if spec.layout == "transposed":
        value = value.transpose(0, -1).contiguous().transpose(0, -1)
    elif spec.layout == "strided":
        value = torch.stack([value, value], dim=-1).flatten(-2)[..., ::2]
    elif spec.layout == "channels_last" and value.dim() == 4:
        value = value.contiguous(memory_format=torch.channels_last)
    elif spec.layout == "expanded":
        value = value[:1].expand(shape)
    return value.detach().requires_grad_(spec.requires_grad)


# ---- drawing -------------------------------------------------------------------------------------


def generate(seed: int, valid: Callable[[Case], bool]) -> Case:
    """The case of a seed: the first attempt that `valid` (an eager trial run) accepts."""
    for attempt in range(200):
        case = _attempt(seed, random.Random(1_000_003 * seed + attempt))
        if case is not None and valid(case):
            return case
    raise RuntimeError(f"[fuzz] a case must be found within 200 attempts, but seed {seed} has none")


def _attempt(seed: int, rng: random.Random) -> Case | None:
    torch.manual_seed(seed)
    g = SourceBuilder(rng)
    inputs = _draw_inputs(g)
    sizes = {BATCH: BATCH, LENGTH: LENGTH}
    for spec in inputs:
        plain = InputSpec(spec.name, spec.shape, spec.kind, "dense", False, spec.keyword)
        generator = torch.Generator().manual_seed(seed)
        g.add_input(spec.name, make_input(plain, sizes, torch.float32, generator))
    with_draws = rng.random() < 0.2
    if not _draw_body(g, rng.randint(3, 12), with_draws):
        return None
    result = _draw_result(g)
    if rng.random() < 0.08:
        g.setup("self.unused = nn.Parameter(torch.randn(3))")
        g.features.add("unused parameter")
    parameters = [spec.name for spec in inputs if not spec.keyword]
    parameters += [f"{spec.name}=None" for spec in inputs if spec.keyword]
    return _draw_use(seed, g, g.source(parameters, result), inputs, with_draws)


def _draw_use(
    seed: int, g: SourceBuilder, source: str, inputs: list[InputSpec], with_draws: bool
) -> Case:
    rng = g.rng
    autocast = rng.random() < 0.1 and not with_draws
    torch_rng = with_draws and rng.random() < 0.6
    dtype = torch.float32 if autocast or (not torch_rng and rng.random() < 0.4) else torch.float64
    mode = "train" if with_draws else rng.choices(["train", "eval", "no_grad"], [8, 1.2, 1])[0]
    batches = [rng.choice([2, 3, 4, 5, 7]), rng.choice([2, 3, 4, 6, 8]), 1]
    if rng.random() < 0.3:
        rng.shuffle(batches)
    calls = [
        Call(
            {BATCH: batch, LENGTH: rng.choice([1, 2, 3, 5, 6])},
            rng.choices(["once", "retain", "accumulate", "second"], [6, 1.5, 1.5, 1.5])[0],
            rng.randrange(1000),
        )
        for batch in batches[: rng.choice([2, 3, 3])]
    ]
    return Case(seed, source, inputs, mode, dtype, autocast, torch_rng, calls, g.features)


def _draw_inputs(g: SourceBuilder) -> list[InputSpec]:
    rng = g.rng
    tails: list[tuple[int, ...]] = [
        (rng.choice([1, 3, 4, 7, 8]),),
        (rng.choice([1, 2, 3, 5, 6]), rng.choice([1, 4, 6, 8])),
        (LENGTH, rng.choice([2, 4, 6, 8])),
        (rng.choice([1, 2, 3, 4]), rng.choice([1, 4, 5, 6]), rng.choice([3, 4, 5, 6])),
    ]
    shape = (BATCH, *rng.choices(tails, [2, 3, 1.5, 2])[0])
    inputs = [_draw_float(g, "x", shape)]
    if g.chance(0.35):
        other = shape if g.chance(0.5) else tuple(1 if g.chance(0.5) else s for s in shape)
        inputs.append(_draw_float(g, "y", other, keyword=g.chance(0.4)))
    if g.chance(0.35):
        ids = (BATCH, *(() if g.chance(0.2) else (rng.choice([1, 3, 5, LENGTH]),)))
        inputs.append(InputSpec("ids", ids, "ids", "dense", False, g.chance(0.5)))
    inputs.sort(key=lambda spec: spec.keyword)
    return inputs


def _draw_float(
    g: SourceBuilder, name: str, shape: tuple[int, ...], keyword: bool = False
) -> InputSpec:
    layouts = ["dense", "transposed", "strided", "channels_last", "expanded"]
    last = 2 if len(shape) == 4 else 0
    layout = g.rng.choices(layouts, [6, 1, 1, last, 0.5])[0]
    return InputSpec(name, shape, "float", layout, g.chance(0.5), keyword)


def _draw_body(g: SourceBuilder, count: int, with_draws: bool) -> bool:
    weights = [weight for weight, _ in OPERATIONS]
    made = 0
    for _ in range(12 * count):
        if made >= count:
            break
        operation = g.rng.choices(OPERATIONS, weights)[0][1]
        if with_draws and g.chance(0.3):
            operation = dropout if g.chance(0.4) else noise
        lines, init, known = len(g.lines), len(g.init_lines), len(g.variables)
        try:
            operation(g)
            made += 1
            g.features.add(operation.__name__)
        except Rejected:
            del g.lines[lines:], g.init_lines[init:], g.variables[known:]
    return made >= 3 and (not with_draws or bool(g.features & {"dropout", "noise"}))


def _uses(line: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", line) is not None


def _draw_result(g: SourceBuilder) -> str:
    """What forward returns: mostly tensors that nothing else uses, so that little is dead."""
    made = [v for v in g.variables if v.name[0] == "v"]
    ends = [v for v in made if sum(_uses(line, v.name) for line in g.lines) == 1]
    chosen = []
    for _ in range(g.rng.choices([1, 2, 3, 4], [2, 3, 3, 2])[0]):
        other = g.rng.choice(ends if ends and g.chance(0.8) else made)
        forms = ["{}", "{}", "{}", "{}", "{}.detach()", "{}[None]"]
        if other.rank > 0:
            forms.append("{}.t()" if other.rank == 2 else "{}[..., :1]")
        chosen.append(g.rng.choice(forms).format(other.name))
    if g.chance(0.05):
        chosen.append("x")
        g.features.add("returns input")
    g.rng.shuffle(chosen)
    if len(chosen) == 1 and g.chance(0.8):
        return chosen[0]
    kind = g.rng.randrange(4)
    if kind == 0:
        return "{" + ", ".join(f"'k{i}': {text}" for i, text in enumerate(chosen)) + "}"
    if kind == 1:
        return f"[{', '.join(chosen)}]"
    if kind == 2 and len(chosen) > 2:
        return f"{chosen[0]}, ({', '.join(chosen[1:])}), None"
    return f"({', '.join(chosen)},)"
