"""Written .onnx files are valid, read back exactly, and compute the same in stock onnxruntime."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from ortmodule_py import _C


def save(text, path, infer=True, **options):
    """Writes the graph, checks the file and that it reads back as it was."""
    graph = _C.parse_graph(text)
    if infer:
        graph.infer()
    assert graph.verify() is None
    _C.save_onnx(graph, str(path), **options)
    onnx.checker.check_model(str(path), full_check=True)
    assert _C.load_onnx(str(path)).print() == graph.print()
    return onnx.load(str(path), load_external_data=False)


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(text, feeds, path, **options):
    """Outputs of stock onnxruntime for torch tensors."""
    save(text, path, **options)
    feeds = {name: tensor.detach().numpy() for name, tensor in feeds.items()}
    return [torch.from_numpy(np.array(y)) for y in session(path).run(None, feeds)]


def close(actual, *expected, atol=1e-5):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, atol=atol, rtol=1e-5)


def test_mlp(path):
    text = """mlp (x: f32[n,8], w1: param grad f32[16,8], b1: param grad f32[16],
                   w2: param grad f32[4,16]) => (y) {
        h = Gemm<transB=1> (x, w1, b1)
        a = Gelu<approximate="tanh"> (h)
        s = Silu (a)
        z = Gemm<transB=1, alpha=0.5> (s, w2)
        y = Add (z, 0.1)
    }"""
    x, w1, b1, w2 = torch.randn(5, 8), torch.randn(16, 8), torch.randn(16), torch.randn(4, 16)
    y = 0.5 * F.silu(F.gelu(x @ w1.T + b1, approximate="tanh")) @ w2.T + 0.1
    close(run(text, {"x": x, "w1": w1, "b1": b1, "w2": w2}, path), y)


def test_parameters_as_initializers(path):
    text = """g (x: f32[n,512], w: param grad f32[512,512], b: buffer f32[512]) => (y) {
        h = MatMul (x, w)
        y = Add (h, b)
    }"""
    x, w, b = torch.randn(3, 512), torch.randn(512, 512), torch.randn(512)
    held = {"w": w.numpy(), "b": b.numpy()}
    close(run(text, {"x": x}, path, initializers=held), x @ w + b, atol=1e-3)
    assert not path.with_name("model.onnx.data").exists()
    save(text, path, initializers=held, external_threshold=1 << 20)
    assert path.stat().st_size < 10_000
    assert path.with_name("model.onnx.data").stat().st_size >= w.nbytes + b.nbytes
    result = session(path).run(None, {"x": x.numpy()})[0]
    close([torch.from_numpy(result)], x @ w + b, atol=1e-3)
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    with pytest.raises(Exception, match="must have 2048 bytes, but found 8"):
        save(text, path, initializers={"b": np.zeros(1)})


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_normalizations(path, dtype):
    text = """norms (x: DT[b,s,6], r: DT[b,s,6], g: DT[6], h: DT[6]) => (a, m, i, c, d, e, t) {
        a, m, i = LayerNormalization<axis=-1, epsilon=0.001> (x, g, h)
        c, _, _ = LayerNormalization<axis=1> (x)
        d, _ = SimplifiedLayerNormalization<axis=-1> (x, g)
        e, _, _, t = SkipLayerNormalization<axis=2> (x, r, g, h)
    }""".replace("DT", dtype)
    kind = {"f32": torch.float32, "f64": torch.float64}[dtype]
    x, r, g, h = (torch.randn(*s, dtype=kind) for s in [(2, 3, 6), (2, 3, 6), (6,), (6,)])
    feeds = {"x": x, "r": r, "g": g, "h": h}
    expected = [
        F.layer_norm(x, (6,), g, h, 0.001),
        x.mean(-1, keepdim=True),
        (x.var(-1, unbiased=False, keepdim=True) + 0.001).rsqrt(),
        F.layer_norm(x, (3, 6)),
        F.rms_norm(x, (6,), g, 1e-5),
        F.layer_norm(x + r, (6,), g, h),
        x + r,
    ]
    close(run(text, feeds, path), *expected)


def test_attention_with_dynamic_sizes(path):
    text = """attention (x: f32[batch,seq,12], w: param grad f32[12,36], keep: bool[batch,seq])
            => (y) {
        qkv = MatMul (x, w)
        heads = Reshape<shape=[batch,seq,3,2,6]> (qkv)
        q5, k5, v5 = Split<axis=2, sizes=[1,1,1]> (heads)
        q4 = Reshape<shape=[batch,seq,2,6]> (q5)
        k4 = Reshape<shape=[batch,seq,2,6]> (k5)
        v4 = Squeeze<axes=[2]> (v5)
        q = Transpose<perm=[0,2,1,3]> (q4)
        k = Transpose<perm=[0,2,1,3]> (k4)
        v = Transpose<perm=[0,2,1,3]> (v4)
        scores = FusedMatMul<alpha=SCALE, transB=1> (q, k)
        rows = Range<start=0, limit=seq, delta=1, dtype=i64> ()
        row = Unsqueeze<axes=[1]> (rows)
        column = Unsqueeze<axes=[0]> (rows)
        causal = GreaterOrEqual (row, column)
        mask = Unsqueeze<axes=[1,2]> (keep)
        allowed = And (causal, mask)
        masked = Where (allowed, scores, -inf)
        p = Softmax<axis=-1> (masked)
        o = MatMul (p, v)
        t = Transpose<perm=[0,2,1,3]> (o)
        y = Reshape<shape=[batch*seq,12]> (t)
    }""".replace("SCALE", repr(1 / math.sqrt(6)))
    w = torch.randn(12, 36)
    for batch, seq in [(2, 5), (3, 1), (1, 7)]:
        x = torch.randn(batch, seq, 12)
        keep = torch.rand(batch, seq) > 0.3
        keep[:, 0] = True
        q, k, v = (x @ w).view(batch, seq, 3, 2, 6).permute(2, 0, 3, 1, 4)
        allowed = torch.ones(seq, seq, dtype=torch.bool).tril() & keep[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        y = y.transpose(1, 2).reshape(batch * seq, 12)
        close(run(text, {"x": x, "w": w, "keep": keep}, path), y)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_attention_with_dropout_is_spelled_out(path, kind, dtype):
    """With a ratio that drops nothing; the first row of the masks sees nothing."""
    mask = {"bool": ", mask: bool[batch,1,seq,keys]", "float": f", mask: {dtype}[seq,keys]"}
    text = f"""attention (q: {dtype}[batch,3,seq,8], k: {dtype}[batch,3,keys,8],
                          v: {dtype}[batch,3,keys,4]{mask.get(kind, "")}) => (y) {{
        y = ScaledDotProductAttention<scale=0.3, is_causal={int(kind == "causal")}, ratio=1e-12,
            rng=0> (q, k, v{", mask" if kind in mask else ""})
    }}"""
    torch_dtype = {"f32": torch.float32, "f16": torch.float16}[dtype]
    for batch, seq, keys in [(2, 5, 7), (1, 1, 3)]:
        q, k, v = (
            torch.randn(batch, 3, n, w).to(torch_dtype) for n, w in ((seq, 8), (keys, 8), (keys, 4))
        )
        feeds = {"q": q, "k": k, "v": v}
        if kind == "bool":
            feeds["mask"] = torch.rand(batch, 1, seq, keys) > 0.3
            feeds["mask"][:, :, 0] = False
        if kind == "float":
            feeds["mask"] = torch.randn(seq, keys).to(torch_dtype)
        y = F.scaled_dot_product_attention(
            q, k, v, feeds.get("mask"), is_causal=kind == "causal", scale=0.3
        )
        close(run(text, feeds, path), y, atol=1e-5 if dtype == "f32" else 2e-3)


SIZES = """g (x: f32[2*n,m], z: f32[m,k]) => (a, b, c, d, e, f, h, i) {
    a: f32[n,2,m] = Reshape<shape=[n,2,m]> (x)
    b: f32[max(n,((m)%(4)) + 1) - ((n)//(2)),m] =
        Slice<axis=0, start=((n)//(2)), end=max(n,((m)%(4)) + 1), step=1> (x)
    c: f32[m,n*k - 1] = ConstantOfShape<value=2.5, shape=[m,n*k - 1], dtype=f32> ()
    d: f32[2*n,m] = Mul (x, {n*m})
    e: f32[1 - ((-k)//(2))] = Range<start=1, limit=((-k)//(2)), delta=-1, dtype=f32> ()
    f: f32[n,m,k] = Expand<shape=[n,m,k]> (z)
    h: f32[2*n,2*m] = Concat<axis=1> (x, x)
    i: f32[m*k] = Reshape<shape=[m*k]> (z)
}"""


def test_sizes_as_data(path):
    for n, m, k in [(2, 3, 4), (5, 7, 3)]:
        x, z = torch.randn(2 * n, m), torch.randn(m, k)
        expected = [
            x.view(n, 2, m),
            x[n // 2 : max(n, m % 4 + 1)],
            torch.full((m, n * k - 1), 2.5),
            x * (n * m),
            torch.arange(1, (-k) // 2, -1, dtype=torch.float32),
            z.expand(n, m, k),
            torch.cat([x, x], 1),
            z.flatten(),
        ]
        close(run(SIZES, {"x": x, "z": z}, path, infer=False), *expected)


def test_tensors_filled_with_a_size(path):
    text = """g (x: f32[n,m]) => (a, b, c) {
        a = ConstantOfShape<value=n, shape=[2,m], dtype=i64> ()
        b = ConstantOfShape<value=n*m, shape=[n], dtype=f32> ()
        c = ConstantOfShape<value=m, shape=[], dtype=f64> ()
    }"""
    expected = [torch.full((2, 5), 3), torch.full((3,), 15.0), torch.tensor(5.0).double()]
    close(run(text, {"x": torch.randn(3, 5)}, path), *expected)


def test_moving_elements(path):
    text = """g (x: f32[4,n], i: i64[2,n], u: f32[2,n], h: f16[n]) => (a, b, c, d, e, m, f, k, q) {
        a = Pad<pads=[1,0,0,2], value=-1.5> (x)
        b = CumSum<axis=0, reverse=1> (x)
        c = Trilu<upper=0, k=-1> (x)
        d = GatherElements<axis=0> (x, i)
        e = ScatterElements<axis=0, reduction="add"> (x, i, u)
        m = ScatterElements<axis=0, reduction="max"> (x, i, u)
        f = Range<start=0.5, limit=3.0, delta=0.25, dtype=f16> ()
        k, _ = Split<axis=0, sizes=[1,3]> (x)
        q = BiasSoftmax<axis=-1> (x, x)
    }"""
    x, i, u = torch.randn(4, 5), torch.randint(0, 4, (2, 5)), torch.randn(2, 5)
    expected = [
        F.pad(x, (0, 2, 1, 0), value=-1.5),
        x.flip(0).cumsum(0).flip(0),
        x.tril(-1),
        x.gather(0, i),
        x.scatter_add(0, i, u),
        x.scatter_reduce(0, i, u, "amax"),
        torch.arange(0.5, 3.0, 0.25, dtype=torch.float16),
        x[:1],
        (2 * x).softmax(-1),
    ]
    close(run(text, {"x": x, "i": i, "u": u, "h": torch.zeros(5).half()}, path), *expected)


def test_empty_tensors(path):
    text = """g (x: f32[n,4]) => (y, z) {
        e: f32[n,0] = Slice<axis=1, start=2, end=2, step=1> (x)
        y: f32[2*n,2] = Reshape<shape=[2*n,2]> (x)
        z: f32[0,n] = Reshape<shape=[0,n]> (e)
    }"""
    x = torch.randn(0, 4)
    close(run(text, {"x": x}, path, infer=False), x.view(0, 2), torch.empty(0, 0))


def test_pointwise(path):
    text = """g (x: f32[n], y: f32[n]) => (OUTS) {
        LINES
    }"""
    rows = [
        ("Log1p (y)", torch.log1p, "y"),
        ("Expm1 (x)", torch.expm1, "x"),
        ("Rsqrt (y)", torch.rsqrt, "y"),
        ("LogSigmoid (x)", F.logsigmoid, "x"),
        ("Softplus<beta=2.0, threshold=20.0> (x)", lambda x: F.softplus(x, beta=2.0), "x"),
        ("Softplus (x)", F.softplus, "x"),
        ("HardSigmoid (x)", F.hardsigmoid, "x"),
        ("HardSwish (x)", F.hardswish, "x"),
        ("Mish (x)", F.mish, "x"),
        ("LeakyRelu<alpha=0.2> (x)", lambda x: F.leaky_relu(x, 0.2), "x"),
        ("Elu<alpha=0.7> (x)", lambda x: F.elu(x, 0.7), "x"),
        ("Clip<min=-0.5> (x)", lambda x: x.clamp(min=-0.5), "x"),
        ("Clip<max=0.5> (x)", lambda x: x.clamp(max=0.5), "x"),
        ("HardTanh<min=-0.5, max=1.0> (x)", lambda x: F.hardtanh(x, -0.5, 1.0), "x"),
        ("Trunc (x)", torch.trunc, "x"),
        ("Round (x)", torch.round, "x"),
        ("Gelu (x)", F.gelu, "x"),
        ('BiasGelu<approximate="none"> (x, y)', lambda x, y: F.gelu(x + y), "xy"),
        ("Mod<fmod=0> (x, y)", torch.remainder, "xy"),
        ("Mod<fmod=1> (x, y)", torch.fmod, "xy"),
        ("FloorDiv (x, y)", lambda x, y: torch.div(x, y, rounding_mode="floor"), "xy"),
        ("TruncDiv (x, y)", lambda x, y: torch.div(x, y, rounding_mode="trunc"), "xy"),
        ("Atan2 (x, y)", torch.atan2, "xy"),
        ("NotEqual (x, y)", torch.ne, "xy"),
        ("Pow (y, 1.7)", lambda y: y**1.7, "y"),
    ]
    values = {"x": torch.randn(40) * 3, "y": torch.rand(40) + 0.1}
    names = [f"v{i}" for i in range(len(rows))]
    lines = "\n".join(f"{name} = {row[0]}" for name, row in zip(names, rows, strict=True))
    text = text.replace("OUTS", ", ".join(names)).replace("LINES", lines)
    expected = [f(*(values[v] for v in operands)) for _, f, operands in rows]
    close(run(text, values, path), *expected)


def test_softplus_with_a_threshold(path):
    text = """g (x: f32[n]) => (a, b) {
        a = Softplus<beta=1.0, threshold=1.0> (x)
        b = Softplus<beta=2.0, threshold=3.0> (x)
    }"""
    x = torch.linspace(-30, 30, 121)
    close(run(text, {"x": x}, path), F.softplus(x, 1.0, 1.0), F.softplus(x, 2.0, 3.0), atol=1e-7)


def test_floor_division_of_floats(path):
    text = """g (a: T[n], b: T[n]) => (q, r) {
        q = FloorDiv (a, b)
        r = FloorDiv (a, 0.1)
    }"""
    a = torch.tensor([1.0, -1.0, 1.0, 7.5, -7.5, 6.0, 0.0, 5.0, -5.0, 0.0, -1.0, 0.3])
    b = torch.tensor([0.1, 0.1, -0.1, 2.0, 2.0, -2.0, 3.0, 0.0, 0.0, 0.0, 1e9, -0.1])
    for name, dtype in (("f32", torch.float32), ("f64", torch.float64), ("f16", torch.float16)):
        feeds = {"a": a.to(dtype), "b": b.to(dtype)}
        q, r = run(text.replace("T[", f"{name}["), feeds, path)
        assert torch.equal(r, torch.floor_divide(feeds["a"], 0.1)), name
        torch.testing.assert_close(
            q, torch.floor_divide(feeds["a"], feeds["b"]), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize(("name", "dtype"), [("f32", torch.float32), ("f64", torch.float64)])
def test_logarithm_and_power_of_nearly_one(path, name, dtype):
    text = """g (x: T[n]) => (a, b) {
        a = Log1p (x)
        b = Expm1 (x)
    }""".replace("T[", f"{name}[")
    small = 10.0 ** -torch.arange(0.5, 20.0, dtype=dtype)
    rest = torch.tensor([0.0, -1.0, 1.0, 80.0, -80.0, math.inf, -math.inf, math.nan], dtype=dtype)
    x = torch.cat([small, -small, rest])
    for mine, theirs in zip(run(text, {"x": x}, path), [x.log1p(), x.expm1()], strict=True):
        rtol = 1e-6 if dtype == torch.float32 else 1e-14
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=0, equal_nan=True)


def test_integer_division_and_casts(path):
    text = """g (a: i64[n], b: i64[n], x: f32[n]) => (q, r, c, d, e, f, h) {
        q = FloorDiv (a, b)
        r = Mod<fmod=0> (a, b)
        c = Cast<to=f32> (a)
        d = Cast<to=bool> (a)
        e = Cast<to=i32> (x)
        f = ReduceSum<axes=[0], keepdims=0> (c)
        h = Where (d, x, 7.5)
    }"""
    a = torch.tensor([7, -7, 7, -7, 0])
    b = torch.tensor([2, 2, -2, -2, 3])
    x = torch.tensor([1.9, -1.9, 0.5, 3.0, -0.2])
    expected = [a // b, a % b, a.float(), a.bool(), x.int(), a.float().sum()]
    close(run(text, {"a": a, "b": b, "x": x}, path), *expected, torch.where(a.bool(), x, 7.5))


def test_float16_scalars_are_applied_in_float32(path):
    text = """g (x: f16[n]) => (a, b, c) {
        a = Mul (x, 0.1)
        b = Less (x, 0.1)
        c = Add (x, 0.5)
    }"""
    x = torch.randn(500).half()
    x[0] = 0.1
    a, b, c = run(text, {"x": x}, path)
    assert torch.equal(a, x * 0.1)
    assert torch.equal(b, x.float() < 0.1)
    assert torch.equal(c, x + 0.5)


EMBEDDING = """g (table: param grad f32[10,4], ids: i64[b,s]) => (m, v, i, ids, m, 1.5:f32) {
    e: f32[b,s,4] = Gather<axis=0> (table, ids)
    m: f32[b,4] = ReduceMean<axes=[1], keepdims=0> (e)
    v: f32[b,s,1] = ReduceMax<axes=[-1], keepdims=1> (e)
    i: i64[b,s] = ArgMax<axis=2, keepdims=0> (e)
}"""


def test_embedding_reductions_and_literal_outputs(path):
    table, ids = torch.randn(10, 4), torch.randint(-10, 10, (2, 3))
    e = table[ids]
    expected = [e.mean(1), e.amax(-1, keepdim=True), e.argmax(2), ids, e.mean(1), torch.tensor(1.5)]
    close(run(EMBEDDING, {"table": table, "ids": ids}, path, infer=False), *expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(path, reduction, smoothing, weighted):
    text = """loss (x: f32[n,7,k], t: i64[n,k]WEIGHTS) => (l, z) {
        l, z = SoftmaxCrossEntropyLoss<ignore_index=-100, reduction="REDUCTION",
            label_smoothing=SMOOTHING> (x, t, WEIGHT)
    }"""
    text = text.replace("WEIGHTS", ", w: f32[7]" if weighted else "")
    text = text.replace("WEIGHT", "w" if weighted else "_")
    text = text.replace("REDUCTION", reduction).replace("SMOOTHING", str(smoothing))
    x, t, w = torch.randn(4, 7, 3), torch.randint(0, 7, (4, 3)), torch.rand(7)
    t[0, 0] = t[2, 1] = -100
    feeds = {"x": x, "t": t} | ({"w": w} if weighted else {})
    loss = F.cross_entropy(
        x, t, w if weighted else None, reduction=reduction, label_smoothing=smoothing
    )
    close(run(text, feeds, path), loss, x.logsumexp(1))


def test_convolution_batch_norm_and_pooling(path):
    text = """net (x: f32[b,3,9,9], w: param grad f32[4,3,3,3], c: param grad f32[4],
                   g: param grad f32[4], m: buffer f32[4], v: buffer f32[4]) => (p, i, k, a, z) {
        h: f32[b,4,9,9] = Conv<strides=[1,1], pads=[1,1,1,1], dilations=[1,1], group=1> (x, w, c)
        n: f32[b,4,9,9] = BatchNormalization<epsilon=1e-05> (h, g, _, m, v)
        r: f32[b,4,9,9] = Relu (n)
        p: f32[b,4,5,5], i: i64[b,4,5,5], k: u8[b,4,5,5] = MaxPool<kernel_shape=[3,3],
            strides=[2,2], pads=[1,1,1,1], dilations=[1,1], ceil_mode=0> (r)
        a: f32[b,4,5,5] = AveragePool<kernel_shape=[2,2], strides=[2,2], pads=[1,1,0,0],
            ceil_mode=0, count_include_pad=1> (r)
        z: f32[b,4] = ReduceMean<axes=[2,3], keepdims=0> (p)
    }"""
    x, w = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3)
    c, g, m, v = torch.randn(4), torch.randn(4), torch.randn(4), torch.rand(4)
    r = F.batch_norm(F.conv2d(x, w, c, padding=1), m, v, g).relu()
    p, i = F.max_pool2d(r, 3, 2, 1, return_indices=True)
    first = torch.arange(5) * 2 - 1  # of each window
    places = (i // 9 - first[:, None]) * 3 + i % 9 - first
    a = F.avg_pool2d(F.pad(r, (1, 0, 1, 0)), 2, 2)
    feeds = {"x": x, "w": w, "c": c, "g": g, "m": m, "v": v}
    close(run(text, feeds, path, infer=False), p, i, places.to(torch.uint8), a, p.mean((2, 3)))


def test_transposed_convolution(path):
    text = """deconv (x: f32[b,4,5,6], w: param grad f32[4,3,3,2], c: param grad f32[6]) => (y) {
        y: f32[b,6,9,8] = ConvTranspose<strides=[2,1], pads=[1,0,1,0], dilations=[1,2],
            output_padding=[0,0], group=2> (x, w, c)
    }"""
    x, w, c = torch.randn(2, 4, 5, 6), torch.randn(4, 3, 3, 2), torch.randn(6)
    want = F.conv_transpose2d(x, w, c, (2, 1), (1, 0), 0, 2, (1, 2))
    close(run(text, {"x": x, "w": w, "c": c}, path), want)


def test_sorting(path):
    text = """sorts (x: f32[b,7,3]) => (v, i, w, j, u) {
        v, i = TopK<axis=1, k=4, largest=1, sorted=1> (x)
        w, j = Sort<axis=1, descending=0, stable=0> (x)
        u, _ = TopK<axis=-1, k=b, largest=0, sorted=1> (x)
    }"""
    x = torch.randn(2, 7, 3)
    expected = [*x.topk(4, 1), *x.sort(1), x.topk(2, -1, largest=False)[0]]
    close(run(text, {"x": x}, path), *expected)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_group_norm(path, dtype):
    text = """norms (x: DT[b,6,4,3], g: DT[6], h: DT[6]) => (a, m, i, c, d) {
        a, m, i = GroupNormalization<num_groups=3, epsilon=0.001> (x, g, h)
        c, _, _ = GroupNormalization<num_groups=2> (x, g, h)
        d, _, _ = GroupNormalization<num_groups=6> (x)
    }""".replace("DT", dtype)
    kind = {"f32": torch.float32, "f64": torch.float64}[dtype]
    x, g, h = (torch.randn(*s, dtype=kind) for s in [(2, 6, 4, 3), (6,), (6,)])
    groups = x.reshape(2, 3, -1)
    expected = [
        F.group_norm(x, 3, g, h, 0.001),
        groups.mean(-1),
        (groups.var(-1, unbiased=False) + 0.001).rsqrt(),
        F.group_norm(x, 2, g, h),
        F.group_norm(x, 6),
    ]
    close(run(text, {"x": x, "g": g, "h": h}, path), *expected)


def test_training_batch_norm_updates_like_torch(path):
    text = """bn (x: f32[b,3,4], g: f32[3], c: f32[3], m: buffer f32[3], v: buffer f32[3])
            => (y, mutate 3: nm, mutate 4: nv) {
        y: f32[b,3,4], nm: f32[3], nv: f32[3], sm: f32[3], si: f32[3] =
            BatchNormInternal<epsilon=1e-05, momentum=0.1> (x, g, c, m, v)
    }"""
    x, g, c, m, v = torch.randn(5, 3, 4), *(torch.rand(3) for _ in range(4))
    new_m, new_v = m.clone(), v.clone()
    y = F.batch_norm(x, new_m, new_v, g, c, training=True)
    feeds = {"x": x, "g": g, "c": c, "m": m, "v": v}
    close(run(text, feeds, path, infer=False), y, new_m, new_v)


JOINT = """joint (x: f32[n,4], w: param grad f32[4,4], k: const f16[2], g: dy 0 f32[n,4])
        => (y, grad 1: dw, s) {
    h: f32[n,4] = MatMul (x, w)
    tag checkpoint: a: f32[n,4] = Gelu<approximate="none"> (h)
    y: f32[n,4] = Dropout<ratio=0.1, rng=3> (a)
    s: f32[n] = ATen<operator="aten.foo.default", arg_dim=1, arg_size=2*n> (a)
    backward: da: f32[n,4] = DropoutGrad<ratio=0.1, rng=3> (g)
    backward: dh: f32[n,4] = GeluGrad<approximate="none"> (da, h)
    backward: t: f32[4,n] = Transpose<perm=[1,0]> (x)
    backward: dw: f32[4,4] = MatMul (t, dh)
}"""


def test_joint_graph_keeps_what_onnx_cannot_say(path):
    model = save(JOINT, path, infer=False)
    domains = {node.op_type: node.domain for node in model.graph.node}
    assert domains["ATen"] == "org.pytorch.aten"
    assert domains["GeluGrad"] == domains["DropoutGrad"] == "com.microsoft"
    assert {o.domain: o.version for o in model.opset_import} == {
        "": 23,
        "com.microsoft": 1,
        "org.pytorch.aten": 1,
    }
    assert [
        d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim
    ] == [
        "n",
        4,
    ]


def test_edited_and_foreign_files_are_refused(path):
    model = save(JOINT, path, infer=False)
    onnx.save(model, str(path))
    _C.load_onnx(str(path))  # written again by another library, but unchanged
    model.graph.node[0].op_type = "Add"
    onnx.save(model, str(path))
    with pytest.raises(Exception, match="its graph was edited"):
        _C.load_onnx(str(path))
    del model.metadata_props[:]
    onnx.save(model, str(path))
    with pytest.raises(Exception, match="must be written by ortmodule_py"):
        _C.load_onnx(str(path))
    path.write_bytes(b"no model")
    with pytest.raises(Exception, match="must be an ONNX model"):
        _C.load_onnx(str(path))
    with pytest.raises(Exception, match="cannot be read"):
        _C.load_onnx(str(path / "missing"))


def foreign_file(path, dim, **metadata):
    """A file with one size that is the text `dim`, as another writer would make it."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [dim])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [dim])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out]))
    onnx.helper.set_model_props(model, metadata)
    path.write_bytes(model.SerializeToString())
    return str(path)


HOSTILE_SIZES = ["batch size", "-9223372036854775808//-1", "(" * 200_000]


@pytest.mark.parametrize("dim", HOSTILE_SIZES, ids=["words", "division", "depth"])
def test_files_of_others(path, dim):
    with pytest.raises(_C.ORTModuleError, match="must be written by ortmodule_py"):
        _C.load_onnx(foreign_file(path, dim))
    graph = {"ortmodule.graph": "g (x: f32[4]) => (x)", "ortmodule.fingerprint": "1"}
    with pytest.raises(_C.ORTModuleError, match="graph was edited"):
        _C.load_onnx(foreign_file(path, dim, **graph))


@pytest.mark.parametrize("dim", HOSTILE_SIZES, ids=["words", "division", "depth"])
def test_a_signature_with_sizes_that_are_none(path, dim):
    """The text in the metadata is not part of the fingerprint."""
    save("g (x: f32[4]) => (y) { y = Relu (x) }", path)
    model = onnx.load(str(path))
    (entry,) = (e for e in model.metadata_props if e.key == "ortmodule.graph")
    entry.value = entry.value.replace("[4]", f"[{dim}]")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(_C.ORTModuleError):
        _C.load_onnx(str(path))


def test_recurrent_steps_with_lengths(path):
    """Of a product that is not in the file, and backward in time from the end of each row."""
    text = """steps (pre: f32[t,b,20], r: f32[20,5], h: f32[b,5], c: f32[b,5], n: i64[b]) => (y, last, cell) {
        y, last, cell, _, _ = LSTMSteps<layout=0, reverse=1> (pre, r, _, _, h, c, n)
    }"""
    layer = torch.nn.LSTM(20, 5, bias=False, bidirectional=True)
    torch.nn.init.eye_(layer.weight_ih_l0_reverse)
    pre, h, c = torch.randn(6, 3, 20), torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    lengths = torch.tensor([6, 2, 4])
    packed = torch.nn.utils.rnn.pack_padded_sequence(pre, lengths, enforce_sorted=False)
    y, (last, cell) = layer(packed, (h, c))
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y)
    r = layer.weight_hh_l0_reverse.detach()
    feeds = {"pre": pre, "r": r, "h": h[1], "c": c[1], "n": lengths}
    expected = [y[:, :, 5:].detach(), last[1].detach(), cell[1].detach()]
    close(run(text, feeds, path), *expected)
