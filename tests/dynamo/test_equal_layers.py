"""Equal layers are traced once: what makes a layer unequal is seen, before and after the first capture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.output_graph import OutputGraph
from torch.utils.checkpoint import checkpoint

from ortmodule_py import ORTModule
from ortmodule_py.dynamo import layer_copies
from ortmodule_py.dynamo.patches import equal_layers as row
from ortmodule_py.dynamo.patches.table import running_torch
from tests.dynamo.test_open_calls import Decoder, update
from tests.semantics import QUIET, as_in_eager, assert_whole, original

COPIES = running_torch() >= (2, 13)
"""Whether layers are copied; before, all of them are traced, with the same results."""


class _State:
    values: Any = ()
    number = 0


class _Layer(nn.Module):
    """Enough calls for a copy to pay."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4, eps=1.0)
        self.drop = nn.Dropout(0.0)
        self.scale = 1.0
        self.index = 0
        self.state = state
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.drop(self.first(x)).tanh() * self.scale)
        if self.training:
            self.steps.add_(1)
        return y.relu() + x.sin() / (1 + self.steps)


class _Stack(nn.Module):
    def __init__(self, kind: Callable[[_State], nn.Module] = _Layer, count: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.state = _State()
        self.layers = nn.ModuleList(kind(self.state) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def _x() -> Tensor:
    return torch.linspace(-1, 1, 12).view(3, 4)


def _copies(run: Callable[[], Any]) -> int:
    before = layer_copies.copied_layers
    run()
    return layer_copies.copied_layers - before


def _change_p(model: Any) -> None:
    model.layers[3].drop.p = 1.0


def _evaluate(model: Any) -> None:
    model.layers[3].eval()


def _freeze(model: Any) -> None:
    model.layers[3].first.weight.requires_grad_(False)


def _change_a_number(model: Any) -> None:
    model.layers[3].scale = 2.0


def _add_a_hook(model: Any) -> None:
    model.layers[3].first.register_forward_hook(lambda _, args, result: result * 2)


def _add_a_hook_of_backward(model: Any) -> None:
    model.layers[3].norm.register_full_backward_hook(lambda _, into, out: (into[0] * 2,))


def _replace_a_layer(model: Any) -> None:
    model.layers[3].first = nn.Identity()


def _tie(model: Any) -> None:
    model.layers[3].first.weight = model.layers[0].first.weight


def _replace_forward(model: Any) -> None:
    model.layers[3].norm.forward = torch.sin


def _drop_the_bias(model: Any) -> None:
    model.layers[3].first.bias = None


_CHANGES = [
    *(_change_p, _evaluate, _freeze, _change_a_number, _add_a_hook, _add_a_hook_of_backward),
    *(_replace_a_layer, _tie, _replace_forward, _drop_the_bias),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", _CHANGES)
def test_a_layer_that_differs_is_traced(change: Callable[[Any], None], when: str) -> None:
    def step(model: Any) -> list[Tensor]:
        inner = original(model)
        results = []
        for call in range(3):
            if call == (0 if when == "before" else 1):
                change(inner)
            results.append(model(_x()))
            results[-1].square().sum().backward()
        return results

    copies = _copies(lambda: as_in_eager(_Stack(), step))
    # Layer 0 is another one than the rest, as its input has no gradient, so that 2 and 4 are copied. So is 3 if
    # its weight is that of another layer; tied later, that is no new capture.
    tied = change is _tie
    assert copies == COPIES * (2 + tied if when == "before" else 5 - 2 * tied)


def test_a_changed_number_is_no_capture_of_equal_layers() -> None:
    """The index of a layer that is not read does not make it another one."""

    def step(model: Any) -> Tensor:
        inner = original(model)
        for i, layer in enumerate(inner.layers):
            layer.index = i
        y: Tensor = model(_x())
        y.sum().backward()
        return y

    reports = []
    assert _copies(lambda: reports.append(as_in_eager(_Stack(), step))) == 3 * COPIES
    assert_whole(reports[0])


class _Appends(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.state.values.append(x)
        return super().forward(x)


class _Assigns(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.state.number += 1
        return super().forward(x)


class _Reads(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * len(self.state.values)


class _Builds(_Layer):
    """Makes and changes objects of its own."""

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for _ in range(2):
            parts.append(super().forward(parts[-1]))
        return torch.stack(parts).sum(0)


class _Draws(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (self.state.number == 0)


def _with_list(model: Any, x: Tensor) -> Any:
    model.state.values = values = []
    for layer in model.layers:
        values.append(x)
        x = layer(x)
    return x, model.state.number, len(values)


class _Listing(_Stack):
    def forward(self, x: Tensor) -> Any:
        return _with_list(self, x)


class _Counting(_Stack):
    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
            self.state.number += 1
        return x, self.state.number


@pytest.mark.parametrize(
    ("model", "copies"),
    [
        (_Listing(_Appends), 0),
        (_Listing(_Assigns), 0),
        (_Listing(_Reads), 0),
        (_Counting(_Draws), 0),
        (_Stack(_Builds), 3),
    ],
    ids=["appends", "assigns", "reads", "draws", "builds"],
)
def test_python_objects_that_layers_share(model: nn.Module, copies: int) -> None:
    def step(run: Any) -> Any:
        results = []
        for _ in range(2):
            results.append(run(_x()))
            y = results[-1]
            (y[0] if isinstance(y, tuple) else y).square().sum().backward()
        return results

    assert _copies(lambda: as_in_eager(model, step)) in (copies * COPIES, 2 * copies * COPIES)


class _Returns(_Layer):
    """A view of an inner value, an argument, a parameter, and one value twice."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        y, bias = super().forward(x), self.first.bias
        return y.view(4, 3), x, bias, (y, y), None if bias.dim() == 1 else x


class _Freezes(_Layer):
    """What it returns is computed without gradients, or in another type, inside of the layer."""

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        y = super().forward(x)
        with torch.no_grad():
            frozen = y * 2
        with torch.autocast("cpu", torch.bfloat16):
            z = self.first(y)
        return y, frozen, z


class _Summing(_Stack):
    def forward(self, x: Tensor) -> Any:
        found = []
        for layer in self.layers:
            x, frozen, z = layer(x)
            found += [frozen, z * (2 if frozen.requires_grad else 1)]
        return x, found


def test_modes_inside_of_a_layer() -> None:
    def step(run: Any) -> Any:
        y, found = run(_x())
        (y.square().sum() + sum(z.float().sum() for z in found[1::2])).backward()
        return y, found[0::2]

    assert_whole(as_in_eager(_Summing(_Freezes), step))


class _Using(_Stack):
    def forward(self, x: Tensor) -> Any:
        kept = []
        for layer in self.layers:
            view, same, bias, (y, again), nothing = layer(x)
            assert same is x and again is y and nothing is None
            view.mul_(2)
            kept.append(bias.sum())
            x = y + len({id(y), id(view)})
        return x, torch.stack(kept)


def test_what_a_layer_returns() -> None:
    def step(run: Any) -> Any:
        y, kept = run(_x())
        (y.square().sum() + kept.sum()).backward()
        return y, kept

    reports = []
    assert _copies(lambda: reports.append(as_in_eager(_Using(_Returns), step))) == 3 * COPIES
    assert_whole(reports[0])


class _Batches(nn.Module):
    """A batch norm, whose counter could be read as a number."""

    def __init__(self, _: _State, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.batches = nn.BatchNorm1d(4, momentum=momentum)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(self.batches(x).relu()).sin()
        return (x + y.cos() * y.tanh()).exp().log()


def _averaging(state: _State) -> nn.Module:
    """Its momentum is 1 / counter."""
    return _Batches(state, None)


@pytest.mark.parametrize(("kind", "copies"), [(_Batches, 3), (_averaging, 0)])
def test_batch_norms(kind: Callable[[_State], nn.Module], copies: int) -> None:
    def step(run: Any) -> Tensor:
        for _ in range(2):
            y: Tensor = run(_x())
            y.sum().backward()
        return y

    assert _copies(lambda: as_in_eager(_Stack(kind), step)) == copies * COPIES


class _Shared(_Stack):
    """One layer called several times, as in ALBERT, then others."""

    def forward(self, x: Tensor) -> Tensor:
        for i in (0, 0, 1, 0, 2):
            x = self.layers[i](x)
        return x


class _Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 4
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, 0.0), 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            y: Tensor = self.decoder(x, self.encoder(x))
        return y.float()


class _Checkpointed(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return y


def _checkpoints() -> nn.Module:
    return _Stack(_Checkpointed)


def _texts(monkeypatch: pytest.MonkeyPatch, model: nn.Module) -> Iterator[tuple[Any, set[str]]]:
    """The calls of each captured graph, with values and module paths, and its guards."""
    found: list[tuple[Any, set[str]]] = []
    compile_graph = OutputGraph.compile_and_call_fx_graph

    def watched(self: Any, *args: Any) -> Any:
        found.append((_calls(self.graph), set(map(_guard_text, self.guards))))
        return compile_graph(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(OutputGraph, "compile_and_call_fx_graph", watched)
        torch._dynamo.reset()
        result = ORTModule(model, QUIET)(_x())
        (result[0] if isinstance(result, tuple) else result).sum().backward()
    yield from found


def _calls(graph: fx.Graph) -> list[Any]:
    calls = [node for node in graph.nodes if node.op != "placeholder"]
    named: dict[fx.Node, Any] = {node: i for i, node in enumerate(calls)}
    for node in graph.nodes:
        if node.op == "placeholder":
            named[node] = node.meta["grapharg"].source.name
    return [
        (
            re.sub(r"body_\d+", "body", str(getattr(node.target, "__name__", node.target))),
            str(fx.map_arg((node.args, node.kwargs), lambda read: named[read])),  # type: ignore[arg-type,return-value]
            str(node.meta.get("nn_module_stack") and list(node.meta["nn_module_stack"].values())),
            _value_text(node.meta.get("example_value")),
        )
        for node in calls
    ]


def _value_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return str([_value_text(part) for part in value])
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad} {value.is_leaf}"
    return str(value)


def _guard_text(guard: Any) -> str:
    return re.sub(r"_c?\d+'", "'", f"{guard.create_fn_name()} {guard.name}")


def _decoder() -> nn.Module:
    return Decoder(update)


@pytest.mark.parametrize("make", [_Stack, _Shared, _Nested, _checkpoints, _decoder])
def test_a_copy_is_what_dynamo_would_trace(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module]
) -> None:
    copies = layer_copies.copied_layers
    copied = list(_texts(monkeypatch, make()))
    assert (layer_copies.copied_layers > copies) == COPIES
    with monkeypatch.context() as patched:
        patched.setattr(row.equal_layers, "trace_or_copy", lambda call, *args: call(*args))
        traced = list(_texts(monkeypatch, make()))
    assert len(copied) == len(traced)
    for (calls, guards), (wanted_calls, wanted_guards) in zip(copied, traced, strict=True):
        assert calls == wanted_calls
        # What a class says is guarded once, and that layers are of the class.
        assert {guard for guard in wanted_guards if "type(" not in guard} <= guards
