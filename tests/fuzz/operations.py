"""What a generated module may do: one function per kind of line, chosen by weight."""

from __future__ import annotations

from collections.abc import Callable

from .source import Rejected, SourceBuilder, Var, is_static

Operation = Callable[[SourceBuilder], object]

OPERATIONS: list[tuple[float, Operation]] = []


def operation(weight: float = 1.0) -> Callable[[Operation], Operation]:
    """Adds a function to the table."""

    def add(function: Operation) -> Operation:
        OPERATIONS.append((weight, function))
        return function

    return add


def last_static(rank: int = 1, most: int = 28) -> Callable[[Var], bool]:
    """Float tensors of at least `rank` whose last size is fixed."""
    return lambda v: (
        v.is_float and v.rank >= rank and is_static(v.shape[-1]) and v.shape[-1] <= most
    )


def of_rank(*ranks: int) -> Callable[[Var], bool]:
    return lambda v: v.is_float and v.rank in ranks


def some_dim(g: SourceBuilder, x: Var) -> int:
    """A dim of `x`, sometimes counted from the end."""
    if x.rank == 0:
        raise Rejected
    dim = g.rng.randrange(x.rank)
    return dim if g.chance(0.5) else dim - x.rank


def some_dims(g: SourceBuilder, x: Var) -> str:
    """A dim or several, as source text."""
    if x.rank == 0:
        raise Rejected
    if g.chance(0.5):
        return str(some_dim(g, x))
    dims = g.rng.sample(range(x.rank), g.rng.randint(1, x.rank))
    return str([d if g.chance(0.5) else d - x.rank for d in dims])


def width(g: SourceBuilder) -> int:
    return g.rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16])


# ---- layers --------------------------------------------------------------------------------------


@operation(4)
def linear(g: SourceBuilder) -> object:
    x = g.pick(last_static())
    if g.chance(0.2):
        for name in [n for n, _ in g.module.named_children() if g.has_layer(n, "fc")]:
            layer = getattr(g.module, name)
            if layer.in_features == x.shape[-1]:
                g.features.add("tied")
                return g.emit(f"self.{name}({x.name})")
            if layer.out_features == x.shape[-1]:
                g.features.add("tied")
                other = g.attribute(
                    "fc", f"nn.Linear({layer.out_features}, {layer.out_features}, bias=False)"
                )
                if layer.in_features == layer.out_features and g.chance(0.5):
                    g.setup(f"{other}.weight = self.{name}.weight")
                    return g.emit(f"{other}({x.name})")
                return g.emit(f"F.linear({x.name}, self.{name}.weight.t())")
    bias = g.chance(0.7)
    layer = g.attribute("fc", f"nn.Linear({x.shape[-1]}, {width(g)}, bias={bias})")
    if g.chance(0.12):
        g.setup(f"{layer}.{'bias' if bias and g.chance(0.5) else 'weight'}.requires_grad_(False)")
        g.features.add("frozen")
    return g.emit(f"{layer}({x.name})")


@operation(2)
def norm(g: SourceBuilder) -> object:
    x = g.pick(last_static())
    d = x.shape[-1]
    kind = g.rng.randrange(5)
    if kind == 0:
        layer = g.attribute("norm", f"nn.LayerNorm({d}, elementwise_affine={g.chance(0.7)})")
        return g.emit(f"{layer}({x.name})")
    if kind == 1 and x.rank >= 3 and is_static(x.shape[-2]):
        layer = g.attribute("norm", f"nn.LayerNorm([{x.shape[-2]}, {d}])")
        return g.emit(f"{layer}({x.name})")
    if kind == 2:
        layer = g.attribute(
            "norm", f"nn.RMSNorm({d}, eps=1e-5, elementwise_affine={g.chance(0.7)})"
        )
        return g.emit(f"{layer}({x.name})")
    if kind == 3:
        scale = g.attribute("scale", f"nn.Parameter(torch.rand({d}) + 0.5)")
        return g.emit(
            f"{scale} * ({x.name} * torch.rsqrt({x.name}.pow(2).mean(-1, keepdim=True) + 1e-5))"
        )
    return g.emit(f"F.layer_norm({x.name}, ({d},))")


_UNARY = [
    "F.gelu({})", "F.gelu({}, approximate='tanh')", "F.relu({})", "F.silu({})", "{}.tanh()",
    "{}.sigmoid()", "{}.tanh().exp()", "{}.sin()", "{}.cos()", "{}.abs()", "-{}", "{}.erf()",
    "F.softplus({})", "F.leaky_relu({}, 0.1)", "F.elu({})", "F.hardtanh({})", "F.hardswish({})",
    "F.mish({})", "F.logsigmoid({})", "({}.abs() + 1).sqrt()", "({}.abs() + 1).rsqrt()",
    "{}.abs().log1p()", "({}.abs() + 2).reciprocal()", "{}.square()", "{}.sign()", "{}.floor()",
    "{}.round()", "({}.abs() + 0.5).log()", "F.relu6({})", "F.selu({})", "{}.expm1()", "{}.atan()",
    "({}.abs() + 1).log2()", "F.hardsigmoid({})", "F.softsign({})", "{}.sinh()", "{}.frac()",
    "F.glu({}, dim=-1)", "F.celu({})", "F.tanhshrink({})", "F.softshrink({})", "F.threshold({}, 0.1, 0.5)",
]  # fmt: skip


@operation(5)
def unary(g: SourceBuilder) -> object:
    x = g.pick()
    return g.emit(g.rng.choice(_UNARY[:8] if g.chance(0.4) else _UNARY).format(x.name))


@operation(2)
def softmax(g: SourceBuilder) -> object:
    x = g.pick()
    dim = some_dim(g, x)
    form = g.rng.choice(
        ["F.softmax({x}, dim={d})", "F.log_softmax({x}, dim={d})", "{x}.softmax({d})",
         "F.softmin({x}, dim={d})", "{x}.logsumexp({d})"]
    )  # fmt: skip
    return g.emit(form.format(x=x.name, d=dim))


@operation(1)
def dropout_nothing(g: SourceBuilder) -> object:
    x = g.pick()
    if g.chance(0.5):
        return g.emit(f"F.dropout({x.name}, 0.0, self.training)")
    return g.emit(f"{g.attribute('drop', 'nn.Dropout(0.0)')}({x.name})")


@operation(0)
def dropout(g: SourceBuilder) -> object:
    x = g.pick()
    g.features.add("dropout")
    return g.emit(f"F.dropout({x.name}, {g.rng.choice(['0.1', '0.3', '0.5'])}, self.training)")


# ---- products ------------------------------------------------------------------------------------


@operation(3)
def matmul(g: SourceBuilder) -> object:
    x = g.pick(last_static())
    d, o = x.shape[-1], width(g)
    forms = [
        ("torch.matmul({x}, {w})", f"torch.randn({d}, {o}) * 0.3"),
        ("{x} @ {w}.t()", f"torch.randn({o}, {d}) * 0.3"),
        ("{x} @ {w}", f"torch.randn({d}) * 0.3"),
    ]
    if x.rank == 2:
        forms.append((f"torch.addmm(torch.ones({o}, dtype={x.name}.dtype), {{x}}, {{w}}, beta=0.5)",
                      f"torch.randn({d}, {o}) * 0.3"))  # fmt: skip
        forms.append(("{w} @ {x}.t()", f"torch.randn({o}, {d}) * 0.3"))
    if x.rank == 3:
        forms.append(("torch.einsum('bij,jk->bik', {x}, {w})", f"torch.randn({d}, {o}) * 0.3"))
        forms.append(("{w} @ {x}.transpose(1, 2)", f"torch.randn({o}, {d}) * 0.3"))
        forms.append(("torch.matmul({x}, {w})", f"torch.randn(1, {d}, {o}) * 0.3"))
    form, value = g.rng.choice(forms)
    weight = g.attribute("w", f"nn.Parameter({value})")
    return g.emit(form.format(x=x.name, w=weight))


@operation(2)
def self_product(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 2 and v.rank <= 4)
    forms = [
        "({x} @ {x}.transpose(-1, -2)) * 0.1",
        "({x}.transpose(-1, -2) @ {x}) * 0.1",
        "{x} @ {x}.mT * 0.1",
    ]
    if x.rank == 3:
        forms += ["torch.bmm({x}, {x}.transpose(1, 2)) * 0.1",
                  "torch.einsum('bij,bkj->bik', {x}, {x}) * 0.1"]  # fmt: skip
    return g.emit(g.rng.choice(forms).format(x=x.name))


@operation(2)
def two_product(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 2)
    y = g.pick(lambda v: v.is_float and v.rank >= 2 and v.shape[-2] == x.shape[-1])
    return g.emit(f"({x.name} @ {y.name}) * 0.2")


@operation(2.5)
def attention(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank == 3 and is_static(v.shape[2]) and v.shape[2] <= 28)
    d = x.shape[2]
    heads = g.rng.choice([h for h in (1, 2, 4) if d % h == 0])
    b, t = x.size(0), x.size(1)
    qkv = g.attribute("fc", f"nn.Linear({d}, {3 * d})")
    q, k, v = (f"q{g.fresh('')}", f"k{g.fresh('')}", f"m{g.fresh('')}")
    if g.chance(0.5):
        g.statement(f"{q}, {k}, {v} = {qkv}({x.name}).split({d}, dim=2)")
        g.statement(
            f"{q}, {k}, {v} = (t.view({b}, {t}, {heads}, {d // heads}).transpose(1, 2) "
            f"for t in ({q}, {k}, {v}))"
        )
    else:
        g.statement(
            f"{q}, {k}, {v} = {qkv}({x.name}).view({b}, {t}, 3, {heads}, {d // heads})"
            ".permute(2, 0, 3, 1, 4).unbind(0)"
        )
    return _attend(g, x, q, k, v)


def _attend(g: SourceBuilder, x: Var, q: str, k: str, v: str) -> Var:
    t = x.size(1)
    b = x.size(0)
    masks = {
        "causal": f"torch.ones({t}, {t}, dtype=torch.bool, device={x.name}.device).tril()",
        "padding": f"({x.name}.detach().sum(2) > -2.0).view({b}, 1, 1, {t}) "
        f"| torch.eye({t}, dtype=torch.bool)",
        "none": "None",
    }
    mask = f"mask{g.fresh('')}"
    kind = g.rng.choice(list(masks))
    g.statement(f"{mask} = {masks[kind]}")
    if g.chance(0.5):
        how = f"attn_mask={mask}" if kind == "none" or g.chance(0.6) else "is_causal=True"
        if kind != "none" and g.chance(0.3):
            how = f"attn_mask=torch.where({mask}, 0.0, -30.0).to({q}.dtype)"
        if g.chance(0.5):  # drops nothing, but goes the way of dropout
            how += ", dropout_p=1e-12 if self.training else 0.0"
        y = f"F.scaled_dot_product_attention({q}, {k}, {v}, {how})"
    else:
        s = f"s{g.fresh('')}"
        g.statement(f"{s} = {q} @ {k}.transpose(-2, -1) / math.sqrt({q}.shape[-1])")
        if kind != "none":
            fill = g.rng.choice(["float('-inf')", "-1e4", f"torch.finfo({s}.dtype).min"])
            g.statement(f"{s} = {s}.masked_fill(~{mask}, {fill})")
        y = f"({s}.softmax(-1) @ {v})"
    return g.emit(f"{y}.transpose(1, 2).reshape({b}, {t}, {x.shape[2]})")


# ---- convolution nets ----------------------------------------------------------------------------


def _spatial(rank: int) -> Callable[[Var], bool]:
    return lambda v: (
        v.is_float and v.rank == rank and is_static(v.shape[1]) and v.shape[1] <= 16
        and all(is_static(s) for s in v.shape[2:])
    )  # fmt: skip


@operation(2.5)
def convolution(g: SourceBuilder) -> object:
    rank = g.rng.choice([3, 4])
    x = g.pick(_spatial(rank))
    c, n = x.shape[1], rank - 2
    kernel = g.rng.choice([1, 2, 3])
    groups = g.rng.choice([k for k in (1, 1, 2, c) if c % k == 0])
    out = groups * g.rng.choice([1, 2, 3])
    stride, padding, dilation = (
        g.rng.choice([1, 1, 2]),
        g.rng.choice([0, 1]),
        g.rng.choice([1, 1, 2]),
    )
    tail = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    kind = "ConvTranspose" if g.chance(0.1) else "Conv"
    layer = g.attribute(
        "conv", f"nn.{kind}{n}d({c}, {out}, {kernel}, {tail}, bias={g.chance(0.6)})"
    )
    if g.chance(0.15) and rank == 4:
        return g.emit(f"{layer}({x.name}.to(memory_format=torch.channels_last))")
    return g.emit(f"{layer}({x.name})")


@operation(2)
def batch_norm(g: SourceBuilder) -> object:
    x = g.pick(
        lambda v: v.is_float and 2 <= v.rank <= 4 and is_static(v.shape[1]) and v.shape[1] < 29
    )
    c = x.shape[1]
    if g.chance(0.25):
        groups = g.rng.choice([k for k in (1, 2, c) if c % k == 0])
        return g.emit(f"{g.attribute('norm', f'nn.GroupNorm({groups}, {c})')}({x.name})")
    if g.chance(0.1) and x.rank >= 3:
        return g.emit(f"F.instance_norm({x.name})")
    kind = "BatchNorm2d" if x.rank == 4 else "BatchNorm1d"
    momentum = g.rng.choice(["0.1", "0.1", "0.3", "None"])
    if momentum == "None":
        g.features.add("graph break")  # a cumulative average reads its counter
    extra = ", track_running_stats=False" if g.chance(0.1) else ""
    layer = g.attribute(
        "norm", f"nn.{kind}({c}, momentum={momentum}, affine={g.chance(0.8)}{extra})"
    )
    return g.emit(f"{layer}({x.name})")


@operation(1.5)
def pool(g: SourceBuilder) -> object:
    rank = g.rng.choice([3, 4])
    x = g.pick(_spatial(rank))
    n = rank - 2
    forms = [
        f"F.max_pool{n}d({x.name}, 2)", f"F.avg_pool{n}d({x.name}, 2)",
        f"F.max_pool{n}d({x.name}, 3, stride=2, padding=1)",
        f"F.avg_pool{n}d({x.name}, 3, stride=1, padding=1, count_include_pad=False)",
        f"F.adaptive_avg_pool{n}d({x.name}, 1)", f"F.adaptive_avg_pool{n}d({x.name}, 2)",
        f"F.adaptive_max_pool{n}d({x.name}, 2)",
        f"F.interpolate({x.name}, scale_factor=2, mode='nearest')",
    ]  # fmt: skip
    return g.emit(g.rng.choice(forms))


# ---- shapes --------------------------------------------------------------------------------------


@operation(3)
def reshape(g: SourceBuilder) -> object:
    x = g.pick()
    kind = g.rng.randrange(6)
    if kind == 0 and x.rank >= 2:
        start = g.rng.randrange(x.rank - 1)
        return g.emit(f"{x.name}.flatten({start}, {g.rng.randrange(start + 1, x.rank)})")
    if kind == 1 and x.rank >= 2:
        return g.emit(f"{x.name}.reshape({x.size(0)}, -1)")
    if kind == 2 and x.rank:
        dims = [i for i, s in enumerate(x.shape) if is_static(s) and s > 1]
        if dims:
            dim = g.rng.choice(dims)
            divisors = [k for k in range(1, x.shape[dim] + 1) if x.shape[dim] % k == 0]
            first = g.rng.choice(divisors)
            return g.emit(f"{x.name}.unflatten({dim}, ({first}, {x.shape[dim] // first}))")
    if kind == 3:
        return g.emit(f"{x.name}.unsqueeze({g.rng.randrange(-1, x.rank + 1)})")
    if kind == 4 and 1 in x.shape:
        return g.emit(f"{x.name}.squeeze({x.shape.index(1)})")
    if kind == 5:
        return g.emit(f"{x.name}.reshape(-1)" if g.chance(0.5) else f"{x.name}[None]")
    raise Rejected


@operation(3)
def transpose(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 2)
    if g.chance(0.4):
        order = g.rng.sample(range(x.rank), x.rank)
        y = g.emit(f"{x.name}.permute({', '.join(map(str, order))})")
    else:
        y = g.emit(f"{x.name}.transpose({some_dim(g, x)}, {some_dim(g, x)})")
    return g.emit(f"{y.name}.contiguous()") if g.chance(0.25) else y


@operation(3)
def slices(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    dim = g.rng.randrange(x.rank)
    lead = ":, " * dim
    size = x.shape[dim]
    forms = [f"{x.name}[{lead}0]", f"{x.name}[{lead}-1]", f"{x.name}[..., None]",
             f"{x.name}[{lead}:1]", f"{x.name}.flip({dim})", f"{x.name}[..., :1]",
             f"{x.name}.roll(1, {dim})", f"{x.name}[{lead}::2]"]  # fmt: skip
    if is_static(size) and size > 2:
        a = g.rng.randrange(size - 1)
        forms += [f"{x.name}[{lead}{a}:{g.rng.randint(a + 1, size)}]", f"{x.name}[{lead}1:]",
                  f"{x.name}[{lead}:-1]", f"{x.name}.narrow({dim}, {a}, {size - a - 1})",
                  f"{x.name}.select({dim}, {a})", f"{x.name}[{lead}1::3]"]  # fmt: skip
    return g.emit(g.rng.choice(forms))


@operation(2)
def split(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and any(is_static(s) and 2 <= s <= 8 for s in v.shape))
    dims = [i for i, s in enumerate(x.shape) if is_static(s) and 2 <= s <= 8]
    dim = g.rng.choice(dims)
    size = x.shape[dim]
    kind = g.rng.randrange(4)
    if kind == 0:
        first = g.rng.randint(1, size - 1)
        return g.emit_many(f"{x.name}.split([{first}, {size - first}], {dim})", 2)
    if kind == 1:
        return g.emit_many(f"{x.name}.chunk(2, {dim})", 2)
    if kind == 2:
        return g.emit_many(f"{x.name}.unbind({dim})", size)
    return g.emit_many(f"torch.tensor_split({x.name}, 2, dim={dim})", 2)


@operation(3)
def join(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    same = [v for v in g.variables if v.shape == x.shape and v.dtype == x.dtype]
    parts = [g.rng.choice(same).name for _ in range(g.rng.randint(1, 3))]
    listing = f"[{', '.join([x.name, *parts])}]"
    if g.chance(0.4):
        return g.emit(f"torch.stack({listing}, dim={g.rng.randrange(-1, x.rank + 1)})")
    return g.emit(f"torch.cat({listing}, dim={some_dim(g, x)})")


@operation(1.5)
def expand(g: SourceBuilder) -> object:
    x = g.pick()
    kind = g.rng.randrange(5)
    count = g.rng.choice([1, 2, 3])
    if kind == 0:
        return g.emit(f"{x.name}.expand({count}, {'-1, ' * x.rank})".replace(", )", ")"))
    if kind == 1 and x.rank:
        return g.emit(f"{x.name}.repeat({', '.join(str(g.rng.choice([1, 2])) for _ in x.shape)})")
    if kind == 2 and x.rank:
        return g.emit(f"{x.name}.repeat_interleave(2, dim={some_dim(g, x)})")
    if kind == 3:
        return g.emit(f"{x.name}.unsqueeze(-1).expand({'-1, ' * x.rank}{count})")
    return g.emit(f"{x.name}.tile(2)" if g.chance(0.3) else f"{x.name}.clone()")


@operation(1)
def pad(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 2)
    sides = [str(g.rng.choice([0, 1, 2, 1])) for _ in range(2 * g.rng.randint(1, 2))]
    if g.chance(0.2) and x.rank == 3:
        mode = g.rng.choice(["reflect", "replicate"])
        return g.emit(f"F.pad({x.name}, (1, 1), mode='{mode}')")
    if g.chance(0.2):
        sides = [str(-int(side)) if g.chance(0.5) else side for side in sides]
    return g.emit(f"F.pad({x.name}, ({', '.join(sides)}), value={g.scalar()})")


# ---- arithmetic ----------------------------------------------------------------------------------


@operation(4)
def with_scalar(g: SourceBuilder) -> object:
    x = g.pick()
    forms = ["{x} * {s}", "{x} + {s}", "{s} - {x}", "{x} / 2", "{s} / ({x}.abs() + 1)",
             "{x} * 0.5 + 1.0", "({x} + 1) * ({x} - 1)", "{x} / {x}.shape[0]",
             "{x} / math.sqrt({x}.shape[-1])", "torch.add({x}, {x}, alpha=0.5)",
             "{x}.remainder(1.5)", "torch.pow(2.0, {x}.tanh())", "{x} ** 2", "{x} ** 3",
             "({x}.abs() + 0.1) ** 0.5", "{x}.pow(-1).clamp(-5, 5)", "{x}.clamp(-0.5, 0.5)",
             "{x}.clamp(min=0)", "{x}.clamp(max=0.3)", "{x}.clamp_min(-0.2)", "{x}.pow(1)",
             "torch.rsub({x}, 1)", "{x} // 0.7", "{x}.nan_to_num()", "({x}.abs() + 0.2).pow(1.7)"]  # fmt: skip
    return g.emit(g.rng.choice(forms).format(x=x.name, s=g.scalar()))


@operation(5)
def with_tensor(g: SourceBuilder) -> object:
    x = g.pick()

    def fits(y: Var) -> bool:
        return y.is_float and all(
            a == b or a == 1 or b == 1
            for a, b in zip(reversed(x.shape), reversed(y.shape), strict=False)
        )

    y = g.pick(fits)
    if g.chance(0.4):
        y = g.rng.choice([v for v in g.variables if fits(v)])
    forms = ["{x} + {y}", "{x} * {y}", "{x} - {y}", "{x} / ({y}.abs() + 1)", "{y} - {x}",
             "torch.maximum({x}, {y})", "torch.minimum({x}, {y})", "torch.add({x}, {y}, alpha=-0.5)",
             "torch.addcmul({x}, {x}, {y}, value=0.5)", "torch.lerp({x}, {y}, 0.3)",
             "torch.where({x} > {y}, {x}, {y} * 0.5)", "torch.addcdiv({x}, {y}, {y}.square() + 1)",
             "torch.atan2({x}, {y}.abs() + 1)", "({x}.abs() + 0.5) ** {y}.tanh()",
             "torch.hypot({x}, {y} + 3)", "{x}.clamp(max={y})", "torch.lerp({x}, {y}, {x}.sigmoid())"]  # fmt: skip
    return g.emit(g.rng.choice(forms[:5] if g.chance(0.5) else forms).format(x=x.name, y=y.name))


@operation(3)
def parameter(g: SourceBuilder) -> object:
    x = g.pick()
    sizes = [s if is_static(s) and g.chance(0.7) else 1 for s in x.shape]
    sizes = sizes[g.rng.randint(0, len(sizes)) :]
    grad = "" if g.chance(0.85) else ", requires_grad=False"
    p = g.attribute("p", f"nn.Parameter(torch.randn({sizes}){grad})")
    form = g.rng.choice(
        ["{x} + {p}", "{x} * {p}", "{p} - {x}", "{x} * {p} + {p}", "torch.addcmul({p}, {x}, {p})"]
    )
    return g.emit(form.format(x=x.name, p=p))


@operation(2)
def select(g: SourceBuilder) -> object:
    x = g.pick()
    condition = g.rng.choice(["{x} > 0.1", "{x} <= 0", "{x}.detach().abs() < 0.7", "({x} > -1) & ({x} < 1)",
                              "~({x} >= 0.2)", "torch.ones_like({x}, dtype=torch.bool).tril()"])  # fmt: skip
    forms = ["torch.where({c}, {x}, 0.0)", "torch.where({c}, {x}, -{x})", "{x}.masked_fill({c}, 0.5)",
             "({c}).to({x}.dtype) * {x}", "torch.where({c}, 1.0, {x})",
             "torch.where({c}, {x}, torch.zeros_like({x}))", "{x} * ({c})"]  # fmt: skip
    text = g.rng.choice(forms).format(x="{x}", c=condition)
    return g.emit(text.format(x=x.name))


@operation(4)
def reduce(g: SourceBuilder) -> object:
    x = g.pick()
    name = g.rng.choice(
        ["sum", "mean", "amax", "amin", "var", "std", "norm", "sum", "mean", "logsumexp"]
    )
    if x.rank == 0:
        raise Rejected
    if g.chance(0.12) and name in ("sum", "mean", "max", "min"):
        return g.emit(f"{x.name}.{name}()")
    keep = ", keepdim=True" if g.chance(0.5) else ""
    extra = (
        g.rng.choice(["", ", unbiased=False", ", correction=0"]) if name in ("var", "std") else ""
    )
    if name == "norm":
        return g.emit(f"({x.name} + 0.01).norm(dim={some_dim(g, x)}{keep})")
    return g.emit(f"{x.name}.{name}(dim={some_dims(g, x)}{extra}{keep})")


@operation(1)
def order(g: SourceBuilder) -> object:
    x = g.pick()
    dim = some_dim(g, x)
    kind = g.rng.randrange(6)
    if kind == 0:
        return g.emit(f"{x.name}.argmax({dim})")
    if kind == 1:
        return g.emit_many(f"{x.name}.max({dim})", 2)
    if kind == 2 and is_static(x.shape[dim]):
        return g.emit_many(f"{x.name}.topk({g.rng.randint(1, x.shape[dim])}, dim={dim})", 2)
    if kind == 3:
        return g.emit_many(f"{x.name}.sort(dim={dim}, descending={g.chance(0.5)}, stable=True)", 2)
    if kind == 4:
        return g.emit(f"({x.name} > 0).sum({dim})")
    return g.emit(f"({x.name} > 0).{g.rng.choice(['any', 'all'])}(dim={dim})")


@operation(1.5)
def scan(g: SourceBuilder) -> object:
    x = g.pick()
    dim = some_dim(g, x)
    form = g.rng.choice(["{x}.cumsum({d}) * 0.2", "torch.logcumsumexp({x}, dim={d})",
                         "{x}.tanh().cumprod({d})", "{x}.cummax({d}).values"])  # fmt: skip
    return g.emit(form.format(x=x.name, d=dim))
