"""Models on CUDA devices captured and planned on fake tensors, which needs no GPU: every step has a
kernel, values stay on the device, and what cannot be said is left to eager with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import models
from ortmodule_py import _C
from ortmodule_py.base.devices import piece_device
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.piece import lower

pytestmark = pytest.mark.skipif(
    not _C.build_info()["cuda"], reason="this build has no CUDA kernels"
)


class Planned:
    """The pieces of a call, each planned for training, and where they ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The plan is of interest here, not whether there is a GPU to run it.
        monkeypatch.setattr("ortmodule_py.base.devices.unsupported", lambda _: None)
        self.pieces: list[Any] = []

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        device = piece_device(inputs)
        builder = _C.GraphBuilder(False, device.type)
        lowered = lower(gm, inputs, builder, device)
        options = _C.PieceOptions()
        options.device = str(device)
        options.training = lowered.grad_enabled
        piece = builder.finish(options)
        piece.plan(*inputs)
        self.pieces.append(piece)
        return gm.forward

    def plan(self, module: nn.Module, *args: Any, **kwargs: Any) -> str:
        """The text of the only piece's plan."""
        torch._dynamo.reset()
        try:
            torch.compile(module, backend=self, dynamic=False)(*args, **kwargs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            # Autograd, which traces the gradient of an operator without a rule, asks for the device.
            if "hasPrimaryContext" in str(error):
                pytest.skip("torch traces gradients on CUDA only where there is a GPU")
            raise
        (piece,) = self.pieces
        text: str = piece.text("plan")
        assert "cuda" in piece.facts()["device"]
        return text


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    return Planned(monkeypatch)


def on_cuda(mode: FakeTensorMode, value: Any) -> Any:
    """A fake twin on the GPU."""
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


def fake_module(mode: FakeTensorMode, module: nn.Module) -> nn.Module:
    """The module with fake parameters on the GPU."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None:
                part._parameters[name] = nn.Parameter(on_cuda(mode, parameter))
        for name, buffer in list(part._buffers.items()):
            if buffer is not None:
                part._buffers[name] = on_cuda(mode, buffer)
    return module


@pytest.mark.parametrize("name", models.ALL_NAMES)
def test_benchmark_models(planned: Planned, name: str) -> None:
    base = models.make(name)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    batch = {key: on_cuda(mode, value) for key, value in base.batch(2).items()}
    with mode:
        text = planned.plan(fake_module(mode, base.module), **batch)
    assert "_cpu" not in text
    # The U-Net has convolutions alone.
    assert ("conv_transpose_grad_aten" if name == "unet" else "cublaslt") in text


def test_attention_reads_its_heads_where_they_are(planned: Planned) -> None:
    """Its random numbers do not follow the order of its operands in memory."""

    class Attention(nn.Module):
        def forward(self, qkv: Tensor) -> Tensor:
            q, k, v = (t.unflatten(2, (4, 16)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    mode = FakeTensorMode()
    with mode, torch.no_grad():
        planned.plan(Attention(), torch.empty(2, 32, 192, device="cuda"))
    lowered = planned.pieces[0].text("lowered")
    assert "scaled_dot_product" in lowered and "= Contiguous" not in lowered


@pytest.mark.parametrize("grouped", [False, True])
def test_the_epilogue_of_a_product_adds_its_bias(planned: Planned, grouped: bool) -> None:
    """Unless a pointwise group reads the sum."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: Tensor) -> Tensor:
            y = self.up(x)
            return self.down(torch.tanh(y) if grouped else y)

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        module = fake_module(mode, Layers())
        text = planned.plan(module, torch.empty(2, 8, 16, device="cuda"))
    forward = text.split("steps (")[1]
    assert forward.count(" F gemm_cublaslt") == (1 if grouped else 2)
    assert forward.count(" F pointwise_group_cuda") == (1 if grouped else 0)


class Mixed(nn.Module):
    """Numbers and ranges of the CPU among values on a GPU."""

    def __init__(self, compute: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.compute = compute

    def forward(self, x: Tensor) -> Any:
        return self.compute(x, self.weight)


def plan_mixed(planned: Planned, compute: Callable[[Tensor, Tensor], Any]) -> str:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    module = fake_module(mode, Mixed(compute))
    with mode:
        return planned.plan(module, torch.ones(3, 4, device="cuda"))


def test_a_number_on_the_cpu_is_no_obstacle(planned: Planned) -> None:
    assert plan_mixed(planned, lambda x, w: x * w * torch.tensor(2.0))


def test_a_range_made_on_the_cpu_is_computed_on_the_gpu(planned: Planned) -> None:
    text = plan_mixed(planned, lambda x, w: (x * w) * torch.arange(4).to(x.device))
    assert "_cpu" not in text


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda x, w: (x * w, torch.arange(4)), "returns or changes a tensor on cpu"),
        (lambda x, w: x * w * torch.rand(4).to(x.device), "draws from the generator of the CPU"),
    ],
)
def test_what_eager_must_do_has_a_reason(
    planned: Planned, compute: Callable[[Tensor, Tensor], Any], reason: str
) -> None:
    with pytest.raises(Exception) as raised:
        plan_mixed(planned, compute)
    inner = getattr(raised.value, "inner_exception", raised.value)
    assert isinstance(inner, CannotLower)
    assert reason in str(inner)


def plan_function(planned: Planned, function: Callable[..., Any], *sizes: list[int]) -> str:
    """The plan of a function of fake tensors on a GPU, without gradients."""

    class Function(nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return function(*tensors)

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        return planned.plan(Function(), *(torch.ones(n, device="cuda") for n in sizes))


def test_products_that_cublaslt_is_not_given(planned: Planned) -> None:
    def products(x: Tensor, y: Tensor, c: Tensor, rows: Tensor, column: Tensor) -> Any:
        return x @ y, torch.addmm(c, rows, column)

    text = plan_function(planned, products, [65536, 2, 3], [65536, 3, 2], [], [5, 3], [3, 1])
    assert " matmul_aten" in text and " gemm_aten" in text
    assert "cublaslt" not in text


def test_the_largest_batch_is_cublaslts(planned: Planned) -> None:
    text = plan_function(planned, torch.matmul, [65535, 2, 3], [65535, 3, 2])
    assert "matmul_cublaslt" in text


def test_products_take_over_gelu_and_bias_gradients(planned: Planned) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    layers = (nn.Linear(16, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 16))
    module = fake_module(mode, nn.Sequential(*layers).bfloat16())
    with mode:
        text = planned.plan(module, torch.ones(3, 5, 16, dtype=torch.bfloat16, device="cuda"))
    assert "gemm_fast_gelu_cublaslt" in text and "weight_bias_grad_cublaslt" in text
    assert "reduce_sum_cuda" not in text


def test_parts_take_what_cublaslt_is_not_given(planned: Planned) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    layers = (nn.Linear(16, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 16))
    module = fake_module(mode, nn.Sequential(*layers).half())
    with mode:
        text = planned.plan(module, torch.ones(0, 16, dtype=torch.float16, device="cuda"))
    assert "gemm_fast_gelu_parts" in text and "weight_bias_grad_parts" in text


@pytest.mark.parametrize("sizes", [(16, 1, 16), (1, 16, 8), (12, 16, 8), (16, 9, 16)])
def test_parts_take_what_epilogues_are_not_made_for(
    planned: Planned, sizes: tuple[int, int, int]
) -> None:
    first, middle, last = sizes
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    layers = (nn.Linear(first, middle), nn.GELU(approximate="tanh"), nn.Linear(middle, last))
    module = fake_module(mode, nn.Sequential(*layers).bfloat16())
    with mode:
        x = torch.ones(64, first, dtype=torch.bfloat16, device="cuda")
        text = planned.plan(module, x)
    assert "weight_bias_grad_parts" in text and "gemm_fast_gelu_cublaslt" not in text
    # A product alone may have any sizes, and a bias any but 1.
    assert " gemm_cublaslt" in text
    assert (" gemm_aten" in text) == (middle == 1)


def test_a_single_row_has_no_second_result(planned: Planned) -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    layers = (nn.Linear(16, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 16))
    module = fake_module(mode, nn.Sequential(*layers).bfloat16())
    with mode:
        text = planned.plan(module, torch.ones(1, 16, dtype=torch.bfloat16, device="cuda"))
    assert "weight_bias_grad_cublaslt" not in text and "gemm_fast_gelu_cublaslt" not in text


def plan_convolution(planned: Planned, layer: nn.Module, image: Tensor) -> str:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    image = on_cuda(mode, image)
    with mode:
        return planned.plan(fake_module(mode, layer), image.requires_grad_())


@pytest.mark.parametrize(
    ("layer", "image"),
    [
        (nn.Conv1d(4, 8, 3), torch.ones(2, 4, 9)),
        (nn.Conv2d(4, 8, 3, stride=2, dilation=2, groups=2), torch.ones(2, 4, 9, 9)),
        (nn.Conv3d(4, 8, 3, bias=False), torch.ones(2, 4, 9, 9, 9)),
        (nn.Conv2d(4, 8, 3).half(), torch.ones(2, 4, 9, 9).half()),
        (nn.Conv2d(4, 8, 3).double(), torch.ones(2, 4, 9, 9).double()),
        (
            nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last),
            torch.ones(2, 4, 9, 9).contiguous(memory_format=torch.channels_last),
        ),
    ],
)
def test_convolutions_are_cudnns(planned: Planned, layer: nn.Module, image: Tensor) -> None:
    text = plan_convolution(planned, layer, image)
    assert "conv_cudnn" in text and "conv_grad_cudnn" in text
    assert "conv_aten" not in text and "conv_grad_aten" not in text
    (piece,) = planned.pieces
    facts = piece.facts()
    # The same bits come out every time. A run is measured, since cuDNN may turn out to refuse.
    assert not facts["exact"] and not facts["nondeterministic_kernels"]
    assert facts["plan_peak_bytes"] > 2**19


@pytest.mark.parametrize(
    ("layer", "image"),
    [
        (nn.Conv2d(4, 8, 3), torch.ones(0, 4, 9, 9)),
        (nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last), torch.ones(2, 4, 9, 9)),
        (nn.ConvTranspose2d(4, 8, 3), torch.ones(2, 4, 9, 9)),
    ],
)
def test_convolutions_that_cudnn_is_not_given(
    planned: Planned, layer: nn.Module, image: Tensor
) -> None:
    text = plan_convolution(planned, layer, image)
    assert "_aten" in text and "cudnn" not in text
    (piece,) = planned.pieces
    # torch chooses their algorithms, but among those without atomics.
    assert not piece.facts()["nondeterministic_kernels"]


def _blocks(dtype: torch.dtype, dims: int) -> nn.Module:
    def of(name: str) -> Any:
        return getattr(nn, f"{name}{dims}d")

    layers: list[nn.Module] = []
    for inside in (3, 16, 16):
        layers += [of("Conv")(inside, 16, 3, padding=1, bias=False), of("BatchNorm")(16), nn.ReLU()]
    ends = [of("MaxPool")(2), of("AdaptiveAvgPool")(1), nn.Flatten()]
    return nn.Sequential(*layers, *ends).to(dtype)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convnets_in_16_bits_run_channels_last(
    planned: Planned, dtype: torch.dtype, dims: int
) -> None:
    images = torch.ones(2, 3, *[8] * dims, dtype=dtype)
    text = plan_convolution(planned, _blocks(dtype, dims), images)
    assert ("ChannelsLast" in text) == (dtype == torch.bfloat16)
    assert text.count("conv_cudnn") == text.count("conv_grad_cudnn") == 3
    assert "conv_aten" not in text and "conv_grad_aten" not in text


def test_lines_in_16_bits_are_images_of_one_line(planned: Planned) -> None:
    image = torch.ones(2, 4, 9, dtype=torch.bfloat16)
    text = plan_convolution(planned, nn.Conv1d(4, 8, 3).bfloat16(), image)
    assert "ChannelsLast" in text and "conv_cudnn" in text and "conv_grad_cudnn" in text


_VARYING: list[tuple[str, Callable[[Tensor, Tensor], Any], set[str]]] = [
    ("cumsum", lambda x, i: x.cumprod(1).logcumsumexp(1), set()),
    ("histc", lambda x, i: x.histc(4), {"aten.histc.default"}),
    ("median", lambda x, i: x.median(1), {"aten.median.dim"}),
    ("median-one", lambda x, i: x.median(), set()),
    ("index_add", lambda x, i: x.index_add(1, i, x), {"aten.index_add.default"}),
    ("prod", lambda x, i: x.scatter_reduce(1, i[None], x, "prod"), {"aten.scatter_reduce.two"}),
    ("amax", lambda x, i: x.scatter_reduce(1, i[None], x, "amax"), set()),
    ("put", lambda x, i: x.put(i, x[0], accumulate=True), {"aten.put.default"}),
]


def _varying(planned: Planned, compute: Callable[[Tensor, Tensor], Any]) -> set[str]:
    def function(x: Tensor, y: Tensor) -> Any:
        return compute(x, y.long())

    plan_function(planned, function, [3, 4], [4])
    return set(planned.pieces[0].facts()["nondeterministic_kernels"])


@pytest.mark.parametrize(("compute", "expected"), [row[1:] for row in _VARYING])
def test_operators_that_vary_from_run_to_run_are_named(
    planned: Planned, compute: Callable[[Tensor, Tensor], Any], expected: set[str]
) -> None:
    assert _varying(planned, compute) == expected


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_algorithms_do_not_vary(planned: Planned, warn_only: bool) -> None:
    def both(x: Tensor, i: Tensor) -> Any:
        return x.index_add(1, i, x), x.histc(4)

    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        varying = _varying(planned, both)
        assert varying == ({"aten.histc.default"} if warn_only else set())
    except torch._dynamo.exc.TorchRuntimeError as refused:
        # Without a deterministic form torch warns or refuses, at the capture unless it knows
        # the operator's shapes from an earlier one.
        assert not warn_only and "_histc_cuda" in str(refused)
    finally:
        torch.use_deterministic_algorithms(False)


def test_attention_with_dropout_is_torchs(planned: Planned) -> None:
    """Our own walks over strips from the host: thousands of launches where torch has one."""

    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.1)

    text = plan_function(planned, attention, [2, 3, 8, 16])
    assert "dispatcher" in text and "attention_cpu" not in text
    joint = planned.pieces[0].text("joint")
    # Pinned: what draws from torch's generator is never recomputed.
    assert "aten.scaled_dot_product_attention.default" in joint and "random=1" in joint


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
_EFFICIENT_BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward


def test_the_backward_of_flash_attention(planned: Planned) -> None:
    def both(q: Tensor) -> Any:
        q = q.bfloat16()
        out, lse, seq_q, seq_k, most_q, most_k, seed, offset, _ = _FLASH.default(q, q, q, 0.1)
        given = (out, q, q, q, out, lse, seq_q, seq_k, most_q, most_k, 0.1, False, seed, offset)
        return _FLASH_BACKWARD.default(*given)

    plan_function(planned, both, [2, 2, 8, 16])
    assert planned.pieces[0].facts()["nondeterministic_kernels"] == {
        "aten._scaled_dot_product_flash_attention_backward.default"
    }


def test_the_backward_of_efficient_attention(planned: Planned) -> None:
    def both(q: Tensor) -> Any:
        out, lse, seed, offset = _EFFICIENT.default(q, q, q, None, True, 0.1)
        given = (out, q, q, q, None, out, lse, seed, offset, 0.1, [True, True, True, False])
        return _EFFICIENT_BACKWARD.default(*given)[:3]

    plan_function(planned, both, [2, 2, 8, 16])
    assert planned.pieces[0].facts()["nondeterministic_kernels"] == {
        "aten._scaled_dot_product_efficient_attention_backward.default"
    }


def test_flash_attention_keeps_the_state_of_its_generator(planned: Planned) -> None:
    def attention(x: Tensor, w: Tensor) -> Tensor:
        q = (x * w).bfloat16().expand(2, 2, 3, 4).repeat(1, 1, 1, 8)
        return torch.ops.aten._scaled_dot_product_flash_attention.default(q, q, q, 0.1)[0].sum()

    text = plan_mixed(planned, attention)
    assert "dispatcher" in text


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="torch switches autocast on CUDA off where there is no GPU",
)
def test_autocast_on_cuda(planned: Planned) -> None:
    def cast(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.linear(x, w.expand(4, 4)).float().sum()

    plan_mixed(planned, cast)
    assert "bf16[" in planned.pieces[0].text("lowered")
