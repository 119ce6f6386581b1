"""Recording ATen graphs on fake tensors: every entry point that is private to torch stands here.

Tested with torch 2.11 and 2.13. What the functions here hide: fake tensors in Dynamo's shape
environment, functionalization, composite operators that stay whole, autocast inside them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._decomp.decompositions import upsample_compute_output_size
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import (
    _collect_all_valid_cia_ops,
    _get_decomp_for_cia,
    _special_op_to_preserve_cia,
)
from torch._guards import TracingContext, detect_fake_mode
from torch._library import simple_registry
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.export.exported_program import (
    _AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE,
    _override_composite_implicit_decomp,
)
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from ortmodule_py.lower.builder import CannotLower
from ortmodule_py.trace.decompositions import (
    composite_parts,
    float_arguments,
    float_rewrites,
    recurrent_layers,
)
from ortmodule_py.trace.strides.eager import with_eager_strides, with_strides_kept

# ---- inputs -------------------------------------------------------------------------------------


def fake_inputs(example_inputs: Sequence[Any]) -> tuple[FakeTensorMode, list[Any]]:
    """A fresh fake tensor per input, in Dynamo's shape environment: sizes are the symbols it guards."""
    context = TracingContext.try_get()
    fake_mode = context.fake_mode if context is not None else detect_fake_mode(list(example_inputs))
    if fake_mode is None:
        fake_mode = FakeTensorMode(shape_env=ShapeEnv())

    def convert(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if type(value) not in (Tensor, torch.nn.Parameter, FakeTensor):
            raise CannotLower(f"an input is a {type(value).__name__}, a tensor subclass")
        if value.layout is not torch.strided or value.is_complex() or value.is_quantized:
            raise CannotLower(f"an input is a tensor of {value.dtype}, {value.layout}")
        if isinstance(value, FakeTensor):
            return value if value.fake_mode is fake_mode else fake_mode.from_tensor(value)
        symbolic = context.tensor_to_context.get(value) if context is not None else None
        source = symbolic.tensor_source if symbolic is not None else None
        return fake_mode.from_tensor(
            value,
            static_shapes=symbolic is None,
            symbolic_context=symbolic,
            source=source,
            trace=False,
        )

    return fake_mode, [convert(value) for value in example_inputs]


def fake_like(value: Any, fake_mode: FakeTensorMode) -> Any:
    """A new fake tensor with the facts of this one; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    with fake_mode:
        fresh = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
    return fresh.requires_grad_(value.requires_grad)


def integer_in(value: Any) -> torch.SymInt | None:
    """What reading this fake input gives, where Dynamo has a symbol for it: numpy's integers."""
    read = getattr(value, "item_memo", None)
    return read if isinstance(read, torch.SymInt) else None


# ---- composite operators ------------------------------------------------------------------------


@cache
def _preservable_composites() -> tuple[Any, ...]:
    # The order of a set of operators changes from process to process; nothing may depend on it.
    return tuple(sorted(_collect_all_valid_cia_ops(), key=str))


def preserved_composites(known: Callable[[str], bool]) -> list[Any]:
    """Composite operators that are known stay whole; the others decompose into parts that have rules."""
    return [
        op
        for op in _preservable_composites()
        if op not in _MAY_ALIAS and (op in _CHOOSE_BY_GRADIENT or known(str(op)))
    ]


# On CUDA their parts leave out what backward needs unless a gradient is recorded, and pieces are
# traced without: only the trace of the gradient may open them.
_CHOOSE_BY_GRADIENT = (torch.ops.aten.scaled_dot_product_attention.default,)

# Gives back its operand where the type is the same, whatever its schema says.
_MAY_ALIAS = (torch.ops.aten.type_as.default,)


_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU"}


# Of composites whose parts have no op in the graph (`as_strided_` in channels_last): what autocast
# could act on in them.
_INSIDE = {
    torch.ops.aten.adaptive_avg_pool2d.default: ("aten::mean.dim", "aten::_adaptive_avg_pool2d")
}


def _casts_inside(op: Any, args: Any) -> bool:
    """Whether autocast would act on parts of this composite, instead of on the whole."""

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


def _open_under_autocast(op: Any, whole: Callable[..., Any], parts: Callable[..., Any]) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _casts_inside(op, (args, kwargs)):
            return whole(*args, **kwargs)
        if op is torch.ops.aten.cross_entropy_loss.default:
            # All its parts run in float32, so it can stay whole, on float32.
            args, kwargs = pytree.tree_map_only(Tensor, _widened, (args, kwargs))
            with torch._C._DisableAutocast():
                return whole(*args, **kwargs)
        return parts(*args, **kwargs)

    return kernel


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


@contextlib.contextmanager
def _preserving(ops: Sequence[Any]) -> Iterator[None]:
    """Keep these composites whole, as far as autocast allows."""
    parts = {op: _get_decomp_for_cia(op) for op in ops}
    with (
        _override_composite_implicit_decomp(
            {**_PARTS, **dict.fromkeys(ops, _special_op_to_preserve_cia)}
        ),
        _without_wrong_decompositions(),
    ):
        for op in ops:
            for key in _AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE:
                op.py_kernels[key] = _open_under_autocast(op, op.py_kernels[key], parts[op])
            op._dispatch_cache.clear()
        # Where no composite stays whole, torch differentiates what is recorded, and needs the parts.
        for op in _PARTS if not ops else ():
            op.py_kernels |= dict.fromkeys(_AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE, _PARTS[op])
            op._dispatch_cache.clear()
        yield


_PARTS = {
    # Its C++ parts bound the norms in place where gradients are off, which a trace cannot see.
    torch.ops.aten.cosine_similarity.default: float_arguments.cosine_similarity,
    **composite_parts.PARTS,
}

_WRONG_DECOMPOSITIONS = (
    # Python's nll_loss takes other arguments than the operator: it reads `reduction` as
    # `size_average`, so that a loss that is not reduced comes out as a scalar.
    torch.ops.aten.nll_loss.default,
)


@contextlib.contextmanager
def _without_wrong_decompositions() -> Iterator[None]:
    """Fake tensors with symbolic sizes look here before they ask a composite for its parts."""
    hidden = {
        op: decomposition_table.pop(op) for op in _WRONG_DECOMPOSITIONS if op in decomposition_table
    }
    try:
        yield
    finally:
        decomposition_table.update(hidden)


# ---- Python kernels that differ from eager ------------------------------------------------------

_Change = Callable[[DispatchKey, Callable[..., Any]], Callable[..., Any] | None]


def _fractional_max_pool2d_backward(grad: Tensor, operand: Tensor, *_: Any) -> Tensor:
    return operand.new_empty(operand.shape)


# Operators whose only fake kernel is in C++, where each size becomes a constant.
_SYMBOLIC: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.fractional_max_pool2d_backward.default: _fractional_max_pool2d_backward
}


@contextlib.contextmanager
def _with_kernels(changes: dict[Any, _Change]) -> Iterator[None]:
    """Each Python kernel of these operators changed by a function; None takes it away. And what torch
    does not say in symbols."""
    before = {op: dict(op.py_kernels) for op in (*changes, *_SYMBOLIC)}
    for op, kernel in _SYMBOLIC.items():
        op.py_kernels.setdefault(DispatchKey.Meta, kernel)
        op._dispatch_cache.clear()
    for op, change in changes.items():
        changed = {key: change(key, kernel) for key, kernel in before[op].items()}
        op.py_kernels.clear()
        op.py_kernels.update({key: kernel for key, kernel in changed.items() if kernel})
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in before.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _dropout(operand: Tensor, p: float, train: bool) -> Tensor:
    """What draws nothing is its argument, where torch's Python kernel makes a copy."""
    if p == 0 or not train:
        return operand
    result: Tensor = torch.ops.aten.native_dropout.default(operand, p, train)[0]
    return result


def _in_bfloat16(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Under autocast oneDNN computes an LSTM in bfloat16; torch's own parts keep its state in float32."""

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
    """Only what says the sizes: the parts are wrong, or several times slower."""
    return kernel if key == DispatchKey.Meta else None


def _resolved(packet: Any) -> _Change:
    """`vec` takes sizes or factors, and in C++ no symbols: here it becomes the operator of sizes."""
    names = [argument.name for argument in packet.vec._schema.arguments]

    def vec(*args: Any, **kwargs: Any) -> Tensor:
        given = dict(zip(names, args, strict=False)) | kwargs
        operand, factors = given.pop("input"), given.pop("scale_factors", None)
        sizes = upsample_compute_output_size(operand.shape, given.pop("output_size", None), factors)
        scales = factors if factors is not None else [None] * len(sizes)
        result: Tensor = packet.default(operand, sizes, *given.values(), *scales)
        # Row-major in eager; a fake one keeps the order of the operand's dimensions.
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
        stacked = recurrent_layers.with_dropout(operator, kernel)
        return _in_bfloat16(stacked) if operator == torch.ops.aten.lstm.input else stacked

    return change


_EAGER_KERNELS: dict[Any, _Change] = {
    torch.ops.aten.dropout.default: lambda *_: _dropout,
    **{operator: _recurrent(operator) for operator in recurrent_layers.OPERATORS},
    # The parts sum over target positions behind the first -1, too (torch 2.13).
    torch.ops.aten.multilabel_margin_loss_forward.default: _whole,
    # The parts multiply by 0, so that the gradient is NaN where an infinite one arrives.
    torch.ops.aten.softshrink.default: lambda *_: None,
    **{packet.vec: _resolved(packet) for packet in _INTERPOLATIONS},
    **{packet.default: _whole for packet in _INTERPOLATIONS},
}


class _Functionalization(FunctionalTensorMode):
    """Knows which operator writes in place: what stands for it may lay its result out otherwise."""

    in_place = ""
    """Its name, or none; captures of several threads come one after the other."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable and func.namespace not in ("aten", "prims"):
            # torch would put a higher-order operator in its place.
            raise CannotLower(f"the operator {func} changes its arguments (mutates_args)")
        name = func.overloadpacket.__name__
        works_in_place = name.endswith("_") and not name.startswith("_") and func._schema.is_mutable
        writes = works_in_place and torch.Tag.inplace_view not in func.tags
        before = _Functionalization.in_place
        _Functionalization.in_place = name if writes else ""
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            _Functionalization.in_place = before


@contextlib.contextmanager
def eager_strides(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Below all other modes, so that what it does is not traced itself."""
    dispatch = fake_mode.dispatch

    def corrected(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = dispatch(func, types, args, kwargs or {})
        with fake_mode:
            if _Functionalization.in_place == func.overloadpacket.__name__ + "_":
                return with_strides_kept(args[0], result)
            return with_eager_strides(func, args, kwargs or {}, result)

    fake_mode.dispatch = corrected
    try:
        yield
    finally:
        del fake_mode.dispatch  # the class's again


@contextlib.contextmanager
def reading_numbers(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Let a fake tensor be read: the number has no value, but can be computed with."""
    before = fake_mode.allow_scalar_outputs
    fake_mode.allow_scalar_outputs = True
    try:
        yield
    finally:
        fake_mode.allow_scalar_outputs = before


def replayed(run: Callable[..., Any], inputs: Sequence[Any], fake_mode: FakeTensorMode) -> Any:
    """The outputs of Dynamo's graph as fake tensors, where Dynamo's own cannot be relied on."""
    arguments = [fake_like(value, fake_mode) for value in inputs]
    for argument, value in zip(arguments, inputs, strict=True):
        if integer_in(value) is not None:
            argument.item_memo = value.item_memo
    with (
        torch.no_grad(),
        fake_mode,
        enable_python_dispatcher(),
        _with_kernels(_EAGER_KERNELS),
        eager_strides(fake_mode),
    ):
        return run(*arguments)


# ---- checks of data ----------------------------------------------------------------------------

CHECKS = {
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._linalg_check_errors.default,
}
"""Operators that only raise, where their first operand is not as it should be."""


@contextlib.contextmanager
def _without_effect_tokens() -> Iterator[None]:
    """From 2.13 on functionalization asks for tokens that order these operators among others."""
    holders = [simple_registry.singleton.find(op.name()).effect for op in CHECKS]
    before = [holder._effect for holder in holders]
    for holder in holders:
        holder._effect = None
    try:
        yield
    finally:
        for holder, effect in zip(holders, before, strict=True):
            holder._effect = effect


# ---- recording ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    """oneDNN's recurrent layers keep a workspace whose size only a run can tell."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def record(
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    fake_mode: FakeTensorMode,
    preserved: Sequence[Any] = (),
    keep_draws: bool = False,
) -> fx.GraphModule:
    """The functional ATen graph of `function`, which sees functional tensors (see `is_traced`).

    With `keep_draws`, operators stay that nothing reads but that advance torch's generator.
    """

    def functional(*args: Any) -> list[Any]:
        # The C++ functionalization layer must not run above the Python one.
        with torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        ):
            outputs = function(*[_to_functional(arg) for arg in args])
        return [plain(out) for out in outputs]

    with (
        torch.no_grad(),
        _preserving(preserved),
        fake_mode,
        enable_python_dispatcher(),
        _with_kernels(_EAGER_KERNELS),
        eager_strides(fake_mode),
        _without_effect_tokens(),
        _Functionalization(),
    ):
        with _without_onednn():
            traced = make_fx(functional, decomposition_table=float_rewrites.table())(*inputs)
        _correct_facts(traced.graph)
    traced.graph.eliminate_dead_code(_draws_or_acts if keep_draws else None)
    return traced


_CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _correct_facts(graph: fx.Graph) -> None:
    """Before 2.13 a fake tensor says float32 where attention's statistics are float64, as its operands."""
    for node in graph.find_nodes(op="call_function", target=_CPU_ATTENTION):
        out, statistics = node.meta["val"]
        if out.dtype == torch.float64 and statistics.dtype != torch.float64:
            node.meta["val"] = (out, statistics.double())


def _draws_or_acts(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    is_kept = node.is_impure() or node.target in CHECKS
    return is_kept or torch.Tag.nondeterministic_seeded in tags


def recorded_graph() -> fx.Graph:
    """The graph that is being recorded."""
    mode = get_proxy_mode()
    assert mode is not None
    graph: fx.Graph = mode.tracer.graph
    return graph


def _to_functional(value: Any) -> Any:
    return FunctionalTensor.to_functional(value) if isinstance(value, Tensor) else value


def is_traced(value: Any) -> bool:
    """Whether this is a tensor of the recorded function."""
    return isinstance(value, FunctionalTensor)


def plain(value: Any) -> Any:
    """The fake tensor of a tensor of the recorded function; other values as they are."""
    if not isinstance(value, FunctionalTensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


def storage_key(value: Tensor) -> int:
    """Equal for tensors that share storage."""
    return int(value.untyped_storage()._cdata)


def change_counter(value: Any) -> Callable[[], int]:
    """Counts the in-place changes of the storage of a traced tensor; does not keep its wrapper."""
    elem = value.elem
    return lambda: torch._functionalize_mutation_counter(elem)


def is_changed(value: Any) -> bool:
    """Whether the content of this traced input was changed in place."""
    return bool(torch._functionalize_has_data_mutation(value.elem))


def is_reshaped(value: Any) -> bool:
    """Whether sizes, strides or storage of this traced input were changed in place."""
    metadata = torch._functionalize_has_metadata_mutation(value.elem)
    return bool(metadata or torch._functionalize_was_storage_changed(value.elem))


_LIBRARY = torch.library.Library("ortmodule_py", "FRAGMENT")
_LIBRARY.define(
    "custom_gradient(Tensor[] outputs, Tensor[] inputs, Tensor[] saved, Tensor[] numbers, int body)"
    " -> Tensor[]"
)


@torch.library.impl(_LIBRARY, "custom_gradient", "CompositeExplicitAutograd")
def _custom_gradient(
    outputs: list[Tensor],
    inputs: list[Tensor],
    saved: list[Tensor],
    numbers: list[Tensor],
    body: int,
) -> list[Tensor]:
    """Marks `outputs` in the trace: from here on their gradient is that of the body with this number."""
    del inputs, saved, numbers, body
    return [
        torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device=out.device)
        for out in outputs
    ]
