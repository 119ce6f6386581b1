"""Runs stacked recurrent layers one by one, each as one operator, with dropout between them.

The order is that of ATen's `apply_layer_stack` (aten/src/ATen/native/RNN.cpp): time first, dropout on the
output of each layer but the last. torch's Python kernels of `lstm`, `gru` and `rnn` (`_rnn_helper` in
`torch/_decomp/decompositions.py`) compute step by step, so that a graph is as long as its sequences; they
remain for what the engine's ops do not take. Up to 2.13 they never apply dropout, as their comparison of
the layer's index with the number of layers is reversed, and up to 2.11 the final states of an LSTM have an
extra dimension (`one_layer_lstm` there).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ortmodule_py.base.errors import CannotLower

OPERATORS: tuple[OpOverload, ...] = (
    torch.ops.aten.lstm.input,
    torch.ops.aten.gru.input,
    torch.ops.aten.rnn_tanh.input,
    torch.ops.aten.rnn_relu.input,
)
"""The overloads for padded batches; packed ones are in `packed_sequences`."""

# ---- one layer as one operator -------------------------------------------------------------------

_OPERANDS = "Tensor input, Tensor[] hx, Tensor[] params, bool bidirectional, bool batch_first"
_LIBRARY = torch.library.Library("ortmodule_py", "FRAGMENT")
_LIBRARY.define(f"lstm({_OPERANDS}, Tensor? batch_sizes=None) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(f"gru({_OPERANDS}, Tensor? batch_sizes=None) -> (Tensor, Tensor)")
_LIBRARY.define(f"rnn({_OPERANDS}, Tensor? batch_sizes=None, bool relu=False) -> (Tensor, Tensor)")


def _results(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    bidirectional: bool,
    batch_first: bool,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, ...]:
    """New tensors with sizes and strides of eager's results: time first in memory."""
    finals = (torch.empty_like(state, memory_format=torch.contiguous_format) for state in hx)
    width = hx[0].shape[-1] * (2 if bidirectional else 1)
    if input.dim() == 2:
        return input.new_empty(input.shape[0], width), *finals
    steps, batch = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
    value = input.new_empty(steps, batch, width)
    return value.transpose(0, 1) if batch_first else value, *finals


for _name in ("lstm", "gru", "rnn"):
    _LIBRARY.impl(_name, _results, "CompositeExplicitAutograd")

_OPERATOR_OF: dict[OpOverload, tuple[OpOverload, dict[str, bool]]] = {
    torch.ops.aten.lstm.input: (torch.ops.ortmodule_py.lstm.default, {}),
    torch.ops.aten.gru.input: (torch.ops.ortmodule_py.gru.default, {}),
    torch.ops.aten.rnn_tanh.input: (torch.ops.ortmodule_py.rnn.default, {}),
    torch.ops.aten.rnn_relu.input: (torch.ops.ortmodule_py.rnn.default, {"relu": True}),
}


class _Known:
    """Which operators the piece being traced may contain; captures of several threads do not overlap."""

    has_rule: Callable[[str], bool] = staticmethod(lambda _: False)


@contextlib.contextmanager
def kept_whole(has_rule: Callable[[str], bool]) -> Iterator[None]:
    """Trace a layer as one operator if the builder `has_rule` for it."""
    before = _Known.has_rule
    _Known.has_rule = staticmethod(has_rule)
    try:
        yield
    finally:
        _Known.has_rule = before


def _is_whole(operator: OpOverload, given: dict[str, Any]) -> bool:
    states, value = _states(given), given["input"]
    types = {t.dtype for t in (value, *states, *given["params"])}
    return (
        _Known.has_rule(str(_OPERATOR_OF[operator][0]))
        and len(types) == 1
        and value.is_floating_point()
    )


# ---- stacks of layers ----------------------------------------------------------------------------


def stacked(operator: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The operator by layers, with dropout between them and final states shaped like the initial ones.

    A layer is one operator where the engine has it, and a call of `kernel` elsewhere.
    """
    names = [argument.name for argument in operator._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        given = _as_autocast(operator, dict(zip(names, args, strict=False)) | kwargs)
        if _is_whole(operator, given):
            with torch._C._DisableAutocast():
                return _stack(given, _one_operator(operator))
        if given["num_layers"] > 1 and given["train"] and given["dropout"] > 0:
            return _stack(given, lambda layer: kernel(*layer.values()))
        value, *final = kernel(*args, **kwargs)
        return value, *map(torch.reshape, final, [state.shape for state in _states(given)])

    return run


def on_packed(
    kind: str, data: Tensor, batch_sizes: Tensor, hx: Any, params: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, ...]:
    """Layers of `torch.lstm` or its like on the packed rows `data`; `rest` as that has them.

    Raises:
        CannotLower: the engine has no operator for such a layer.
    """
    operator: OpOverload = getattr(torch.ops.aten, kind).input
    names = ("has_biases", "num_layers", "dropout", "train", "bidirectional")
    given = {"input": data, "hx": hx, "params": list(params), "batch_first": False}
    given |= {"batch_sizes": batch_sizes} | dict(zip(names, rest, strict=True))
    given = _as_autocast(operator, given)
    if not _is_whole(operator, given):
        raise CannotLower(f"{kind.upper()} on a packed sequence of mixed types", ("", ""))
    with torch._C._DisableAutocast():
        return _stack(given, _one_operator(operator))


def _as_autocast(operator: OpOverload, given: dict[str, Any]) -> dict[str, Any]:
    """The operands as autocast has them inside of GRU and RNN, and of packed layers.

    It casts for their products. The state of a GRU and of a packed LSTM stays in the wider type, with which
    all is computed here; that of an RNN becomes narrow at the first step.
    """
    device = given["input"].device.type
    packed = "batch_sizes" in given
    if operator is torch.ops.aten.lstm.input and not packed:
        return given
    states = _states(given)
    operands = [given["input"], *states, *given["params"]]
    castable = (torch.float32, torch.bfloat16, torch.float16)
    if not torch.is_autocast_enabled(device) or any(t.dtype not in castable for t in operands):
        return given
    of_rnn = operator not in (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)
    dtype = torch.get_autocast_dtype(device) if of_rnn else states[0].dtype
    cast = [state.to(dtype) for state in states]
    return given | {
        "input": given["input"].to(dtype),
        "hx": cast[0] if isinstance(given["hx"], Tensor) else cast,
        "params": [t.to(dtype) for t in given["params"]],
    }


def _one_operator(operator: OpOverload) -> Callable[[dict[str, Any]], Any]:
    whole, options = _OPERATOR_OF[operator]

    def run(layer: dict[str, Any]) -> Any:
        operands = (layer["input"], _states(layer), list(layer["params"]))
        layout = (layer["bidirectional"], layer["batch_first"])
        return whole(*operands, *layout, layer.get("batch_sizes"), **options)

    return run


def _states(given: dict[str, Any]) -> list[Tensor]:
    return [given["hx"]] if isinstance(given["hx"], Tensor) else list(given["hx"])


def _stack(given: dict[str, Any], run: Callable[[dict[str, Any]], Any]) -> tuple[Tensor, ...]:
    """Call `run` once per layer; `given` has its arguments in the schema's order."""
    layers, value, params = given["num_layers"], given["input"], given["params"]
    states = _states(given)
    rows, each = 2 if given["bidirectional"] else 1, len(params) // layers
    finals: list[list[Tensor]] = []
    for layer in range(layers):
        begin = [state.narrow(0, layer * rows, rows) for state in states]
        one = given | {
            "input": value,
            "hx": begin[0] if isinstance(given["hx"], Tensor) else begin,
            "params": params[layer * each : (layer + 1) * each],
            "num_layers": 1,
            "dropout": 0.0,
        }
        value, *final = run(one)
        finals.append(list(map(torch.reshape, final, [state.shape for state in begin])))
        if layer < layers - 1 and given["train"] and given["dropout"] > 0:
            # Time first in memory: eager's draws are in that order.
            first = value.transpose(0, 1) if given["batch_first"] else value
            first = torch.dropout(first, given["dropout"], True)
            value = first.transpose(0, 1) if given["batch_first"] else first
    if layers == 1:
        return value, *finals[0]
    return value, *(torch.cat(parts) for parts in zip(*finals, strict=True))
