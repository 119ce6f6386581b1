"""Patches of torch for tracing: composites that are not decomposed, and Python kernels that differ from eager."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import DispatchKey
from torch._C._functorch import peek_interpreter_stack
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size
from torch._export.utils import (
    _get_decomp_for_cia,
    _is_preservable_cia_op,
    _special_op_to_preserve_cia,
)
from torch._functorch.pyfunctorch import (
    FuncTorchInterpreter,
    VmapInterpreter,
    retrieve_all_functorch_interpreters,
)
from torch.export.exported_program import (
    _AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE,
    _override_composite_implicit_decomp,
)
from torch.utils import _pytree as pytree

from ortmodule_py.trace.decompositions import composite_parts, recurrent_layers
from ortmodule_py.trace.decompositions.inner_gradients import (
    SPELLED_OUT,
    SPELLED_OUT_ALWAYS,
    Whole,
)

# ---- composite operators ------------------------------------------------------------------------


@functools.cache
def _composites() -> tuple[str, ...]:
    """How the overloads of composites are spelled, in order.

    Torch's own list makes an object of each of them, which takes a tenth of a small model's first step.
    """
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    spelled = {name.replace("::", ".") for name in names}
    full = {name if name.count(".") == 2 else f"{name}.default" for name in spelled}
    return tuple(sorted(full | {str(packet.default) for packet in _INTERPOLATIONS}))


def preserved_composites(known: Callable[[str], bool]) -> list[Any]:
    """Composite operators to keep whole: those `known` to the builder; the others are decomposed."""
    whole = [name for name in _composites() if name in _CHOOSE_BY_GRADIENT or known(name)]
    ops = [functools.reduce(getattr, name.split("."), torch.ops) for name in whole]
    return [op for op in ops if op not in _MAY_ALIAS and _is_preservable_cia_op(op)]


# On CUDA their decomposition omits results for backward if gradients are off, as in the trace of a
# piece: only the trace of the gradient may decompose them.
_CHOOSE_BY_GRADIENT = (str(torch.ops.aten.scaled_dot_product_attention.default),)

# Returns its operand itself if the dtype is the same, although its schema has no alias.
_MAY_ALIAS = (torch.ops.aten.type_as.default,)


_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU"}


# Composites whose decomposition has no op in the graph (`as_strided_` in channels_last), with the
# parts that autocast could cast.
_INSIDE = {
    torch.ops.aten.adaptive_avg_pool2d.default: ("aten::mean.dim", "aten::_adaptive_avg_pool2d")
}


def _casts_inside(op: Any, args: Any) -> bool:
    """Whether autocast would cast operands of this composite's parts, not of the composite itself."""

    def casts(name: str, device: str) -> bool:
        key = _AUTOCAST_KEYS[device]
        return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)

    devices = {leaf.device.type for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)}
    return any(
        torch.is_autocast_enabled(device)
        and not casts(op.name(), device)
        and (op not in _INSIDE or any(casts(part, device) for part in _INSIDE[op]))
        for device in devices & _AUTOCAST_KEYS.keys()
    )


def _decomposed_under_autocast(
    op: Any, whole: Callable[..., Any], parts: Callable[..., Any]
) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _casts_inside(op, (args, kwargs)):
            if not any(map(_has_gradient, pytree.tree_leaves((args, kwargs)))):
                return whole(*args, **kwargs)
            if op in SPELLED_OUT and not kwargs:
                if peek_interpreter_stack() is not None:
                    return SPELLED_OUT[op](*args)
                return Whole.apply(whole, SPELLED_OUT[op], *args)
            return parts(*args, **kwargs)
        if op is torch.ops.aten.cross_entropy_loss.default:
            # Autocast runs all its parts in float32, so it can stay whole on float32 operands.
            args, kwargs = pytree.tree_map_only(Tensor, _widened, (args, kwargs))
            with torch._C._DisableAutocast():
                return whole(*args, **kwargs)
        return parts(*args, **kwargs)

    return kernel


def _has_gradient(value: Any) -> bool:
    """Whether torch's autograd follows this value during the trace, which it cannot through a whole operator."""
    return isinstance(value, Tensor) and value.requires_grad and is_grad_enabled()


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def _spelled_out(op: Any, parts: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        result: Any = NotImplemented
        if any(map(_has_gradient, args)) and not kwargs:
            result = SPELLED_OUT_ALWAYS[op](*args)
        return parts(*args, **kwargs) if result is NotImplemented else result

    return kernel


@contextlib.contextmanager
def preserving(ops: Sequence[Any], runs_autograd: bool = False) -> Iterator[None]:
    """Do not decompose these composites, unless autocast acts inside of them, or autograd runs through them."""
    parts = {op: _get_decomp_for_cia(op) for op in ops}
    own = dict(composite_parts.PARTS)
    if runs_autograd:
        own |= {op: _spelled_out(op, _get_decomp_for_cia(op)) for op in SPELLED_OUT_ALWAYS}
    with (
        _override_composite_implicit_decomp(
            {**own, **dict.fromkeys(ops, _special_op_to_preserve_cia)}
        ),
        _without_wrong_decompositions(),
    ):
        for op in ops:
            for key in _AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE:
                op.py_kernels[key] = _decomposed_under_autocast(op, op.py_kernels[key], parts[op])
            op._dispatch_cache.clear()
        # Without preserved composites torch's autograd runs during the trace, too, and needs these parts.
        for op, function in own.items() if runs_autograd or not ops else ():
            op.py_kernels |= dict.fromkeys(_AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE, function)
            op._dispatch_cache.clear()
        yield


_WRONG_DECOMPOSITIONS = (
    # Its parameters differ from the operator's: `reduction` is taken for `size_average`, so that an
    # unreduced loss becomes a scalar.
    torch.ops.aten.nll_loss.default,
)


@contextlib.contextmanager
def _without_wrong_decompositions() -> Iterator[None]:
    """Hide entries of torch's table, which fake tensors with symbolic sizes use before a composite's own."""
    hidden = {
        op: decomposition_table.pop(op) for op in _WRONG_DECOMPOSITIONS if op in decomposition_table
    }
    try:
        yield
    finally:
        decomposition_table.update(hidden)


# ---- Python kernels that differ from eager ------------------------------------------------------

_Change = Callable[[DispatchKey, Callable[..., Any]], Callable[..., Any] | None]


def _as_second(_: Tensor, operand: Tensor, *__: Any) -> Tensor:
    return torch.empty_like(operand, memory_format=torch.contiguous_format)


def _as_first(operand: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(operand, memory_format=torch.contiguous_format)


# Operators that have no fake kernel, or only one in C++, where each size becomes a constant.
_SYMBOLIC: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.fractional_max_pool2d_backward.default: _as_second,
    torch.ops.aten.fractional_max_pool3d_backward.default: _as_second,
    torch.ops.aten.multi_margin_loss_backward.default: _as_second,
    torch.ops.aten.multilabel_margin_loss_backward.default: _as_second,
    torch.ops.aten._standard_gamma_grad.default: _as_first,
    torch.ops.aten._sample_dirichlet.default: _as_first,
    torch.ops.aten._dirichlet_grad.default: _as_first,
    torch.ops.aten.binomial.default: _as_first,
}


def _max_pool1d_with_indices(
    operand: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    wide = [1, *kernel], [1, *(stride or kernel)], [0, *padding], [1, *dilation]
    pool = torch.ops.aten.max_pool2d_with_indices.default
    pooled, indices = pool(operand.unsqueeze(-2), *wide, ceil_mode)
    return pooled.squeeze(-2), indices.squeeze(-2)


def _max_pool1d(operand: Tensor, *given: Any, **named: Any) -> Tensor:
    return _max_pool1d_with_indices(operand, *given, **named)[0]


def _adaptive_avg_pool3d(operand: Tensor, sizes: Sequence[int]) -> Tensor:
    if all(isinstance(size, int) and size == 1 for size in sizes):
        return operand.mean((-1, -2, -3), keepdim=True)
    pooled: Tensor = torch.ops.aten._adaptive_avg_pool3d.default(operand, sizes)
    return pooled


# Composites whose decomposition in C++ makes each size a constant, or has an operator that no functional graph can
# have: `as_strided` for images that are channels-last.
_SYMBOLIC_COMPOSITES: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.adaptive_avg_pool3d.default: _adaptive_avg_pool3d,
    torch.ops.aten.max_pool1d.default: _max_pool1d,
    torch.ops.aten.max_pool1d_with_indices.default: _max_pool1d_with_indices,
}


def _is_shared(transform: FuncTorchInterpreter) -> bool:
    return isinstance(transform, VmapInterpreter) and transform.randomness() == "same"


def _drawn(x: Tensor, p: float, of_channels: bool) -> Tensor:
    """What dropout draws. Where all members of a `vmap` share it, it has no dimension of the batch."""
    sizes = (*x.shape[:2], *(1 for _ in x.shape[2:])) if of_channels else x.shape
    if any(_is_shared(transform) for transform in retrieve_all_functorch_interpreters()):
        return torch.empty(sizes, dtype=x.dtype, device=x.device).bernoulli_(1 - p)
    return x.new_empty(sizes).bernoulli_(1 - p)


def _dropout_of_parts(of_channels: bool) -> Callable[..., Tensor]:
    def dropout(x: Tensor, p: float, train: bool) -> Tensor:
        if p == 0 or not train:
            return x
        return x * (_drawn(x, p, of_channels) / (1 - p) if p < 1 else torch.zeros_like(x))

    return dropout


_SELU_LIMIT = 1.7580993408473766


def _alpha_dropout_of_parts(of_channels: bool) -> Callable[..., Tensor]:
    def dropout(x: Tensor, p: float, train: bool) -> Tensor:
        if p == 0 or not train:
            return x
        if p == 1:
            return x * torch.zeros_like(x)
        scale = ((_SELU_LIMIT**2 * p + 1) * (1 - p)) ** -0.5
        kept = _drawn(x, p, of_channels)
        shift = (kept - 1) * (_SELU_LIMIT * scale) + _SELU_LIMIT * scale * p
        return x * (kept * scale) + shift

    return dropout


# Composites that read sizes as C++ ints under transforms of torch.func.
_TRANSFORMED: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.dropout.default: _dropout_of_parts(False),
    torch.ops.aten.feature_dropout.default: _dropout_of_parts(True),
    torch.ops.aten.alpha_dropout.default: _alpha_dropout_of_parts(False),
    torch.ops.aten.feature_alpha_dropout.default: _alpha_dropout_of_parts(True),
}
_ADDED = (
    (DispatchKey.Meta, _SYMBOLIC),
    (DispatchKey.CompositeImplicitAutograd, _SYMBOLIC_COMPOSITES),
    (DispatchKey.FuncTorchDynamicLayerFrontMode, _TRANSFORMED),
)


@contextlib.contextmanager
def with_kernels(changes: dict[Any, _Change]) -> Iterator[None]:
    """Replace the Python kernels of these operators by the results of the functions; None removes one.

    Also adds the symbolic kernels that torch does not have.
    """
    added = [op for _, kernels in _ADDED for op in kernels]
    before = {op: dict(op.py_kernels) for op in (*changes, *added)}
    for op, change in changes.items():
        changed = {key: change(key, kernel) for key, kernel in before[op].items()}
        op.py_kernels.clear()
        op.py_kernels.update({key: kernel for key, kernel in changed.items() if kernel})
        op._dispatch_cache.clear()
    for key, kernels in _ADDED:
        for op, kernel in kernels.items():
            op.py_kernels.setdefault(key, kernel)
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in before.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _dropout(operand: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that returns its operand if it draws nothing; torch's Python kernel makes a copy."""
    if p == 0 or not train:
        return operand
    return torch.ops.aten.native_dropout.default(operand, p, train)[0]


def _in_bfloat16(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """An LSTM in bfloat16 under autocast, as in oneDNN; torch's decomposition keeps the state in float32."""

    def lstm(input: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *rest: Any) -> Any:
        projects = hx[0].shape[-1] != hx[1].shape[-1]
        narrow = torch.is_autocast_enabled("cpu") and torch.backends.mkldnn.is_available()
        narrow = narrow and input.device.type == "cpu"
        if projects or not narrow or torch.get_autocast_dtype("cpu") != torch.bfloat16:
            return kernel(input, hx, params, *rest)
        cast = [value.bfloat16() for value in (input, *hx, *params)]
        with torch._C._DisableAutocast():
            return kernel(cast[0], cast[1:3], cast[3:], *rest)

    return lstm


def _whole(key: DispatchKey, kernel: Callable[..., Any]) -> Callable[..., Any] | None:
    """Keep the kernel for sizes alone: the decomposition is wrong, or several times slower."""
    return kernel if key == DispatchKey.Meta else None


def _resolved(packet: Any) -> _Change:
    """`vec`, which takes sizes or factors but no symbols in C++, in terms of the overload with sizes."""
    names = [argument.name for argument in packet.vec._schema.arguments]

    def vec(*args: Any, **kwargs: Any) -> Tensor:
        given = dict(zip(names, args, strict=False)) | kwargs
        operand, factors = given.pop("input"), given.pop("scale_factors", None)
        sizes = upsample_compute_output_size(operand.shape, given.pop("output_size", None), factors)
        scales = factors if factors is not None else [None] * len(sizes)
        result: Tensor = packet.default(operand, sizes, *given.values(), *scales)
        # Row-major in eager; the fake result keeps the operand's order of dimensions.
        return result.contiguous() if len(sizes) == 1 else result

    return lambda *_: vec


_INTERPOLATIONS = (
    torch.ops.aten.upsample_nearest1d,
    torch.ops.aten.upsample_nearest2d,
    torch.ops.aten.upsample_nearest3d,
    torch.ops.aten._upsample_nearest_exact1d,
    torch.ops.aten._upsample_nearest_exact2d,
    torch.ops.aten._upsample_nearest_exact3d,
    torch.ops.aten.upsample_linear1d,
    torch.ops.aten.upsample_bilinear2d,
    torch.ops.aten.upsample_trilinear3d,
    torch.ops.aten.upsample_bicubic2d,
    torch.ops.aten._upsample_bilinear2d_aa,
    torch.ops.aten._upsample_bicubic2d_aa,
)


def _recurrent(operator: Any) -> _Change:
    def change(_: DispatchKey, kernel: Callable[..., Any]) -> Callable[..., Any]:
        by_layers = recurrent_layers.stacked(operator, kernel)
        return _in_bfloat16(by_layers) if operator == torch.ops.aten.lstm.input else by_layers

    return change


EAGER_KERNELS: dict[Any, _Change] = {
    torch.ops.aten.dropout.default: lambda *_: _dropout,
    **{operator: _recurrent(operator) for operator in recurrent_layers.OPERATORS},
    # The decomposition also sums over target positions after the first -1 (torch 2.13).
    torch.ops.aten.multilabel_margin_loss_forward.default: _whole,
    # The decomposition multiplies by 0, so that an infinite gradient becomes NaN.
    torch.ops.aten.softshrink.default: lambda *_: None,
    **{packet.vec: _resolved(packet) for packet in _INTERPOLATIONS},
    **{packet.default: _whole for packet in _INTERPOLATIONS},
}
