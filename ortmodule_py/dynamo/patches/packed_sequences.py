"""Captures packed batches of sequences with the layers that run on them.

Dynamo breaks the graph at `pack_padded_sequence` and `pad_packed_sequence`, and at a recurrent layer with
a PackedSequence, because the sizes are data: the sum and the greatest of the lengths, and the first of the
batch sizes. Here each call reads them before the graph runs (`content_sizes`). What torch refuses, such as
lengths in the wrong order, and what cannot be read, such as lengths of another model, stays with torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.variables import (
    ConstantVariable,
    NumpyNdarrayVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import wrap_fx_proxy
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ortmodule_py.dynamo.content_sizes import read_size, tensor_of_list
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.trace.decompositions import packed_sequences

_pack = torch.compiler.allow_in_graph(packed_sequences.pack)
_pad = torch.compiler.allow_in_graph(packed_sequences.pad)
_layers = torch.compiler.allow_in_graph(packed_sequences.layers)

# ---- what Dynamo traces instead of torch's functions ---------------------------------------------


def _packed(
    input: Tensor, lengths: Tensor, batch_first: bool, enforce_sorted: bool, rows: int, steps: int
) -> PackedSequence:
    lengths = lengths.to(torch.int64)
    sorted_indices = None
    if not enforce_sorted:
        lengths, sorted_indices = torch.sort(lengths, descending=True)
        input = input.index_select(0 if batch_first else 1, sorted_indices)
    data, batch_sizes = _pack(input, lengths, rows, steps, batch_first)
    return PackedSequence(data, batch_sizes, sorted_indices)


def _padded(
    sequence: PackedSequence,
    batch_first: bool,
    padding_value: float,
    total_length: int | None,
    batch: int,
) -> tuple[Tensor, Tensor]:
    data, batch_sizes, _, unsorted_indices = sequence
    steps = batch_sizes.size(0)
    if total_length is not None:
        if total_length < steps:
            raise ValueError(
                "Expected total_length to be at least the length "
                "of the longest sequence in input, but got "
                f"total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    padded, lengths = _pad(data, batch_sizes, batch, steps, batch_first, padding_value)
    if unsorted_indices is None:
        return padded, lengths
    return padded.index_select(0 if batch_first else 1, unsorted_indices), lengths[unsorted_indices]


def _of_layer(layer: Any, input: PackedSequence, hx: Any, batch: int) -> tuple[PackedSequence, Any]:
    layer._update_flat_weights()
    data, batch_sizes, sorted_indices, unsorted_indices = input
    if data.dim() != 2 or data.size(1) != layer.input_size:
        layer.check_input(data, batch_sizes)
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    kind = layer.mode.lower()
    of_lstm = kind == "lstm"
    widths = [layer.proj_size or layer.hidden_size]
    if of_lstm:
        widths.append(layer.hidden_size)
    if hx is None:
        states = [
            torch.zeros(rows, batch, width, dtype=data.dtype, device=data.device)
            for width in widths
        ]
    else:
        hx = layer.permute_hidden(hx, sorted_indices)
        states = [hx[0], hx[1]] if of_lstm else [hx]
        for state, width in zip(states, widths):  # noqa: B905 (Dynamo traces it)
            fits = state.dim() == 3 and state.size(0) == rows and state.size(1) == batch
            if not fits or state.size(2) != width:
                layer.check_forward_args(data, hx, batch_sizes)
    value, *final = _layers(
        kind,
        data,
        batch_sizes,
        states,
        layer._flat_weights,
        layer.bias,
        layer.num_layers,
        layer.dropout,
        layer.training,
        layer.bidirectional,
    )
    hidden = layer.permute_hidden(tuple(final) if of_lstm else final[0], unsorted_indices)
    return PackedSequence(value, batch_sizes, sorted_indices, unsorted_indices), hidden


# ---- the sizes -----------------------------------------------------------------------------------

_INVALID = -1
"""No size: torch refuses such lengths."""


def _sum_of(lengths: Tensor) -> int:
    return int(lengths.sum())


def _greatest(lengths: Tensor) -> int:
    if lengths.numel() == 0:
        return _INVALID
    least, greatest = lengths.aminmax()
    return int(greatest) if least > 0 else _INVALID


def _first_of_descending(lengths: Tensor) -> int:
    if lengths.numel() == 0 or lengths[-1] <= 0:
        return _INVALID
    return int(lengths[0]) if bool((lengths[:-1] >= lengths[1:]).all()) else _INVALID


def _first(batch_sizes: Tensor) -> int:
    return int(batch_sizes[0]) if batch_sizes.numel() > 0 else _INVALID


def _is_tensor_on_cpu(value: VariableTracker) -> bool:
    if not value.is_tensor() or isinstance(value, NumpyNdarrayVariable):
        return False
    return bool(_fake(value).device.type == "cpu")


def _fake(value: VariableTracker) -> Any:
    return value.as_proxy().node.meta["example_value"]


# ---- calls ---------------------------------------------------------------------------------------


def _call_pack(tx: Any, given: dict[str, VariableTracker]) -> VariableTracker | None:
    input = given["input"]
    lengths = tensor_of_list(tx, given["lengths"]) or given["lengths"].realize()
    if not (_is_tensor_on_cpu(input) and _is_tensor_on_cpu(lengths)):
        return None
    batch_first, enforce_sorted = given["batch_first"], given["enforce_sorted"]
    if not (batch_first.is_python_constant() and enforce_sorted.is_python_constant()):
        return None
    x, sizes = _fake(input), _fake(lengths)
    in_order = enforce_sorted.as_python_constant()
    time, batch = (1, 0) if batch_first.as_python_constant() else (0, 1)
    if x.dim() < 2 or sizes.dim() != 1 or sizes.is_floating_point() or sizes.is_complex():
        return None
    if sizes.shape[0] != x.shape[batch] or sizes.shape[0] == 0:
        return None
    rows = read_size(tx, lengths, _sum_of)
    steps = read_size(tx, lengths, _first_of_descending if in_order else _greatest)
    if rows is None or steps is None or _number(steps) < 1 or _number(steps) > x.shape[time]:
        return None
    args = [input, lengths, batch_first, enforce_sorted, rows, steps]
    return UserFunctionVariable(_packed).call_function(tx, args, {})


def _call_pad(tx: Any, given: dict[str, VariableTracker]) -> VariableTracker | None:
    sequence = given["sequence"]
    batch = _batch_of(tx, sequence)
    if batch is None:
        return None
    args = [sequence, given["batch_first"], given["padding_value"], given["total_length"], batch]
    return UserFunctionVariable(_padded).call_function(tx, args, {})


def _call_layer(tx: Any, given: dict[str, VariableTracker]) -> VariableTracker | None:
    if not _is_packed(given["input"]):
        return None
    batch = _batch_of(tx, given["input"])
    if batch is None:
        return None
    args = [given["self"], given["input"], given["hx"], batch]
    return UserFunctionVariable(_of_layer).call_function(tx, args, {})


def _is_packed(value: VariableTracker) -> bool:
    try:
        return value.python_type() is PackedSequence
    except NotImplementedError:  # known at run time only
        return False


def _batch_of(tx: Any, sequence: VariableTracker) -> VariableTracker | None:
    """The first of the batch sizes; None if the sequence is not on the CPU or it cannot be read."""
    if not _is_packed(sequence):
        return None
    data, batch_sizes = (
        VariableTracker.build(tx, getattr).call_function(
            tx, [sequence, ConstantVariable.create(name)], {}
        )
        for name in ("data", "batch_sizes")
    )
    if not (_is_tensor_on_cpu(data) and _is_tensor_on_cpu(batch_sizes)):
        return None
    lengths = _packed_lengths(batch_sizes.as_proxy().node)
    if lengths is None:
        return read_size(tx, batch_sizes, _first)
    size = lengths.meta["example_value"].shape[0]
    if isinstance(size, int):
        return ConstantVariable.create(size)
    given = (fx.Proxy(lengths, tx.output.current_tracer), 0)
    return wrap_fx_proxy(tx, tx.output.create_proxy("call_method", "size", given, {}))


def _packed_lengths(batch_sizes: fx.Node) -> fx.Node | None:
    """The lengths from which a node of this graph made these batch sizes."""
    made = batch_sizes.args[0] if batch_sizes.args else None
    if isinstance(made, fx.Node) and getattr(made.target, "__name__", "") == "pack":
        lengths = made.args[1]
        return lengths if isinstance(lengths, fx.Node) else None
    return None


def _number(value: VariableTracker) -> Any:
    return value.sym_num if hasattr(value, "sym_num") else value.as_python_constant()


_CALLS: dict[Any, Callable[[Any, dict[str, VariableTracker]], VariableTracker | None]] = {
    pack_padded_sequence: _call_pack,
    pad_packed_sequence: _call_pad,
    nn.LSTM.forward: _call_layer,
    nn.GRU.forward: _call_layer,
    nn.RNN.forward: _call_layer,
}


def _redirected(
    tx: Any, function: Any, args: Any, kwargs: dict[str, Any]
) -> VariableTracker | None:
    """The result of a call of one of these functions, if it can be captured."""
    call = _CALLS.get(function)
    if call is None:
        return None
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None
    given = {
        name: ConstantVariable.create(p.default)
        for name, p in bound.signature.parameters.items()
        if p.default is not p.empty
    }
    for name, value in bound.arguments.items():
        given[name] = value if name == "lengths" else value.realize()
    return call(tx, given)


# ---- rows ----------------------------------------------------------------------------------------


def _probe(trial: Trial) -> bool:
    layer = nn.GRU(2, 3)

    def run(x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        padded, _ = pad_packed_sequence(layer(packed)[0])
        return padded.sin()

    batches = (([2, 4],), ([3, 1],), ([5, 5],))
    same = trial(
        lambda: run, *((torch.ones(5, 2, 2), torch.tensor(lengths)) for (lengths,) in batches)
    )
    return same and trial.captures <= 2 and not trial.graph_breaks


def _redirects(name: str, purpose: str, variable: str, attribute: str) -> None:
    """Add the row for calls of functions that Dynamo keeps in this attribute of this kind of variable."""

    @patch(
        name,
        purpose,
        f"torch._dynamo.variables.functions:{variable}.call_function",
        probe=_probe,
        needed_by=None,
    )
    def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        made = _redirected(tx, getattr(self, attribute), args, kwargs)
        return call(self, tx, args, kwargs) if made is None else made


_redirects(
    "packed_sequences",
    "pack_padded_sequence and pad_packed_sequence are captured, once for all lengths.",
    "SkipFunctionVariable",
    "value",
)
_redirects(
    "packed_layers",
    "Recurrent layers on a PackedSequence are captured, once for all lengths.",
    "UserFunctionVariable",
    "fn",
)
