"""Lines with indices, in-place changes, buffers, gradient modes and composite layers."""

from __future__ import annotations

from .operations import operation
from .source import Rejected, SourceBuilder, Var, is_static


def _is_ids(v: Var) -> bool:
    return v.name == "ids"


@operation(2)
def embedding(g: SourceBuilder) -> object:
    ids = g.pick(_is_ids)
    extra = g.rng.choice(["", "", ", padding_idx=0"])
    table = g.attribute("embed", f"nn.Embedding(12, {g.rng.choice([1, 4, 6, 8])}{extra})")
    return g.emit(f"{table}({ids.name})")


@operation(2.5)
def index(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and any(is_static(s) for s in v.shape))
    dim = g.rng.choice([i for i, s in enumerate(x.shape) if is_static(s)])
    size = x.shape[dim]
    count = g.rng.randint(1, 5)
    places = [g.rng.randrange(size) for _ in range(count)]
    idx = g.buffer("idx", f"torch.tensor({places})")
    lead = ":, " * dim
    kind = g.rng.randrange(5)
    if kind == 0:
        return g.emit(f"{x.name}.index_select({dim}, {idx})")
    if kind == 1:
        return g.emit(f"{x.name}[{lead}{idx}]")
    shape = [1] * x.rank
    shape[dim] = count
    full = [x.size(i) if i != dim else str(count) for i in range(x.rank)]
    text = f"{idx}.view({shape}).expand({', '.join(full)})"
    if kind == 2:
        return g.emit(f"{x.name}.gather({dim}, {text})")
    if kind == 3:
        return g.emit(f"torch.take_along_dim({x.name}, {text}, dim={dim})")
    source = f"{x.name}.gather({dim}, {text})"
    return g.emit(f"torch.zeros_like({x.name}).scatter_add({dim}, {text}, {source})")


@operation(1)
def integers(g: SourceBuilder) -> object:
    ids = g.pick(_is_ids)
    form = g.rng.choice(["(ids + 1) % 12", "F.one_hot(ids, 12)", "ids.cumsum(-1)", "ids * 2 - 1", "ids // 3",
                         "(ids == 3).long()", "ids.clamp(2, 7)", "ids.flip(-1)", "ids > 4"])  # fmt: skip
    del ids
    return g.emit(form)


@operation(1)
def integers_used(g: SourceBuilder) -> object:
    n = g.pick(lambda v: not v.is_float and not v.dtype.is_complex)
    x = g.pick()
    dims = zip(reversed(x.shape), reversed(n.shape), strict=False)
    if not all(a == b or a == 1 or b == 1 for a, b in dims):
        raise Rejected
    return g.emit(
        g.rng.choice(["{x} * {n}.to({x}.dtype) * 0.1", "{x} + {n} * 0.1"]).format(
            x=x.name, n=n.name
        )
    )


@operation(1.5)
def created(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    form = g.rng.choice([
        "{x} + torch.arange({n}, device={x}.device) * 0.1", "{x} * torch.ones_like({x})",
        "{x} + {x}.new_zeros({n})", "{x} + torch.full_like({x}, 0.25)", "{x}.new_ones({n}) - {x}",
        "{x} * torch.linspace(0, 1, {n}, dtype={x}.dtype)", "{x} + torch.zeros({n})",
        "{x} * torch.arange({n}).to({x}.dtype)[None] * 0.1",
        "{x} + torch.tensor([0.5]).to({x}.dtype)",
    ])  # fmt: skip
    return g.emit(form.format(x=x.name, n=x.size(x.rank - 1)))


# ---- in place ------------------------------------------------------------------------------------


@operation(3)
def in_place(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    if x.name[0] != "v" or g.chance(0.6):
        x = g.emit(g.rng.choice(["{} * 1.5", "{} + 0.1", "{}.clone()"]).format(x.name))
    form = g.rng.choice(["{x}.add_(0.3)", "{x}.mul_(0.5)", "{x}.relu_()", "{x}.clamp_(-1, 1)", "{x} += 1",
                         "{x}[..., 0] = 0.25", "{x}[..., 1:] *= 0.5", "{x}.masked_fill_({x}.detach() > 1, 0.5)",
                         "{x}.tanh_()", "F.relu({x}, inplace=True)", "{x}[0].zero_()",
                         "{x}.transpose(0, -1).add_(0.5)", "{x}.view(-1)[0].add_(1.0)", "{x}.sub_({x}.mean())",
                         "{x}[..., :1].add_({x}[..., -1:])", "{x}.neg_()", "{x}.copy_({x} * 0.9)",
                         "{x}.fill_(0.5)", "{x}.sigmoid_()", "{x}.unsqueeze(0).mul_(2.0)"])  # fmt: skip
    g.statement(form.format(x=x.name), x)
    return g.emit(f"{x.name} * 1.0") if g.chance(0.5) else x


@operation(0.7)
def change_input(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.name == "y" and v.rank >= 1)
    g.statement(f"{x.name}{g.rng.choice(['.mul_(0.5)', '.add_(1)', '[..., 0] = 0.5'])}", x)
    g.features.add("changes_input")
    return x


# ---- buffers -------------------------------------------------------------------------------------


@operation(2)
def buffers(g: SourceBuilder) -> object:
    kind = g.rng.randrange(6)
    if kind == 0:
        count = g.buffer("count", "torch.zeros((), dtype=torch.long)")
        g.statement(f"{count}.add_(1)" if g.chance(0.5) else f"{count} += 1")
        return g.emit(f"{g.pick().name} / {count}") if g.chance(0.5) else None
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    if kind == 1:
        mean = g.buffer("mean", "torch.zeros(())")
        g.statement(f"{mean}.mul_(0.9).add_({x.name}.detach().mean(), alpha=0.1)")
        return g.emit(f"{x.name} - {mean}")
    if not is_static(x.shape[-1]):
        raise Rejected
    state = g.buffer("state", f"torch.rand({x.shape[-1]}) + 0.5")
    axes = list(range(x.rank - 1))
    mean = f"{x.name}.mean({axes})" if axes else x.name
    if kind == 2:
        y = g.emit(f"{x.name} * {state}")
        g.statement(f"with torch.no_grad():\n    {state}.lerp_({mean}, 0.2)")
        return y
    if kind == 3:
        g.statement(f"with torch.no_grad():\n    {state}.copy_(0.5 * {state} + 0.5 * {mean})")
        return g.emit(f"{x.name} + {state}")
    if kind == 4:
        g.statement(f"{state} = 0.5 * {state} + {mean}.detach() * 0.5")
        return g.emit(f"{x.name} * {state}")
    g.statement(f"if self.training:\n    {state} += {mean}.detach()")
    return g.emit(f"{x.name} + {state} * 0.1")


# ---- gradient modes and control flow -------------------------------------------------------------


@operation(1.5)
def no_gradient(g: SourceBuilder) -> object:
    x = g.pick()
    kind = g.rng.randrange(4)
    if kind == 0:
        return g.emit(
            f"{x.name}.abs().mean() + 0.5", "with torch.no_grad():\n    {name} = {expression}"
        )
    if kind == 1:
        return g.emit(f"{x.name} * 2", "with torch.no_grad():\n    {name} = {expression}")
    if kind == 2:
        return g.emit(f"{x.name} + {x.name}.detach()")
    return g.emit(f"{x.name}.detach()")


@operation(0.7)
def branch(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    test = g.rng.choice([f"{x.name}.shape[0] == 1", "self.training", f"{x.name}.shape[0] > 2"])
    return g.emit(
        f"{x.name} * 0.5",
        "if " + test + ":\n    {name} = {expression}\nelse:\n    {name} = " + f"{x.name} + 1.0",
    )


@operation(0.6)
def own_gradient(g: SourceBuilder) -> object:
    g.features.add("autograd.Function")
    return g.emit(f"ScaledGradient.apply({g.pick().name}, 0.5)")


@operation(0.6)
def checkpointed(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 1 and is_static(v.shape[-1]) and v.shape[-1] < 20)
    layer = g.attribute("fc", f"nn.Linear({x.shape[-1]}, {x.shape[-1]})")
    return g.emit(
        f"torch.utils.checkpoint.checkpoint(lambda t: F.gelu({layer}(t)), {x.name}, use_reentrant=False)"
    )


@operation(0.6)
def cast(g: SourceBuilder) -> object:
    x = g.pick()
    form = g.rng.choice(
        ["{x}.double().to({x}.dtype)", "{x}.to(torch.float64).sin()", "{x}.type_as({x})"]
    )
    return g.emit(form.format(x=x.name))


# ---- layers made of layers -----------------------------------------------------------------------


@operation(0.5)
def composite(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank == 3 and v.shape[2] in (4, 8, 16))
    d = x.shape[2]
    kind = g.rng.randrange(3)
    if kind == 0:
        layer = g.attribute("mha", f"nn.MultiheadAttention({d}, 2, batch_first=True)")
        return g.emit(f"{layer}({x.name}, {x.name}, {x.name}, need_weights=False)[0]")
    if kind == 1:
        layer = g.attribute(
            "enc", f"nn.TransformerEncoderLayer({d}, 2, {2 * d}, dropout=0.0, batch_first=True)"
        )
        return g.emit(f"{layer}({x.name})")
    return recurrent_layer(g)


@operation(1.5)
def recurrent_layer(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank == 3 and is_static(v.shape[2]))
    kind = g.rng.choice(["GRU", "LSTM", "RNN"])
    flags = [name for name in ("bidirectional", "batch_first") if g.rng.random() < 0.5]
    options = "".join(f", {name}=True" for name in flags)
    options += g.rng.choice(["", ", num_layers=2", ", bias=False"])
    layer = g.attribute("rnn", f"nn.{kind}({x.shape[2]}, 4{options})")
    operands = x.name
    if g.chance(0.3):  # from a state of its own
        rows = (2 if "bidirectional" in flags else 1) * (2 if "num_layers" in options else 1)
        batch = x.size(0 if "batch_first" in flags else 1)
        first = g.attribute("p", f"nn.Parameter(torch.randn({rows}, 1, 4))")
        state = g.emit(f"{first}.expand({rows}, {batch}, 4).contiguous()")
        operands += f", ({state.name}, {state.name} * 0.5)" if kind == "LSTM" else f", {state.name}"
    if g.rng.random() < 0.7:
        return g.emit(f"{layer}({operands})[0]")
    last = f"{layer}({operands})[1]"
    return g.emit(f"{last}[0]" if kind == "LSTM" else last)


@operation(0.6)
def recurrent_cell(g: SourceBuilder) -> object:
    """A cell, once or step by step."""
    x = g.pick(lambda v: v.is_float and v.rank in (2, 3) and is_static(v.shape[-1]))
    kind = g.rng.choice(["GRU", "LSTM", "RNN"])
    cell = g.attribute("cell", f"nn.{kind}Cell({x.shape[-1]}, 3, bias={g.chance(0.8)})")
    if x.rank == 2:
        return g.emit(f"{cell}({x.name})" + "[0]" * (kind == "LSTM"))
    if not is_static(x.shape[1]) or x.shape[1] > 6:
        raise Rejected
    h = "state[0]" if kind == "LSTM" else "state"
    g.statement(
        f"states, state = [], None\n"
        f"for t in range({x.shape[1]}):\n"
        f"    state = {cell}({x.name}[:, t], state)\n"
        f"    states.append({h})"
    )
    return g.emit("torch.stack(states, 1)")


@operation(1.2)
def losses(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 2)
    kind = g.rng.randrange(6)
    if kind == 0:
        y = g.pick(lambda v: v.is_float and v.shape == x.shape)
        form = g.rng.choice(["mse_loss", "smooth_l1_loss", "l1_loss", "huber_loss"])
        return g.emit(f"F.{form}({x.name}, {y.name} * 0.5)")
    if kind == 1:
        return g.emit(f"F.binary_cross_entropy_with_logits({x.name}, {x.name}.detach().sigmoid())")
    flat = f"{x.name}.flatten(0, -2)"
    target = f"{flat}.detach().roll(1, 0).argmax(-1)"
    options = g.rng.choice(
        ["", ", reduction='sum'", ", ignore_index=0", ", label_smoothing=0.1", ", reduction='none'"]
    )
    if kind == 2:
        return g.emit(f"F.nll_loss(F.log_softmax({flat}, -1), {target})")
    return g.emit(f"F.cross_entropy({flat}, {target}{options}) * 0.1")
