"""Loops that break the graph: what stands around them is captured, and the layers in them, once each."""

from __future__ import annotations

import dis
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import bytecode_transformation
from torch._dynamo.bytecode_transformation import cleaned_instructions
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.loops import outline
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, as_in_eager, assert_compiled, original

# ---- whole models ----------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)
        self.factor, self.p = 1.0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.fc(self.norm(x)).tanh(), self.p, self.training) * self.factor


class Stack(nn.Module):
    """Blocks between an embedding and a head; `loop` calls them."""

    def __init__(self, loop: Callable[[Any, Tensor], Tensor], blocks: nn.Module) -> None:
        super().__init__()
        self.loop, self.blocks = loop, blocks
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.loop(self, self.embed(x).sin())).square().mean()


def _layer_drop(self: Any, x: Tensor) -> Tensor:
    """As BART and Wav2Vec2 have it."""
    for _, block in enumerate(self.blocks):
        skipped = False
        if self.training:
            drawn = torch.rand([])
            skipped = drawn < 0.3  # type: ignore[assignment]
        if not skipped:
            x = block(x)
    return x.cos()


def _drawn_in_python(self: Any, x: Tensor) -> Tensor:
    x = x * 2
    for block in self.blocks:
        if self.training and random.uniform(0, 1) < 0.3:
            continue
        x = block(x)
    return x * 3


def _prints(self: Any, x: Tensor) -> Tensor:
    for block in self.blocks:
        x = block(x)
        print(end="")
    return x.cos()


def _routed(self: Any, x: Tensor) -> Tensor:
    for i, block in enumerate(self.blocks):
        chosen = (i + int(x.mean().item() < 1e9)) % 2
        x = x + block[chosen](x)
    return x


def _until(self: Any, x: Tensor) -> Tensor:
    for block in self.blocks:
        x = block(x)
        if x.abs().max().item() > 2.0:
            return x / 2
    return x.tanh()


def _under_no_grad(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
    return x.cos()


def _in_closure(self: Any, x: Tensor) -> Tensor:
    scale = 0.3

    def blocks(y: Tensor) -> Tensor:
        nonlocal scale
        for block in self.blocks:
            y = block(y) * scale
            scale += 0.1
            torch._dynamo.graph_break()
        return y.cos()

    return blocks(x.cos()) * scale


def _encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)


def _pair() -> nn.Module:
    return nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU())])


class Reads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 if x.sum().item() > -1e9 else 2)


def _sequence(count: int) -> nn.Module:
    return nn.Sequential(*(part() for _ in range(count) for part in (Block, Reads, nn.Tanh)))


LOOPS: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[], nn.Module]]] = {
    "layer drop, torch.nn": (_layer_drop, _encoder_layer),
    "drawn in Python": (_drawn_in_python, Block),
    "routed": (_routed, _pair),
    "until": (_until, Block),
    "under no_grad": (_under_no_grad, Block),
    "in a closure": (_in_closure, lambda: nn.Linear(4, 4)),
}


_OLD = pytest.mark.skipif(
    running_torch() < (2, 13), reason="Dynamo traces random.uniform since 2.13"
)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=_OLD if k == "drawn in Python" else ()) for k in LOOPS],
)
def test_a_loop_over_layers(kind: str) -> None:
    """As many captures for any number of layers and for batches that change."""
    loop, block = LOOPS[kind]
    thorough = kind in ("layer drop, torch.nn", "until")

    def step(model: Any) -> list[Tensor]:
        sizes = (2, 3, 2) if thorough else (2, 2, 2)
        losses = [model(torch.randn(size, 3, 4) * (1 + i)) for i, size in enumerate(sizes)]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    captures = []
    for count in (2, 4) if thorough else (4,):
        report = as_in_eager(Stack(loop, nn.ModuleList(block() for _ in range(count))), step)
        assert_compiled(report, captures=9)
        (place,) = report["graph_breaks"]
        assert "test_loops.py:" in place
        captures.append(report["captures"])
    assert captures[0] == captures[-1]


def _sets_what_is_read_behind_it(self: Any, x: Tensor) -> Tensor:
    for block in self.blocks:
        last = block(x)
        x = x + last
        print(end="")
    return x * last


def test_a_loop_that_sets_what_is_read_behind_it() -> None:
    """Its function runs in Python, and its layers are captured."""

    def step(model: Any) -> list[Tensor]:
        losses = [model(torch.randn(2, 3, 4)) for _ in range(3)]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    blocks = nn.ModuleList(Block() for _ in range(3))
    report = as_in_eager(Stack(_sets_what_is_read_behind_it, blocks), step)
    (reason,) = report["eager_pieces"]
    assert "as its graph breaks inside of a loop" in reason and "test_loops.py:" in reason
    assert report["captures"] <= 5


def _behind_a_break(self: Any, x: Tensor) -> Tensor:
    """The graph breaks in the loop's first line, too, and the function goes on there inside of a `with`."""
    n = torch.tensor([3]).numpy()[0]
    y = x
    with torch.no_grad():
        for k in range(1, n + 1):
            torch._dynamo.graph_break()
            y = y + k * x
    return y * x


def test_a_loop_behind_a_graph_break_in_its_own_line() -> None:
    def step(model: Any) -> list[Tensor]:
        losses = [model(torch.randn(rows, 3, 4)) for rows in (2, 3, 4)]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    report = as_in_eager(Stack(_behind_a_break, nn.Identity()), step)
    assert report["graph_breaks"]


def test_a_sequence_of_layers_that_breaks_the_graph() -> None:
    """A container of torch.nn, whose layers Dynamo would not look at."""

    def step(model: Any) -> list[Tensor]:
        losses = [model(torch.randn(rows, 3, 4)) for rows in (2, 3, 4)]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    captures = []
    for count in (2, 4):
        report = as_in_eager(Stack(lambda self, x: self.blocks(x), _sequence(count)), step)
        assert_compiled(report, captures=8)
        captures.append(report["captures"])
    assert captures[0] == captures[1]


def test_what_runs_in_python_costs_no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo asks about the loop in each step; its own entry takes longer than a layer."""
    model = ORTModule(Stack(_prints, nn.ModuleList(Block() for _ in range(2))), QUIET)
    x = torch.randn(3, 4)
    for _ in range(3):
        model(x).backward()
    entry = torch._dynamo.convert_frame.CatchErrorsWrapper
    monkeypatch.setattr(entry, "__call__", lambda *args: pytest.fail("asked Dynamo again"))
    model(x).backward()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "factor": lambda block: setattr(block, "factor", 3.0),
    "p": lambda block: setattr(block, "p", 1.0),
    "training": lambda block: block.eval(),
    "requires_grad": lambda block: block.fc.weight.requires_grad_(False),
    "hook": lambda block: block.fc.register_forward_hook(lambda *args: args[2] * 2),
}


def test_equal_layers_share_a_capture_but_not_its_guards() -> None:
    """Each change of one layer is seen."""

    def step(model: Any) -> list[Tensor]:
        x = torch.randn(3, 4)
        found = [model(x)]
        for change in CHANGES.values():
            found[-1].backward()
            change(original(model).blocks[1])
            found.append(model(x))
        found[-1].backward()
        return [*found, model(x)]

    blocks = nn.ModuleList(Block() for _ in range(3))
    report = as_in_eager(Stack(_prints, blocks), step)
    assert_compiled(report, captures=9 + len(CHANGES))


@pytest.mark.slow
def test_memory_options_reach_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a share of the peak that not every piece can reach."""
    x = torch.randn(8, 32, 4)
    peaks, gradients = [], []
    for level, budget in ((0, None), (1, None), (0, "activations:60%")):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", str(level))
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True) for _ in range(4)]
        stack = Stack(_prints, nn.ModuleList(layers))
        stack.embed, stack.head = nn.Linear(4, 32), nn.Linear(32, 2)
        model = ORTModule(stack, QUIET, memory_budget=budget)
        model(x).backward()
        peaks.append(last_run_report(model)["measured_peak_bytes"])
        gradients.append([p.grad for p in model.parameters()])
    assert max(peaks[1:]) < 0.8 * peaks[0], peaks
    for changed in gradients[1:]:
        assert all(map(torch.equal, changed, gradients[0]))


def test_layers_are_captured_though_another_compiler_gave_them_up() -> None:
    torch._dynamo.reset()
    model = ORTModule(Stack(lambda self, x: self.blocks(x), _sequence(2)), QUIET)
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.compile(model.module, backend="eager")(x)
    model(x).backward()
    report = last_run_report(model)
    assert report["compiled"] and not report["eager_pieces"], report


# ---- the bytecode ----------------------------------------------------------------------------------


def _mark() -> None:
    """Stands for what breaks the graph."""


def _with_else(xs: list[int], n: int) -> Any:
    for x in xs:
        if x > 3:
            _mark()
            break
        n += x
    else:
        n = -n
    return n * 2


def _with_return(xs: list[int], n: int) -> Any:
    kept = []
    for x in xs:
        _mark()
        if x > 3:
            return x, n, kept
        kept.append(x)
        n += 1
    return None, n, kept


def _while(xs: list[int], n: int) -> Any:
    while n > 0:
        _mark()
        n -= 1
        if n == 5:
            break
    return n, xs


def _with_arguments(xs: list[int], n: int, *rest: int, k: int = 3, **others: int) -> Any:
    total = []
    for x in xs if n else rest:
        for y in range(x):
            _mark()
            if y == 2:
                break
            total.append((x, y, k, others.get("q")))
    return total


def _with_cells(xs: list[int], n: int) -> Any:
    h = n
    for x in xs:
        _mark()
        h += x
        n += sum([z + h for z in range(x)])
    return (lambda: h)(), n


def _with_handlers(xs: list[int], n: int) -> Any:
    seen = None
    for x in xs:
        try:
            _mark()
            n += 1 // (x - 2)
        except ZeroDivisionError as error:
            seen = str(error)
            continue
        finally:
            n += 100
    return seen, n


def _in_context(xs: list[int], n: int) -> Any:
    with memoryview(b"abc") as data:
        for x in xs:
            with memoryview(b"de") as more:
                _mark()
                if x == 4:
                    break
                n += x * more[0]
            n += data[0]
    return n


def _optional(xs: list[int], n: int) -> Any:
    history: tuple[int, ...] | None = () if n else None
    for i, x in enumerate(xs):
        if history is not None:
            history = (*history, x)
        if i == 2:
            _mark()
            del n
            n = 4
    return history, n


def _without_end(xs: list[int], n: int) -> Any:
    while True:
        n += 1
        _mark()
        if n > 20:
            return n


class _Base:
    def run(self, xs: list[int], n: int) -> Any:
        return n


class _Derived(_Base):
    def run(self, xs: list[int], n: int) -> Any:
        for x in xs:
            _mark()
            n += super().run(xs, x)
        return n


def _method(xs: list[int], n: int) -> Any:
    return _Derived().run(xs, n)


OUTLINED: list[Callable[..., Any]] = [
    _with_else,
    _with_return,
    _while,
    _with_arguments,
    _with_cells,
    _with_handlers,
    _in_context,
    _optional,
    _without_end,
    _method,
]


def _marked(code: types.CodeType) -> Any:
    """Offset of the first call of `_mark`, among the instructions that Dynamo reads."""
    return next(i.offset for i in cleaned_instructions(code) if i.argval == "_mark")


@pytest.mark.parametrize("function", OUTLINED, ids=lambda function: function.__name__)
def test_a_function_with_its_loop_outside(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the same results and errors, and the same variables, which guards read by position."""
    changed = _Derived.run if function is _method else function
    code = changed.__code__
    outlined = outline(code, _marked(code))
    assert outlined is not None
    for kind in ("co_varnames", "co_cellvars", "co_freevars"):
        assert getattr(outlined.code, kind) == getattr(code, kind)
    assert "_mark" in {i.argval for i in dis.get_instructions(outlined.part)}
    assert "_mark" not in {i.argval for i in dis.get_instructions(outlined.code)}

    def outcome(xs: list[int], n: int) -> Any:
        try:
            return function(xs, n)
        except Exception as error:
            return type(error), str(error)

    calls = [(xs, n) for xs in ([1, 2, 3, 4, 5], [2, 4, 6], [], [5], [4, 2]) for n in (0, 1, 9)]
    wanted = [outcome(*call) for call in calls]
    monkeypatch.setattr(changed, "__code__", outlined.code)
    assert [outcome(*call) for call in calls] == wanted


def _maybe_unset(xs: list[int], n: int) -> Any:
    if n:
        y = 1
    for x in xs:
        _mark()
        if x > 3:
            y = x
    return y


def _left_unset(xs: list[int], n: int) -> Any:
    for x in xs:
        _mark()
        y = x
    return y, n


def _no_loop(xs: list[int], n: int) -> Any:
    _mark()
    return n


@pytest.mark.parametrize("function", [_maybe_unset, _left_unset, _no_loop])
def test_what_stays_in_its_function(function: Any) -> None:
    assert outline(function.__code__, _marked(function.__code__)) is None


@pytest.mark.parametrize("error", [AssertionError, KeyError])
def test_what_the_assembler_refuses(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function stays as it is; the loop runs in Python with the rest of it."""

    def refuse(*_: Any) -> Any:
        raise error("refused")

    monkeypatch.setattr(bytecode_transformation, "clean_and_assemble_instructions", refuse)

    def run(xs: list[int], n: int) -> int:
        for x in xs:
            _mark()
            n += x
        return n

    code = run.__code__.replace(co_name=error.__name__)  # one that no other test has outlined
    assert outline(code, _marked(code)) is None
