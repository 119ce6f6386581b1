"""Recurrent layers on packed batches, whose sizes are data."""

from __future__ import annotations

from .operations import operation
from .source import SourceBuilder, Var, is_static


def _lengths(g: SourceBuilder, x: Var) -> str:
    """Lengths of the rows of x that follow from one argument of forward, `ids`."""
    steps = x.size(1) if is_static(x.shape[1]) else "1"
    words = "ids.reshape(ids.shape[0], -1)"
    return g.rng.choice(
        [
            f"({words}[:, {g.rng.choice([0, -1])}] + 1).clamp(1, {steps}).cpu()",
            f"({words} > 3).sum(1).clamp(1, {steps})",
        ]
    )


@operation(1.2)
def packed_layer(g: SourceBuilder) -> object:
    ids = g.pick(lambda v: v.name == "ids")
    x = g.pick(lambda v: v.is_float and v.rank == 3 and v.shape[0] == ids.shape[0])
    width = x.shape[2]
    if not is_static(width):
        x, width = g.emit(f"{x.name}.mean(2, keepdim=True)"), 1
    kind = g.rng.choice(["GRU", "LSTM", "RNN"])
    options = g.rng.choice(["", ", bidirectional=True"]) + g.rng.choice(["", ", num_layers=2"])
    if kind == "LSTM" and g.chance(0.4):
        options += ", proj_size=2"
    layer = g.attribute("rnn", f"nn.{kind}({width}, 4, batch_first=True{options})")
    lengths, packed = g.fresh("lengths"), g.fresh("packed")
    g.statement(f"{lengths} = {_lengths(g, x)}")
    sequence = f"nn.utils.rnn.pack_padded_sequence({x.name}, {lengths}, True, False)"
    g.statement(f"{packed} = {layer}({sequence})")
    # Not the cells of projected states: of one step, they do not depend on the last projection.
    last = {"LSTM": "[0]" if "proj_size" in options else "[1]"}.get(kind, "")
    forms = [f"{packed}[0].data.sin().sum(0)", f"{packed}[1]{last}"]
    padded = f"nn.utils.rnn.pad_packed_sequence({packed}[0], True, total_length={x.size(1)})"
    forms += [f"{padded}[0]", f"{padded}[0]", f"{padded}[1] * 1"]
    return g.emit(g.rng.choice(forms))
