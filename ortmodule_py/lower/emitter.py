"""Writes a captured piece into the graph builder: inputs, calls with their gradients, results."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py import _C
from ortmodule_py.base.changing_numbers import values_in
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.call_writer import CallWriter, is_size_arithmetic
from ortmodule_py.lower.inputs import name_and_kind
from ortmodule_py.lower.sizes.bound_symbols import BoundSymbols
from ortmodule_py.lower.tensor_meta import encode_int, tensor_meta
from ortmodule_py.trace import record
from ortmodule_py.trace.inner_gradients import NOT_DIFFERENTIATED
from ortmodule_py.trace.joint_trace import OVERWRITING_DRAWS, JointTrace, source_of
from ortmodule_py.trace.raised_errors import user_error
from ortmodule_py.trace.record import TracedFunction, output_values
from ortmodule_py.trace.untraceable import needs_values
from ortmodule_py.trace.user_backward import GradientBody

Trace = Callable[[Callable[..., Any], Sequence[Any], str], TracedFunction]
"""Traces a function of these arguments; the text names it in messages."""

_aten = torch.ops.aten
# New tensors take the shape, the dtype and the device of an operand, and no gradient reaches it.
_STOPS_GRADIENT = {
    _aten.detach,
    _aten.new_empty,
    _aten.new_empty_strided,
    _aten.new_zeros,
    _aten.new_ones,
    _aten.new_full,
    _aten.empty_like,
    _aten.zeros_like,
    _aten.ones_like,
    _aten.full_like,
}
# The result does not depend on the first operand, so the builder drops it; in eager the result still
# requires a gradient and the operand gets zeros.
_OVERWRITES = {
    torch.ops.aten.fill.Scalar,
    torch.ops.aten.fill.Tensor,
    torch.ops.aten.copy.default,
    *OVERWRITING_DRAWS,
}
_PUTS_BACK = {
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.slice_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
    torch.ops.aten.as_strided_scatter.default,
}
_DIFFERENTIABLE_OUTPUTS = {
    # The other outputs are statistics, which eager writes to buffers without autograd.
    torch.ops.aten._native_batch_norm_legit_functional.default: {0},
    torch.ops.aten.native_dropout.default: {0},
    # The other is the sum of weights, which the gradient reads.
    torch.ops.aten.nll_loss_forward.default: {0},
    torch.ops.aten.nll_loss2d_forward.default: {0},
}


def _differ_in_size(a: fx.Node, b: fx.Node) -> bool:
    """Whether one has fewer elements; dims of size 1 are ignored."""
    left, right = (
        [size for size in tensor_meta(node.meta["val"], None)["sizes"] if str(size) != "1"]
        for node in (a, b)
    )
    return left != right


@dataclass
class Emitter:
    """Writes a piece: inputs, calls with their gradients, results."""

    builder: _C.GraphBuilder
    graph: fx.Graph
    symbols: BoundSymbols
    bodies: list[GradientBody]
    trace: Trace
    grad_enabled: bool
    device: torch.device
    traced_gradients: list[str] = field(default_factory=list)
    checks: list[tuple[int, Callable[[Tensor], object]]] = field(default_factory=list)
    """Values that eager asserts on, and the operator that raises the error."""
    gradient_seconds: float = 0.0
    _differentiable: set[int] = field(default_factory=set)
    """Values that require a gradient in eager."""
    _reached: set[int] = field(default_factory=set)
    """Those of them whose gradient reaches an input; a user's backward may return none."""
    _joint_traces: dict[str, JointTrace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = CallWriter(self.symbols, self.builder, self.device)

    def inputs(self, given: Sequence[fx.Node], reals: Sequence[Any], fakes: Sequence[Any]) -> None:
        """Write the flat inputs, in order: those of Dynamo's graph, with their real and fake values."""
        placeholders = self.graph.find_nodes(op="placeholder")
        for node, source, real, fake in zip(placeholders, given, reals, fakes, strict=True):
            if not isinstance(fake, Tensor):
                self.writer.ids[node] = [self.symbols.bind_argument(fake)]
                continue
            meta = tensor_meta(node.meta["val"], self.builder)
            self.symbols.bind_sizes(encode_int(size, None) for size in fake.shape)
            value = self.builder.input(
                *name_and_kind(source, real),
                meta["dtype"],
                meta["sizes"],
                meta["strides"],
                bool(real.requires_grad),
            )
            self.writer.ids[node] = [value]
            if real.requires_grad and self.grad_enabled:
                self._differentiable.add(value)
                self._reached.add(value)

    def calls(self) -> None:
        """Write every operator."""
        for node in self.graph.nodes:
            if node.op != "call_function" or is_size_arithmetic(node):
                continue
            origin = node.meta.get("origin", ("", ""))
            try:
                self._call(node, origin, node.meta.get("tag", ""))
            except CannotLower as error:
                raise CannotLower(
                    error.reason, error.origin if any(error.origin) else origin
                ) from error
            except _C.ORTModuleError as error:
                named = origin[1] and origin[1] in str(error)
                raise CannotLower(str(error), ("", "") if named else origin) from error

    def _call(self, node: fx.Node, origin: tuple[str, str], tag: str) -> None:
        name = str(node.target)
        if name.startswith("aten._assert_tensor_metadata"):
            return  # Dynamo's guards imply it
        if node.target in record.CHECKS:
            self._check(node)
            return
        if name.startswith(("aten._assert", "aten.sym_constrain", "aten._functional_assert")):
            raise CannotLower(f"{name}: a check at run time")
        if node.target is torch.ops.ortmodule_py.custom_gradient.default:
            self._user_gradient(node, origin, tag)
            return
        differentiable = self._is_differentiable(node)
        if differentiable and self._forgets_operand(node):
            self._traced_gradient(node, origin, tag)
            return
        ids = self.writer.write(node, origin, tag, gradient=differentiable)
        if ids is None and self._needs_values(node):
            # As torch looks at values there, backward calls the operator again, with torch's own gradient.
            ids = self.writer.write(node, origin, tag)
            assert ids is not None
        if ids is None:
            self._traced_gradient(node, origin, tag)
        elif differentiable:
            self._mark(node, ids)

    def _check(self, node: fx.Node) -> None:
        """An assertion on data becomes an extra output, which the caller checks after forward."""
        value, *rest = node.args
        check: Any = node.target
        error = user_error(tuple(rest))

        def checked(x: Tensor) -> None:
            if error is not None and not x:
                raise error()
            check(x, *rest, **node.kwargs)

        self.checks.append((self.writer.id_of(value), checked))

    def _forgets_operand(self, node: fx.Node) -> bool:
        """Whether eager has a zero gradient for an operand that the builder would drop."""
        if node.target not in _OVERWRITES or not self._carries_gradient(node.args[0]):
            return False
        # If a part is scattered back into its base, the gradient of the base has the zeros.
        return not all(
            user.target in _PUTS_BACK and _differ_in_size(user, node) for user in node.users
        )

    def _carries_gradient(self, operand: Any) -> bool:
        return isinstance(operand, fx.Node) and self.writer.id_of(operand) in self._differentiable

    def _is_differentiable(self, node: fx.Node) -> bool:
        stops = getattr(node.target, "overloadpacket", None) in _STOPS_GRADIENT
        if not self.grad_enabled or stops or node.meta.get(NOT_DIFFERENTIATED):
            return False
        if node.target is operator.getitem:
            return self.writer.ids[node.args[0]][node.args[1]] in self._differentiable
        reaches = not self._differentiable.isdisjoint(self._operand_ids(node))
        return reaches and any(map(record.may_require_gradient, output_values(node)))

    def _operand_ids(self, node: fx.Node) -> list[int]:
        return [value for n in node.all_input_nodes for value in self.writer.ids.get(n, ())]

    def _mark(self, node: fx.Node, ids: list[int]) -> None:
        allowed = _DIFFERENTIABLE_OUTPUTS.get(node.target)
        operands = self._operand_ids(node)
        for position, (value, known) in enumerate(zip(ids, output_values(node), strict=True)):
            if record.may_require_gradient(known) and (allowed is None or position in allowed):
                self._differentiable.add(value)
                if not self._reached.isdisjoint(operands):
                    self._reached.add(value)

    def _mark_outputs(self, ids: list[int], inputs: list[int], gradients: list[Any]) -> None:
        """Mark the outputs of a call with a custom gradient; `gradients` are those of the inputs."""
        if self._differentiable.isdisjoint(inputs):
            return
        self._differentiable.update(ids)
        given = zip(inputs, gradients, strict=True)
        if any(value in self._reached and isinstance(g, fx.Node) for value, g in given):
            self._reached.update(ids)

    # -- gradients without a rule

    def _user_gradient(self, node: fx.Node, origin: tuple[str, str], tag: str) -> None:
        outputs, inputs, saved, numbers, number = node.args
        body = self.bodies[number]
        what = "the backward of an autograd.Function or a hook"
        traced = self._timed_trace(body.function, body.patterns, what)
        values = [self.writer.id_of(n) for n in outputs]
        given = [self.writer.id_of(n) for n in inputs]
        sink = self.builder.body(values)
        writer = CallWriter(self.symbols, sink, self.device)
        placeholders = traced.placeholders()
        for index in range(len(outputs)):
            self._gradient(writer, index, placeholders[index], origin, tag)
        for position, n in zip(body.saved_tensors, saved, strict=True):
            writer.ids[placeholders[position]] = [sink.body_input(self.writer.id_of(n))]
        for position, n in zip(body.saved_numbers, numbers, strict=True):
            writer.numbers[placeholders[position]] = sink.body_input(self.writer.id_of(n))
        _write_body(writer, sink, traced.calls(), traced.outputs(), origin, tag)
        ids = self.builder.custom_gradient(values, given, sink, False)
        self.writer.ids[node] = ids
        self._mark_outputs(ids, given, traced.outputs())

    def _traced_gradient(self, node: fx.Node, origin: tuple[str, str], tag: str) -> None:
        """Write an operator without a rule as the calls of its traced forward and gradient."""
        joint = self._joint_trace(node)
        writer = CallWriter(self.symbols, self.builder, self.device)
        placeholders = joint.traced.placeholders()
        operands = [self.writer.id_of(n) for n in joint.operands(node)]
        if not joint.differentiable:  # such as randn_like, which only reads the sizes
            operands = [self._detached(n, origin, tag) for n in joint.operands(node)]
        for placeholder, value in zip(placeholders, operands, strict=False):
            writer.ids[placeholder] = [value]
        for call in joint.forward:
            writer.write(call, origin, tag)
        self.writer.count += writer.count
        outputs = [writer.id_of(out) if isinstance(out, fx.Node) else -1 for out in joint.outputs]
        self.writer.ids[node] = outputs
        if not joint.differentiable:
            return
        found = [outputs[i] for i in joint.differentiable]
        body = self.builder.body(found)
        backward = CallWriter(self.symbols, body, self.device)
        results = {source_of(joint.outputs[i]): outputs[i] for i in joint.differentiable}

        def saved(n: fx.Node) -> int:
            source = source_of(n)
            if source in backward.ids:
                return backward.id_of(source)
            return body.body_input(results[source] if source in results else writer.id_of(source))

        backward.missing = saved
        for index, placeholder in enumerate(joint.gradient_placeholders):
            self._gradient(backward, index, placeholder, origin, tag)
        _write_body(backward, body, joint.backward, joint.gradients, origin, tag)
        inputs = [operands[i] for i in joint.inputs]
        fresh = self.builder.custom_gradient(found, inputs, body, True)
        replaced = dict(zip(joint.differentiable, fresh, strict=True))
        for position, known in enumerate(output_values(node)):
            if position in replaced:
                outputs[position] = replaced[position]
            elif outputs[position] >= 0 and record.may_require_gradient(known):
                # Autograd has no gradient of some results, as of the permutation of an LU decomposition.
                outputs[position] = self._detach(outputs[position], known, origin, tag)
        self._mark_outputs(fresh, inputs, joint.gradients)

    def _gradient(
        self,
        writer: CallWriter,
        index: int,
        placeholder: fx.Node,
        origin: tuple[str, str],
        tag: str,
    ) -> None:
        """Enter the gradient of an output, with the layout of the trace, in the writer of a body.

        The engine's gradients have any layout, and the trace has no `grad.contiguous()` of a backward function.
        """
        arguments = [("self", self.builder.Val(writer.sink.grad_input(index)))]
        outputs = [tensor_meta(placeholder.meta["val"], self.symbols)]
        ids = writer.sink.call("aten.alias.default", arguments, outputs, origin, tag)
        assert ids is not None
        writer.ids[placeholder] = ids

    def _detached(self, node: fx.Node, origin: tuple[str, str], tag: str) -> int:
        """The operand's id, detached if it requires a gradient."""
        value = self.writer.id_of(node)
        if value not in self._differentiable:
            return value
        return self._detach(value, node.meta["val"], origin, tag)

    def _detach(self, value: int, example: Tensor, origin: tuple[str, str], tag: str) -> int:
        arguments = [("self", self.builder.Val(value))]
        outputs = [tensor_meta(example, self.symbols)]
        ids = self.builder.call("aten.detach.default", arguments, outputs, origin, tag)
        assert ids is not None
        return ids[0]

    def _joint_trace(self, node: fx.Node) -> JointTrace:
        operands = JointTrace.operands(node)
        flags = [self.writer.id_of(n) in self._differentiable for n in operands]
        key = self._joint_key(node, operands, flags)
        if key not in self._joint_traces:
            what = f"the gradient of {node.meta.get('call', node.target)}"
            self._joint_traces[key] = JointTrace.of(
                node, flags, lambda function, args: self._timed_trace(function, args, what)
            )
            self.traced_gradients.append(str(node.target))
        return self._joint_traces[key]

    def _needs_values(self, node: fx.Node) -> bool:
        """Whether the gradient of an operator, which draws nothing, can only be computed of its operands' values."""
        try:
            self._joint_trace(node)
        except CannotLower as error:
            return needs_values(error) and torch.Tag.nondeterministic_seeded not in _tags(node)
        return False

    def _joint_key(self, node: fx.Node, operands: list[fx.Node], flags: list[bool]) -> str:
        """A cache key of the trace: operator, plain arguments, and the metadata of each tensor."""

        def text(value: Any) -> str:
            if isinstance(value, fx.Node):
                known = value.meta["val"]
                if isinstance(known, Tensor):
                    # The operand's position, too: f(x, y, x) is not f(x, y, y).
                    at = operands.index(value)
                    return f"{at} {tensor_meta(known, None)} {flags[at]}"
                return str(known)
            return (
                f"[{','.join(map(text, value))}]"
                if isinstance(value, (list, tuple))
                else repr(value)
            )

        named = [(k, text(v)) for k, v in node.kwargs.items()]
        return f"{node.target}|{text(list(node.args))}|{named}|{JointTrace.read(node)}"

    def _timed_trace(
        self, function: Callable[..., Any], patterns: Sequence[Any], what: str
    ) -> TracedFunction:
        start = time.perf_counter()
        traced = self.trace(function, patterns, what)
        self.gradient_seconds += time.perf_counter() - start
        return traced

    # -- results

    def results(
        self,
        output_count: int,
        mutated: Mapping[int, tuple[str, str]],
        identical: Sequence[tuple[int, int]],
        eager: Sequence[Any],
    ) -> None:
        """Write mutated inputs, outputs with the strides that `eager` gives, and checks.

        Raises:
            CannotLower: an output or mutation would differ from eager's.
        """
        (output,) = self.graph.find_nodes(op="output")
        values = list(output.args[0])
        self._check_devices(values[:output_count], {index for index, _ in identical}, mutated)
        self._check_gradients(values[:output_count], {index for index, _ in identical})
        for (index, where), value in zip(mutated.items(), values[output_count:], strict=True):
            new = self.writer.id_of(value)
            if new in self._differentiable:
                raise CannotLower("a value with a gradient is written into an input", where)
            self.builder.mutate(index, new)
        for output_index, input_index in identical:
            self.builder.alias_output(output_index, input_index)
        for index, (value, strides) in enumerate(zip(values, eager, strict=False)):
            if isinstance(value, fx.Node) and strides is not None:
                self._note_strides(index, value.meta["val"], strides)
        if fixed := values_in(values[:output_count]):
            self.writer.fixed_numbers.append(("the outputs", ("", ""), fixed))
        outputs = [self.writer.encode(value) for value in values[:output_count]]
        if any(isinstance(value, (float, str)) for value in outputs):
            raise CannotLower("an output is a number other than a size")
        self.builder.outputs(outputs + [self.builder.Val(value) for value, _ in self.checks])

    def _check_gradients(self, outputs: Sequence[Any], given_back: set[int]) -> None:
        """Raise if outputs require a gradient in eager and none of their gradients reaches an input.

        The engine's outputs would then not require one.
        """
        kept = [
            self.writer.id_of(value)
            for i, value in enumerate(outputs)
            if i not in given_back
            and isinstance(value, fx.Node)
            and isinstance(value.meta.get("val"), Tensor)
        ]
        if not self._differentiable.isdisjoint(kept) and self._reached.isdisjoint(kept):
            raise CannotLower("outputs that require a gradient and give none to any input")

    def _check_devices(
        self, outputs: Sequence[Any], given_back: set[int], mutated: Iterable[int]
    ) -> None:
        """Raise if an output or mutated input is on another device than the piece in eager."""
        inputs = self.graph.find_nodes(op="placeholder")
        kept = [value for i, value in enumerate(outputs) if i not in given_back]
        for node in kept + [inputs[i] for i in mutated]:
            known = node.meta.get("val") if isinstance(node, fx.Node) else None
            if isinstance(known, Tensor) and known.device != self.device:
                raise CannotLower(
                    f"a piece on {self.device} returns or changes a tensor on {known.device}"
                )

    def _note_strides(self, index: int, traced: Tensor, eager: Sequence[Any]) -> None:
        given, wanted = ([encode_int(n, None) for n in s] for s in (traced.stride(), eager))
        if given != wanted and len(given) == len(wanted):
            self.builder.output_strides(index, [encode_int(n, self.symbols) for n in eager])


def _tags(node: fx.Node) -> Sequence[Any]:
    return getattr(node.target, "tags", ())


def _write_body(
    writer: CallWriter,
    body: _C.GraphBuilder,
    calls: Iterable[fx.Node],
    gradients: Iterable[Any],
    origin: tuple[str, str],
    tag: str,
) -> None:
    for call in calls:
        writer.write(call, origin, tag)
    body.output([writer.id_of(grad) if isinstance(grad, fx.Node) else -1 for grad in gradients])
