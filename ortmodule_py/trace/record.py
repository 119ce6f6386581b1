"""Records ATen graphs on fake tensors.

Wraps the private parts of torch for this: fake tensors in Dynamo's shape environment,
functionalization, composite operators that are not decomposed, and autocast inside of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, detect_fake_mode
from torch._library import simple_registry
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import (
    get_proxy_mode,
    get_proxy_slot,
    make_fx,
    track_tensor_tree,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from ortmodule_py.base.errors import CannotLower, Origin, origin_of
from ortmodule_py.trace.decompositions import float_rewrites
from ortmodule_py.trace.decompositions.masked_put import MASKED_PUT, masked_put
from ortmodule_py.trace.patched_kernels import EAGER_KERNELS, preserving, with_kernels
from ortmodule_py.trace.strides.eager import with_eager_strides, with_strides_kept

# ---- inputs -------------------------------------------------------------------------------------


def fake_inputs(
    example_inputs: Sequence[Any], placeholders: Sequence[fx.Node]
) -> tuple[FakeTensorMode, list[Any]]:
    """A new fake tensor per input, in Dynamo's shape environment, so that sizes are Dynamo's symbols.

    Raises:
        CannotLower: an input is a tensor subclass (as a DTensor of tensor parallelism), or quantized or
            sparse; with the line that uses it first.
    """
    context = TracingContext.try_get()
    fake_mode = context.fake_mode if context is not None else detect_fake_mode(list(example_inputs))
    if fake_mode is None:
        fake_mode = FakeTensorMode(shape_env=ShapeEnv())

    viewed = {id(value._base) for value in example_inputs if isinstance(value, Tensor)}

    def convert(value: Any, node: fx.Node) -> Any:
        if not isinstance(value, Tensor):
            return value
        if type(value) not in (Tensor, torch.nn.Parameter, FakeTensor):
            kind = type(value).__name__
            raise CannotLower(f"an input is a {kind}, a tensor subclass", _first_use(node))
        if value.layout is not torch.strided or value.is_quantized:
            reason = f"an input is a tensor of {value.dtype}, {value.layout}"
            raise CannotLower(reason, _first_use(node))
        if isinstance(value, FakeTensor):
            return value if value.fake_mode is fake_mode else fake_mode.from_tensor(value)
        known = node.meta.get("example_value")
        if isinstance(known, Tensor) and (value._is_view() or id(value) in viewed):
            # Of a view and the input that it is of, Dynamo gives one the symbols of the other, by their order.
            return fake_like(known, fake_mode)
        symbolic = context.tensor_to_context.get(value) if context is not None else None
        source = symbolic.tensor_source if symbolic is not None else None
        return fake_mode.from_tensor(
            value,
            static_shapes=symbolic is None,
            symbolic_context=symbolic,
            source=source,
            trace=False,
        )

    return fake_mode, list(map(convert, example_inputs, placeholders))


def _first_use(node: fx.Node) -> Origin:
    return next(map(origin_of, node.users), ("", ""))


def fake_like(value: Any, fake_mode: FakeTensorMode) -> Any:
    """A new fake tensor with the metadata of this one; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    with fake_mode:
        fresh = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
    return fresh.requires_grad_(value.requires_grad)


def integer_in(value: Any) -> torch.SymInt | None:
    """Dynamo's symbol for the value of this fake input, if it has one (numpy integers), else None."""
    read = getattr(value, "item_memo", None)
    return read if isinstance(read, torch.SymInt) else None


class _Functionalization(FunctionalTensorMode):
    """Tracks the in-place operator that runs: its functional form may choose other strides.

    With `alias_saved`, what torch's autograd saves is an alias, whose gradient is that of the value.
    """

    in_place = ""
    """Its name, or ""; a class attribute, as captures of several threads do not overlap."""

    def __init__(self, alias_saved: bool = False) -> None:
        super().__init__()
        self.alias_saved = alias_saved

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable and func.namespace not in ("aten", "prims"):
            # torch would replace it by a higher-order operator.
            raise CannotLower(f"the operator {func} changes its arguments (mutates_args)")
        if self.alias_saved and func is torch.ops.aten.detach.default and _is_above_autograd():
            func = torch.ops.aten.alias.default
        name = func.overloadpacket.__name__
        works_in_place = name.endswith("_") and not name.startswith("_") and func._schema.is_mutable
        writes = works_in_place and torch.Tag.inplace_view not in func.tags
        before = _Functionalization.in_place
        _Functionalization.in_place = name if writes else ""
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            _Functionalization.in_place = before


def _is_above_autograd() -> bool:
    """Whether autograd's kernel of the current call has not run: autograd itself detaches what it saves."""
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(
        torch._C.DispatchKey.AutogradFunctionality
    )


@contextlib.contextmanager
def eager_strides(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Give fake results the strides of eager; below all other modes, so that this is not traced."""
    dispatch = fake_mode.dispatch

    def corrected(func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = dispatch(func, types, args, kwargs or {})
        with fake_mode:
            if _Functionalization.in_place == func.overloadpacket.__name__ + "_":
                return with_strides_kept(args[0], result)
            return with_eager_strides(func, args, result)

    fake_mode.dispatch = corrected
    try:
        yield
    finally:
        del fake_mode.dispatch  # restores the method of the class


@contextlib.contextmanager
def reading_numbers(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Allow reads of fake tensors, which return an unbacked symbol."""
    before = fake_mode.allow_scalar_outputs
    fake_mode.allow_scalar_outputs = True
    try:
        yield
    finally:
        fake_mode.allow_scalar_outputs = before


# ---- assertions on data ------------------------------------------------------------------------

CHECKS = {
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
    torch.ops.aten._linalg_check_errors.default,
}
"""Operators without a result, which raise if their first operand is wrong."""


@contextlib.contextmanager
def _without_effect_tokens() -> Iterator[None]:
    """Since torch 2.13 functionalization orders these operators by tokens; a piece checks them at its end."""
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
    """Turn off oneDNN, whose recurrent layers have a workspace of a size known at run time only."""
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
    formulas: Mapping[Any, Callable[..., Any]] | None = None,
    runs_autograd: bool = False,
) -> fx.GraphModule:
    """The functional ATen graph of `function`, which gets functional tensors (see `is_traced`).

    With `keep_draws`, dead operators stay if they advance torch's generator. `formulas` take the place of
    operators of gradients. If the function `runs_autograd` of torch, the gradients of what it computes are part of
    the graph.
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
        preserving(preserved, runs_autograd=runs_autograd),
        fake_mode,
        enable_python_dispatcher(),
        with_kernels(EAGER_KERNELS),
        eager_strides(fake_mode),
        _without_effect_tokens(),
        _Functionalization(alias_saved=runs_autograd),
    ):
        with _without_onednn():
            own = {_RANDOM_BETWEEN: _random_between, MASKED_PUT: masked_put}
            table = {**(formulas or {}), **float_rewrites.table(), **own}
            traced = make_fx(functional, decomposition_table=table)(*inputs)
        _correct_facts(traced.graph)
    traced.graph.eliminate_dead_code(_draws_or_acts if keep_draws else None)
    return traced


_RANDOM_BETWEEN = getattr(torch.ops.aten.random, "from")


def _random_between(operand: Tensor, low: Any, high: Any, generator: Any = None) -> Tensor:
    """The same draws by the overload without `from`, a word that the code of a graph cannot hold."""
    if high is None or generator is not None:
        raise CannotLower("random_ without an upper bound or with a generator")
    return torch.ops.aten.random.to(operand, high - low) + low


_CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _correct_facts(graph: fx.Graph) -> None:
    """Before torch 2.13 the fake statistics of float64 attention are float32 instead of float64."""
    for node in graph.find_nodes(op="call_function", target=_CPU_ATTENTION):
        out, statistics = node.meta["val"]
        if out.dtype == torch.float64 and statistics.dtype != torch.float64:
            node.meta["val"] = (out, statistics.double())


def _draws_or_acts(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    is_kept = node.is_impure() or node.target in CHECKS
    return is_kept or torch.Tag.nondeterministic_seeded in tags


def _tracer() -> Any:
    """The tracer of the current recording."""
    mode = get_proxy_mode()
    assert mode is not None
    return mode.tracer


def recorded_graph() -> fx.Graph:
    """The graph of the current recording."""
    return _tracer().graph


def last_recorded() -> fx.Node | None:
    """The last node of the current recording."""
    return next(iter(reversed(recorded_graph().nodes)), None)


def node_of(value: FunctionalTensor) -> fx.Node:
    """The recorded node that computes this traced tensor."""
    return get_proxy_slot(plain(value), _tracer()).proxy.node


def _computed_by(node: fx.Node, fake: Tensor, fake_mode: FakeTensorMode) -> Tensor:
    """A new fake tensor with the metadata of `fake`, of which the recording knows that `node` computes it."""
    with _disable_current_modes():
        fresh: Tensor = fake_like(fake, fake_mode)
    track_tensor_tree(fresh, _tracer().proxy(node), constant=None, tracer=_tracer())
    return fresh


def traced_like(fake: Tensor, node: fx.Node, fake_mode: FakeTensorMode) -> FunctionalTensor:
    """A new traced tensor that `node` computes, with the metadata of `fake`."""
    return FunctionalTensor.to_functional(_computed_by(node, fake, fake_mode))


def overwrite(value: FunctionalTensor, node: fx.Node, fake_mode: FakeTensorMode) -> None:
    """Change the data of a traced tensor in place to what `node` computes, of the same metadata."""
    value.replace_(_computed_by(node, plain(value), fake_mode))
    value.commit_update()
    value.sync()


def _to_functional(value: Any) -> Any:
    return FunctionalTensor.to_functional(value) if isinstance(value, Tensor) else value


def is_traced(value: Any) -> bool:
    """Whether this is a functional tensor of the recorded function."""
    return isinstance(value, FunctionalTensor)


def plain(value: Any) -> Any:
    """The fake tensor inside a functional tensor; other values as they are."""
    if not isinstance(value, FunctionalTensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


def may_require_gradient(value: Any) -> bool:
    """Whether this is a tensor of a type that has gradients: floats and complex numbers."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def storage_key(value: Tensor) -> int:
    """Equal for tensors that share storage, also inside of transforms of torch.func."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return int(value.untyped_storage()._cdata)


def change_counter(value: Any) -> Callable[[], int]:
    """A function that counts mutations of the storage of a traced tensor; does not keep its wrapper alive."""
    elem = value.elem
    return lambda: torch._functionalize_mutation_counter(elem)


def is_changed(value: Any) -> bool:
    """Whether the data of this traced input was mutated."""
    return bool(torch._functionalize_has_data_mutation(value.elem))


def is_reshaped(value: Any) -> bool:
    """Whether sizes, strides or storage of this traced input were mutated."""
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
    """Marks `outputs` in the trace: their gradient is computed by the body with this index."""
    del inputs, saved, numbers, body
    return [
        torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device=out.device)
        for out in outputs
    ]


@dataclass
class TracedFunction:
    """A functional ATen graph recorded separately from the piece."""

    graph: fx.Graph

    def calls(self) -> list[fx.Node]:
        """The ATen calls, without size arithmetic."""
        return [
            node for node in self.graph.nodes if node.op == "call_function" and not _is_number(node)
        ]

    def outputs(self) -> list[Any]:
        """The function's results: nodes, numbers or None."""
        (output,) = self.graph.find_nodes(op="output")
        return list(output.args[0])

    def placeholders(self) -> list[fx.Node]:
        """One per argument."""
        return self.graph.find_nodes(op="placeholder")


def output_values(node: fx.Node) -> list[Any]:
    """The fake values of the outputs of a recorded call."""
    value = node.meta["val"]
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _is_number(node: fx.Node) -> bool:
    return not isinstance(node.meta.get("val"), (Tensor, tuple, list))
