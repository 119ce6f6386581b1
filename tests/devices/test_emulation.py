"""Whole training steps through the CUDA kernels, compiled for the host."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ortmodule_py import _C, ORTModule, ORTModuleError, last_run_report
from ortmodule_py.report.plan_table import training_piece
from tests.devices.emulated import EMULATED, emulated
from tests.ops import harness
from tests.ops.case import Case
from tests.ops.test_ops import every_case


@pytest.mark.skipif(EMULATED, reason="this build has the CUDA kernels compiled for the host")
def test_a_build_without_emulation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    with pytest.raises(ORTModuleError, match=r"ORTMODULE_CUDA_EMULATION.* but found none"):
        ORTModule(nn.Linear(2, 2))


class Block(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.embed = nn.Embedding(11, 16)
        self.drop = nn.Dropout(p)
        self.head = nn.Linear(16, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        q = self.norm(x)
        scores = torch.softmax(q @ q.transpose(1, 2) / 4.0, -1)
        x = x + self.drop(self.down(torch.nn.functional.gelu(self.up(scores @ q))))
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


def gradients(model: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    model(ids).backward()
    return {name: p.grad for name, p in model.named_parameters()}


class Head(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(40, 1031, bias=bias)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(x), labels, label_smoothing=0.1)


def head_step(
    head: nn.Module, x: torch.Tensor, labels: torch.Tensor
) -> tuple[float, list[torch.Tensor]]:
    x = x.clone().requires_grad_()
    loss = head(x, labels)
    loss.backward()
    return loss.item(), [x.grad, *(p.grad for p in head.parameters())]


@emulated
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float16, 1e-3)]
)
def test_a_loss_head_in_tiles_of_padded_rows(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bound: float, bias: bool
) -> None:
    """Three tiles, the last of them shorter, with an odd number of classes."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    eager = Head(bias).to(dtype)
    x, labels = torch.randn(600, 40).to(dtype), torch.randint(0, 1031, (600,))
    labels[::7] = -100
    loss, exact = head_step(copy.deepcopy(eager).double(), x.double(), labels)
    model = ORTModule(eager)
    found_loss, found = head_step(model, x, labels)
    assert "linear_cross_entropy" in training_piece(model._compiler).text("plan")
    assert abs(found_loss - loss) < 100 * bound
    for ours, wanted in zip(found, exact, strict=True):
        assert (ours.double() - wanted).norm() < bound * wanted.norm()


@emulated
def test_a_step_equals_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    eager = Block(0.0)
    model = ORTModule(copy.deepcopy(eager))
    ids = torch.randint(0, 11, (3, 5))
    expected, found = gradients(eager, ids), gradients(model, ids)
    report = last_run_report(model)
    assert report["compiled"], report["eager_pieces"]
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    (piece,) = model._compiler.pieces
    assert "_cuda" in piece.compiled.text("plan")


@emulated
def test_dropout_is_that_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Block(0.5)
    ids = torch.randint(0, 11, (3, 5))
    plain = gradients(ORTModule(copy.deepcopy(module)), ids)
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    found = gradients(ORTModule(module), ids)
    for name, gradient in plain.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


class Recurrent(nn.Module):
    """Two layers in both directions, then a linear layer on all steps."""

    def __init__(self, layer: type[nn.RNNBase], **options: int) -> None:
        super().__init__()
        self.layers = layer(6, 9, num_layers=2, bidirectional=True, batch_first=True, **options)
        self.head = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)[0]
        return self.head(y).square().sum()


@emulated
@pytest.mark.parametrize(("layer", "level"), [(nn.LSTM, "2"), (nn.GRU, "0"), (nn.RNN, "2")])
def test_recurrent_layers_are_captured_for_all_lengths(
    monkeypatch: pytest.MonkeyPatch, layer: type[nn.RNNBase], level: str
) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    torch.manual_seed(0)
    eager = Recurrent(layer, **({"proj_size": 5} if layer is nn.LSTM else {}))
    eager(torch.randn(1, 1, 6))
    model = ORTModule(copy.deepcopy(eager))
    for length in (7, 12, 9):
        x = torch.randn(4, length, 6)
        for each in (eager, model):
            each.zero_grad()
            each(x).backward()
        for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
    report = last_run_report(model)
    # The second length makes it a symbol.
    assert report["compiled"] and report["captures"] <= 2, report["eager_pieces"]


class Mlp(nn.Module):
    """Blocks of which products take over Gelu and the gradients of biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.ups = nn.ModuleList(nn.Linear(16, 32) for _ in range(4))
        self.downs = nn.ModuleList(nn.Linear(32, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(nn.functional.gelu(up(norm(x)), approximate="tanh"))
        return x.square().mean()


def mlp_gradients(
    module: Mlp, dtype: torch.dtype, **options: str
) -> tuple[str, list[torch.Tensor]]:
    """The joint graph of a step through the emulation, and its gradients."""
    torch.manual_seed(1)
    x = torch.randn(3, 7, 16).to(dtype)
    model = ORTModule(copy.deepcopy(module).to(dtype), **options)
    model(x).backward()
    report = last_run_report(model)
    assert report["compiled"], report["eager_pieces"]
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
    (piece,) = model._compiler.pieces
    return piece.compiled.text("joint"), [p.grad for p in model.parameters()]


@emulated
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_products_take_over(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    module = Mlp()
    joint, found = mlp_gradients(module, dtype)
    assert joint.count("= WeightBiasGrad (") == 8
    assert joint.count("= GemmFastGelu<") == (0 if dtype == torch.float32 else 4)
    monkeypatch.setenv("ORTMODULE_DISABLE_PASSES", "fuse_weight_bias_grad,fuse_gemm_gelu")
    joint, apart = mlp_gradients(module, dtype)
    assert "WeightBiasGrad" not in joint and "GemmFastGelu" not in joint
    wide = copy.deepcopy(module).to(dtype).double()
    torch.manual_seed(1)
    wide(torch.randn(3, 7, 16).to(dtype).double()).backward()
    for mine, without, exact in zip(found, apart, wide.parameters(), strict=True):
        scale = exact.grad.abs().max()
        errors = [(g.double() - exact.grad).abs().max() / scale for g in (mine, without)]
        assert errors[0] <= 2 * errors[1] + torch.finfo(dtype).eps


@emulated
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_have_the_same_bits_at_every_level(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Neither op falls apart where memory is saved: parts of it would round otherwise."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    module = Mlp()
    _, expected = mlp_gradients(module, dtype)
    found = [mlp_gradients(module, dtype, memory_budget="activations:85%")[1]]
    for level in ("1", "2"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        found.append(mlp_gradients(module, dtype)[1])
    for gradients_there in found:
        assert all(torch.equal(*pair) for pair in zip(expected, gradients_there, strict=True))


@emulated
def test_evaluation_writes_no_auxiliary_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    model = ORTModule(Mlp().bfloat16())
    with torch.no_grad():
        model(torch.randn(3, 7, 16).bfloat16())
    (piece,) = model._compiler.pieces
    assert "GemmFastGelu" not in piece.compiled.text("joint")


# Ops whose cases differ in the formula, or in a view of memory, but not in the code around it.
_ONE_KERNEL = {
    "activation", "binary", "cast", "clip", "compare", "concat", "constant_of_shape", "expand", "identity",
    "logical", "pad", "range", "reshape", "slice", "split", "transpose", "unary", "where",
}  # fmt: skip


def _cases_with_different_kernels() -> list[Any]:
    """Of each call the cases that differ in element types or keywords; of the ops above, in keywords."""
    chosen: dict[Any, Any] = {}
    for parameter in every_case.args[1]:
        case = parameter.values[0]
        key = [case.target, case.contains, case.aten, *sorted(map(str, case.keywords.items()))]
        if parameter.id.partition("-")[0] not in _ONE_KERNEL:
            leaves = tree_leaves(list(case.build(harness.SIZE)))
            key += [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)]
        chosen.setdefault(tuple(key), parameter)
    return list(chosen.values())


@pytest.mark.slow
@emulated
@pytest.mark.parametrize("case", _cases_with_different_kernels())
def test_ops(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    own = case.target.startswith("ortmodule_py.")
    if own and not _C.GraphBuilder(False, "cuda").has_rule(case.target):
        pytest.skip("the op has no kernel for CUDA, so captures there do not make it")
    monkeypatch.setattr(harness, "EMULATED", True)
    try:
        harness.check_fixed(case, harness.Arguments.of(case, harness.SIZE))
    except harness.EagerRefuses as refusal:
        pytest.skip(f"eager refuses: {str(refusal)[:80]}")


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.root = nn.LayerNorm(16), nn.RMSNorm(16, eps=1e-5)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(self.layer(x))
        return x + self.second(self.root(x))


def norms_of(model: ORTModule, x: torch.Tensor) -> tuple[set[str], list[torch.Tensor]]:
    """The kernels of norms, and the result with the gradients if there are any."""
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    found = [y]
    if y.requires_grad:
        model.zero_grad(set_to_none=True)
        y.square().sum().backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    (piece,) = model._compiler.pieces
    return set(re.findall(r"\w*norm\w*_cuda", piece.compiled.text("plan"))), found


@emulated
@pytest.mark.parametrize("training", [True, False])
def test_norms_take_in_the_casts_of_autocast(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    module, x = Norms(), torch.randn(3, 7, 16)
    with torch.set_grad_enabled(training):
        fused, found = norms_of(ORTModule(copy.deepcopy(module)), x)
        monkeypatch.setenv("ORTMODULE_DISABLE_PASSES", "fuse_norm_cast")
        apart, expected = norms_of(ORTModule(copy.deepcopy(module)), x)
    assert all("cast" in name for name in fused) and len(fused) == (4 if training else 2), fused
    assert not any("cast" in name for name in apart) and len(apart) == len(fused), apart
    assert len(found) == len(expected) == (8 if training else 1)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def residual_gradients(
    module: Norms, dtype: torch.dtype, autocast: bool
) -> tuple[str, list[torch.Tensor]]:
    """The plan of a step through the emulation, and the gradients of the input and the parameters."""
    torch.manual_seed(1)
    x = torch.randn(3, 7, 16).to(dtype).requires_grad_()
    model = ORTModule(copy.deepcopy(module).to(dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = model(x)
    y.square().sum().backward()
    report = last_run_report(model)
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
    (piece,) = model._compiler.pieces
    return piece.compiled.text("plan"), [x.grad, *(p.grad for p in model.parameters())]


@emulated
@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)],
)
def test_norms_add_the_gradient_that_goes_around_them(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, autocast: bool
) -> None:
    """One addition of the unrounded gradient: float32 keeps its bits, 16 bits err less."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    module = Norms()
    plan, found = residual_gradients(module, dtype, autocast)
    prefix = "cast_" if autocast else ""
    for norm in ("layer_norm", "simplified_layer_norm"):
        assert plan.count(f" {prefix}skip_{norm}_grad_cuda") == 1, plan
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    _, recomputed = residual_gradients(module, dtype, autocast)
    assert all(torch.equal(*pair) for pair in zip(found, recomputed, strict=True))
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_LEVEL")
    monkeypatch.setenv("ORTMODULE_DISABLE_PASSES", "fuse_skip_norm_grad")
    plan, apart = residual_gradients(module, dtype, autocast)
    assert not re.search(r"skip_\w*grad_cuda", plan), plan
    if dtype == torch.float32:
        assert all(torch.equal(*pair) for pair in zip(found, apart, strict=True))
    exact = copy.deepcopy(module).to(dtype).double()
    torch.manual_seed(1)
    x = torch.randn(3, 7, 16).to(dtype).double().requires_grad_()
    exact(x).square().sum().backward()
    wanted = [x.grad, *(p.grad for p in exact.parameters())]
    eps = torch.finfo(torch.bfloat16 if autocast else dtype).eps
    for mine, without, expected in zip(found, apart, wanted, strict=True):
        errors = [(g.double() - expected).abs().max() for g in (mine, without)]
        assert errors[0] <= 1.5 * errors[1] + eps * expected.abs().max()


@emulated
def test_gradients_of_gradients_go_through_the_sum_behind_a_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    module, values = Norms(), torch.randn(3, 7, 16)

    def second(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        (dx,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        dx.sin().sum().backward()
        return [x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]

    expected = second(copy.deepcopy(module).double(), values.double().requires_grad_())
    model = ORTModule(module)
    found = second(model, values.clone().requires_grad_())
    assert len(found) == len(expected) > 4
    for mine, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, exact.float(), rtol=1e-4, atol=1e-4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(16, 16), nn.LayerNorm(16), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.layer(x))
        return self.norm(x).float() * x


@emulated
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_residual_sum_stays_with_the_ops_that_make_its_operand(
    monkeypatch: pytest.MonkeyPatch, training: bool, autocast: bool
) -> None:
    """Dropout or the cast of autocast adds; alone, the product has the bias and the norm the sum."""
    torch.manual_seed(0)
    module, x = Residual().train(training), torch.randn(3, 7, 16)

    def run() -> tuple[str, torch.Tensor]:
        model = ORTModule(copy.deepcopy(module))
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = model(x)
        return training_piece(model._compiler).text("plan"), y

    _, expected = run()
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    plan, found = run()
    grouped = re.search(r"\[(Cast )?Add (Dropout )?(Cast )?Add\]", plan) is not None
    assert grouped == (training or autocast), plan
    assert (re.search(r"skip_layer_norm(_cast)?_cuda", plan) is None) == grouped, plan
    torch.testing.assert_close(found, expected, rtol=1e-2 if autocast else 1e-5, atol=1e-2)


@emulated
def test_convolutions_of_lines_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As images of one line, channels-last; what lies between them keeps that."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    first = nn.Conv1d(4, 8, 5, stride=2, padding=2)
    second = nn.Conv1d(8, 6, 3, padding=2, dilation=2, groups=2, bias=False)
    module = nn.Sequential(first, nn.GELU(), second).bfloat16()
    x = torch.randn(3, 4, 33, dtype=torch.bfloat16)
    model = ORTModule(copy.deepcopy(module))
    found = []
    for run, given in ((copy.deepcopy(module).double(), x.double()), (model, x), (module, x)):
        given = given.clone().requires_grad_()
        y = run(given)
        y.square().sum().backward()
        found.append([y, given.grad, *(p.grad for p in run.parameters())])
    for exact, ours, eager in zip(*found, strict=True):
        assert ours.stride() == eager.stride()
        scale = exact.abs().max()
        assert (ours - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3 * scale
    text = training_piece(model._compiler).text("plan")
    copies = [line for line in text.splitlines() if " F contiguous" in line]
    assert len(copies) == 4  # of x, both weights and y


@emulated
def test_volumes_in_16_bits_run_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, gradients and their strides are eager's."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    eager = nn.Sequential(
        nn.Conv3d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 8, (1, 3, 3)),
    )
    model = ORTModule(copy.deepcopy(eager))
    x = torch.randn(2, 3, 4, 8, 8)
    results = []
    for run in (model, eager):
        operand = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = run(operand)
        y.float().square().mean().backward()
        results.append([y.detach(), operand.grad, *(p.grad for p in run.parameters())])
    # Images and both weights; the pool keeps the layout.
    assert training_piece(model._compiler).text("forward").count("= ChannelsLast ") == 3
    for ours, theirs in zip(*results, strict=True):
        assert ours.stride() == theirs.stride()
        scale = theirs.abs().max().float()
        assert (ours.float() - theirs.float()).abs().max() <= 0.03 * scale
