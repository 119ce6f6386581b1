"""What capture writes, run again with torch, gives eager's outputs, gradients and buffers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from ortmodule_py.base.errors import CannotLower, origin_of
from ortmodule_py.lower.piece import lower
from ortmodule_py.trace.untraceable import why_untraceable

from .recording import Backend, Gradient, RecordingBuilder, Replay, Val


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def _leaf(value: Any) -> Any:
    return (
        value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, Tensor)
        else value
    )


def _run(function: Callable[..., Any], module: nn.Module, args: list[Any]) -> dict[str, Any]:
    outputs = function(*args)
    floats = [
        x
        for x in tree_leaves(outputs)
        if isinstance(x, Tensor) and x.is_floating_point() and x.requires_grad
    ]
    if floats:
        sum(
            (x.float() * torch.arange(1, x.numel() + 1).view(x.shape).cos()).sum() for x in floats
        ).backward()
    return {
        "outputs": tree_leaves(outputs),
        "requires_grad": [x.requires_grad for x in tree_leaves(outputs) if isinstance(x, Tensor)],
        "inputs": args,
        "input_grads": [
            arg.grad if isinstance(arg, Tensor) and arg.is_leaf else None for arg in args
        ],
        "grads": {name: parameter.grad for name, parameter in module.named_parameters()},
        "buffers": dict(module.named_buffers()),
    }


def check(
    module: nn.Module, *args: Any, backend: Backend | None = None, atol: float = 1e-6
) -> RecordingBuilder:
    """Compare replay with eager on copies of `module`; the builder of the only piece."""
    backend = backend or Backend()
    theirs, ours = copy.deepcopy(module), copy.deepcopy(module)
    expected = _run(theirs, theirs, [_leaf(arg) for arg in args])
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    found = _run(compiled, ours, [_leaf(arg) for arg in args])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)
    return backend.only


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.fc(x)))


def test_mlp() -> None:
    builder = check(MLP(), torch.randn(4, 6, requires_grad=True))
    assert builder.targets == ["aten.linear.default", "aten.gelu.default", "aten.linear.default"]
    facts = {i.facts["name"]: i.facts for i in builder.flat_inputs if i.facts}
    assert set(facts) == {"fc.weight", "fc.bias", "out.weight", "out.bias", "x"}
    assert facts["fc.weight"]["kind"] == "parameter"
    assert facts["x"]["requires_grad"] and facts["x"]["kind"] == "tensor"
    module_path, line = builder.calls[0].origin
    assert module_path == "fc" and line.rsplit(":", 1)[0].endswith("test_capture.py")
    assert builder.argument("aten.gelu.default", "approximate") == "none"


@pytest.mark.parametrize(
    "source",
    [
        "L['self'].blocks[0].attn",
        "L['self']._modules['blocks']._modules['0']._modules['attn']",
        "L['self'].__dict__['_modules']['blocks'].__dict__['_modules']['0'].attn",  # as of peft
    ],
)
def test_paths_of_layers(source: str) -> None:
    node = fx.Graph().placeholder("x")
    node.meta["nn_module_stack"] = {"a": (source, nn.Module)}
    assert origin_of(node)[0] == "blocks.0.attn"


def _error_of(function: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as raised:
        function()
    assert isinstance(raised.value, Exception)
    return raised.value


def test_an_error_of_our_own_is_not_said_to_be_torchs() -> None:
    ours = why_untraceable("mul", _error_of(lambda: origin_of(cast(Any, None))))
    assert "internal error, please report it: AttributeError(" in ours and "base/errors.py:" in ours
    users = why_untraceable("mul", _error_of(lambda: {}["key"]))
    assert users == "mul: torch cannot trace it without the values of tensors ('key')"


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(32, 32).tril().view(1, 1, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        att = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        att = att.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf")).softmax(-1)
        return self.proj((att @ v).transpose(1, 2).contiguous().view(batch, length, width))


class GPT(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4, vocabulary: int = 11) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(32, width)
        self.drop = nn.Dropout(0.0)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": nn.LayerNorm(width),
                    "attn": Attention(width, heads),
                    "ln2": nn.LayerNorm(width),
                    "mlp": nn.Sequential(
                        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
                    ),
                }
            )
            for _ in range(2)
        )
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = x + block["attn"](block["ln1"](x))
            x = x + block["mlp"](block["ln2"](x))
        logits = self.head(self.ln(x))
        return F.cross_entropy(
            logits.view(-1, logits.shape[-1]), labels.view(-1), ignore_index=-1
        ), logits


def _tokens(batch: int, length: int) -> tuple[Tensor, Tensor]:
    ids, labels = torch.randint(0, 11, (2, batch, length)).unbind(0)
    for tensor in (ids, labels):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
        torch._dynamo.maybe_mark_dynamic(tensor, 1)
    return ids, labels


def test_gpt() -> None:
    builder = check(GPT(), *_tokens(3, 7))
    composites = {
        "linear",
        "layer_norm",
        "softmax",
        "gelu",
        "cross_entropy_loss",
        "matmul",
        "embedding",
        "masked_fill",
    }
    assert composites <= {target.split(".")[1] for target in builder.targets}
    names = [i.facts["name"] for i in builder.flat_inputs if i.facts]
    assert sum(name in ("wte.weight", "head.weight") for name in names) == 1  # tied
    assert "blocks.1.attn.qkv.weight" in names
    assert ("blocks.1.attn.qkv") in [call.origin[0] for call in builder.calls]


def test_new_batch_and_length_need_no_new_capture() -> None:
    backend = Backend()
    model = GPT()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for batch, length in ((3, 7), (2, 9), (5, 4), (4, 4)):
        tokens = _tokens(batch, length)
        torch.testing.assert_close(compiled(*tokens), model(*tokens))
    assert len(backend.builders) == 1


def test_dropout_is_one_operator() -> None:
    backend = Backend()
    layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25))
    torch.compile(layers, backend=backend)(torch.randn(3, 4))
    assert backend.only.argument("aten.native_dropout.default", "p") == 0.25
    assert backend.only.argument("aten.native_dropout.default", "train") is True


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn(self.conv(x)), inplace=True))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def test_batch_norm_statistics_are_written_back() -> None:
    builder = check(ConvNet(), torch.randn(4, 3, 8, 8, requires_grad=True))
    assert "aten._native_batch_norm_legit_functional.default" in builder.targets
    changed = {builder.flat_inputs[i].facts["name"] for i in builder.mutations}
    assert changed == {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}
    check(ConvNet().eval(), torch.randn(4, 3, 8, 8), backend=Backend())


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.fc(x)
        with torch.no_grad():
            scale = h.abs().mean() + self.fc.weight.sum()
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
            with torch.enable_grad():
                inner = h * scale
        return inner + self.mean, scale, h.detach() * x


def test_no_grad_region() -> None:
    builder = check(Regions(), torch.randn(3, 4, requires_grad=True))
    assert "aten.detach.default" in builder.targets


def test_call_without_gradients_is_inference() -> None:
    backend = Backend()
    with torch.no_grad():
        check(MLP(), torch.randn(4, 6), backend=backend)
    assert not backend.pieces[0].grad_enabled


class Autocast(MLP):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.fc(x).relu()
            with torch.autocast("cpu", enabled=False):
                z = self.fc(x)
        return self.out(y.float() + z), y


def test_autocast_region_has_explicit_casts() -> None:
    builder = check(Autocast(), torch.randn(4, 6, requires_grad=True))
    dtypes = [
        call.outputs[0]["dtype"] for call in builder.calls if call.target == "aten.linear.default"
    ]
    assert dtypes == ["bfloat16", "float32", "float32"]


def test_ambient_autocast_has_explicit_casts() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        builder = check(MLP(), torch.randn(4, 6, requires_grad=True), atol=1e-2)
    assert [c.outputs[0]["dtype"] for c in builder.calls if "linear" in c.target] == [
        "bfloat16"
    ] * 2


class Composites(MLP):
    def forward(self, x: Tensor) -> Tensor:
        y = self.out(self.fc(x))
        return torch.einsum("bi,ci->bc", y, y.float()).softmax(-1) + F.layer_norm(y, (3,)).sum()


def test_autocast_reaches_into_composites() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        builder = check(Composites(), torch.randn(4, 6, requires_grad=True), atol=1e-2)
    assert "aten.einsum.default" not in builder.targets  # autocast acts on its bmm
    torch._dynamo.reset()
    assert "aten.einsum.default" in check(Composites(), torch.randn(4, 6)).targets


class SizeNumbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n, k = x.shape[0], x.shape[1]
        y = x * self.w
        total = y.sum() * (1.0 / n)
        return y * n**-0.5 / math.sqrt(n + 1), y.sum() / (n * k), total, y.clamp(max=n / 2)


def test_numbers_that_follow_from_sizes() -> None:
    backend = Backend()
    model = SizeNumbers()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for n in (3, 7, 4, 7):
        x = torch.randn(n, 6, requires_grad=True)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(backend.builders) == 1
    assert all("aten.sqrt.default" in builder.targets for builder in backend.builders)


class Weighted(MLP):
    def forward(self, x: Tensor, weight: float) -> Tensor:
        return self.fc(x)[:, :6] * (weight / 2) + x.sum() * weight


def test_float_argument_that_changes_needs_two_captures() -> None:
    backend = Backend()
    model = Weighted()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(4, 6)
    for weight in (0.5, 0.75, 1.25, 3.5):
        torch.testing.assert_close(compiled(x, weight), model(x, weight))
    assert len(backend.builders) == 2


class Doubled(torch.autograd.Function):
    """A gradient that is wrong on purpose, so that the engine's own would be seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, k: int) -> tuple[Tensor, Tensor]:
        y = (x * w).relu()
        ctx.save_for_backward(x, y)
        ctx.k = k
        return y, y > 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, Tensor, None]:
        x, y = ctx.saved_tensors
        return 2 * grad * y.sign() * ctx.k, (grad * x).sum(0), None


class UsesFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, positive = Doubled.apply(self.fc(x), self.w, 3)
        return y * 3, positive


def test_autograd_function_keeps_its_backward() -> None:
    backend = Backend()
    check(UsesFunction(), torch.randn(3, 4, requires_grad=True), backend=backend)
    assert {g.traced for g in backend.builders[0].steps if isinstance(g, Gradient)} == {False}


class Hooked(MLP):
    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        scale = h.detach().abs() + 1
        y = h * 2 if self.late else 0
        h.register_hook(lambda grad: grad * scale)
        return self.out(h) + (h.exp().sum() + y).sum()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo's graph of a hook does not run")
def test_tensor_hook() -> None:
    check(Hooked(), torch.randn(4, 6, requires_grad=True))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="a hook on a tensor that was used before"):
        check(Hooked(late=True), torch.randn(4, 6, requires_grad=True))


class Checkpointed(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(checkpoint(lambda t: F.gelu(self.fc(t)), x, use_reentrant=False))


def test_checkpoint_is_a_hint() -> None:
    builder = check(Checkpointed(), torch.randn(4, 6, requires_grad=True))
    tags = {call.target: call.tag for call in builder.calls}
    assert tags["aten.gelu.default"] == "checkpoint"
    assert builder.calls[-1].tag == ""


class Unruled(nn.Module):
    """Calls each function twice, each on the result of a layer of its own."""

    def __init__(self, functions: list[Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in functions)
        self.functions = functions

    def forward(self, x: Tensor) -> Any:
        pairs = list(zip(self.functions, self.layers, strict=True))
        return [(function(fc(x)), function(fc(x) + 1)) for function, fc in pairs]


UNRULED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "logcumsumexp": (lambda x: x.logcumsumexp(1), "aten.logcumsumexp.default"),
    "cdist": (lambda x: torch.cdist(x, x[:2] * 2), "aten._cdist_forward.default"),
    "max_pool": (
        lambda x: F.max_pool2d(x.view(1, 1, -1, 6), 2, return_indices=True),
        "aten.max_pool2d_with_indices.default",
    ),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), "aten.native_layer_norm.default"),
    "cat": (lambda x: torch.cat([x, x * 2, x]), "aten.cat.default"),
    "split": (lambda x: x.split(2, dim=1), "aten.split.Tensor"),
    "sort": (lambda x: x.sort(1), "aten.sort.default"),
    "floor": (lambda x: x.floor() * x, "aten.floor.default"),
}


def test_gradient_without_rule_is_traced() -> None:
    functions, targets = zip(*UNRULED.values(), strict=True)
    x = torch.randn(4, 6, requires_grad=True)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    backend = Backend(
        without_rule=[
            *targets,
            "aten.cdist.default",
            "aten.layer_norm.default",
            "aten.max_pool2d.default",
        ]
    )
    check(Unruled(list(functions)), x, backend=backend)
    # Each is traced once, used twice.
    assert sorted(backend.pieces[0].traced_gradients) == sorted(targets)
    assert {g.traced for g in backend.builders[0].steps if isinstance(g, Gradient)} == {True}


def test_a_gradient_is_traced_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd would trace that of a GPU's tensors on a thread without the modes that record it."""
    function, target = UNRULED["logcumsumexp"]
    grad, threaded = torch.autograd.grad, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        threaded.append(torch._C._is_multithreading_enabled())
        return grad(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    x = torch.randn(4, 6, requires_grad=True)
    torch.compile(Unruled([function]), backend=Backend(without_rule=[target]))(x)
    assert threaded and not any(threaded)
    assert torch._C._is_multithreading_enabled()


class InPlace(MLP):
    def forward(self, x: Tensor, counter: Tensor) -> tuple[Tensor, ...]:
        counter.add_(1)
        y = self.fc(x)
        rows = y[1:]
        rows.mul_(2)
        y.view(-1)[:3] += 1
        counter[0] = 7
        return y, rows, counter, counter[1:], x.view(-1)


def test_in_place_changes_views_and_inputs_as_outputs() -> None:
    backend = Backend()
    builder = check(
        InPlace(), torch.randn(4, 6, requires_grad=True), torch.zeros(3), backend=backend
    )
    names = [i.facts["name"] for i in builder.flat_inputs if i.facts]
    assert list(builder.mutations) == [names.index("counter")]


def test_output_that_is_an_input() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Any, ...]:
            y.add_(1)
            return x * 2, y, x, 3, None

    x, y = torch.randn(3), torch.randn(3)
    builder = RecordingBuilder()
    graph = torch.fx.symbolic_trace(Same())
    for node, value in zip(graph.graph.nodes, (x, y), strict=False):
        node.meta["example_value"] = value  # as Dynamo does
    piece = lower(graph, [x, y], builder)
    assert builder.aliases == {1: 1, 2: 0} and piece.mutated_inputs == [1]
    before = y.clone()
    outputs = Replay(builder, [x, y]).run()
    assert outputs[1] is y and outputs[2] is x and outputs[3:] == [3, None]
    torch.testing.assert_close((outputs[0], y), (x * 2, before + 1))


class HiddenChange(MLP):
    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x).tanh()
        y.data.mul_(2)
        return y.sum()


def test_change_behind_autograd_is_refused_with_its_line() -> None:
    with pytest.raises(Exception, match="changed in place where gradients are off") as caught:
        torch.compile(HiddenChange(), backend=Backend())(torch.randn(2, 6))
    error = caught.value
    while not isinstance(error, CannotLower):
        error = error.__cause__ or error.inner_exception
    assert "test_capture.py" in error.origin[1]


@pytest.mark.slow
def test_hugging_face_bert() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    ids = torch.randint(0, 30, (3, 8))
    model = transformers.BertForSequenceClassification(config)
    builder = check(
        model, ids, torch.ones_like(ids), None, None, None, torch.tensor([0, 1, 0]), atol=1e-5
    )
    assert isinstance(builder.results[0], Val)
