"""From TorchDynamo's torch-level graph to one functional ATen graph, traced on fake tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ortmodule_py.base.changing_numbers import Fixed, call_name, changes, value_now
from ortmodule_py.base.errors import CannotLower, Origin, origin_of
from ortmodule_py.base.torch_state import thread_state
from ortmodule_py.trace import gradient_effects, record
from ortmodule_py.trace.changed_data import Whole, Wholes, is_forgotten_behind, with_gradient_of
from ortmodule_py.trace.decompositions import float_arguments
from ortmodule_py.trace.decompositions.inner_gradients import formulas
from ortmodule_py.trace.detached_changes import changed_detached
from ortmodule_py.trace.drawn_numbers import in_eager_type
from ortmodule_py.trace.gradient_effects import GradMode
from ortmodule_py.trace.inner_gradients import (
    autograd_of,
    has_inner_gradients,
    inner_gradient,
    needing_no_gradient,
    require_gradient,
    require_gradient_of_level,
    sources_of_inner_gradients,
    with_user_backward,
)
from ortmodule_py.trace.observed_sizes import range_of_integers, refuse_resized
from ortmodule_py.trace.raised_errors import check, raise_unless
from ortmodule_py.trace.region_reuse import RegionReuse
from ortmodule_py.trace.strides.doubtful import (
    is_doubtful,
    is_pooled_by_rows,
    is_range_of_floats,
    is_restrided_dropout,
)
from ortmodule_py.trace.strides.eager import is_expanded
from ortmodule_py.trace.untraceable import why_untraceable
from ortmodule_py.trace.user_backward import GradientBody, refuse_changes

# ---- the trace ----------------------------------------------------------------------------------


@dataclass
class PieceTrace:
    """Runs Dynamo's graph once on functional fake tensors; keeps the facts that the ATen graph lacks."""

    gm: fx.GraphModule
    fake_mode: Any
    initial_grad_mode: bool
    eager_draws: bool
    bodies: list[GradientBody] = field(default_factory=list)
    checkpoints: int = 0
    fixed_numbers: list[Fixed] = field(default_factory=list)
    mutated: dict[int, Origin] = field(default_factory=dict)
    """Mutated inputs -> where."""
    changes: dict[int, Origin] = field(default_factory=dict)
    """Storage key -> where it was mutated last."""
    doubles: set[fx.Node] = field(default_factory=set)
    """Python's random numbers that are float64, and arithmetic on them."""
    unseen: set[int | None] = field(default_factory=set)
    """Inputs with a gradient whose data is changed where autograd does not see it."""
    seen: set[int | None] = field(default_factory=set)
    """Inputs with a gradient that are changed where it does."""
    reshapes: dict[int, Origin] = field(default_factory=dict)
    """Id of a tensor -> where its sizes, strides or storage were changed first."""
    output_count: int = 0
    output_strides: list[Any] = field(default_factory=list)
    """Of the outputs as the user's program made them: functional operators may choose others."""
    identical_outputs: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        turned_on = gradient_effects.turns_gradients_on(self.gm)
        self.grad_enabled = self.initial_grad_mode or turned_on
        self.has_inner_gradients = has_inner_gradients(self.gm)

    def run(self, inputs: Sequence[Any], preserved: Sequence[Any]) -> fx.Graph:
        """The functional graph; its outputs are those of the piece, then the new values of mutated inputs.

        Raises:
            CannotLower: the graph would differ from eager, or torch cannot trace it.
        """
        interpreter = _PieceInterpreter(self.gm, trace=self)
        with_gradient = [isinstance(x, Tensor) and x.requires_grad for x in inputs]

        def function(*args: Any) -> list[Any]:
            interpreter.start()
            outputs = list(interpreter.run(*args))
            self._note_results(with_gradient, args, outputs)
            return outputs + [
                args[i].detach() if i in self.unseen else args[i] for i in self.mutated
            ]

        try:
            inner = self.has_inner_gradients
            own = formulas() if inner or gradient_effects.has_tangents(self.gm) else None
            with needing_no_gradient(inputs if inner else ()):
                fake = self.fake_mode
                return record.record(function, inputs, fake, preserved, True, own, inner).graph
        except CannotLower:
            raise
        except Exception as error:  # whatever torch raises, the piece falls back to eager
            reason = why_untraceable("the whole piece", error)
            raise CannotLower(reason, interpreter.origin) from error

    def eager_strides(self) -> list[Any]:
        """Strides of each output in eager, None for other values: those that Dynamo found, unless its fake
        tensors may be wrong."""
        checks = (is_restrided_dropout, is_doubtful, is_range_of_floats)
        if any(check(node) for node in self.gm.graph.nodes for check in checks):
            return self.output_strides
        (output,) = self.gm.graph.find_nodes(op="output")
        known = [
            x.meta.get("example_value") if isinstance(x, fx.Node) else None for x in output.args[0]
        ]
        return [value.stride() if isinstance(value, Tensor) else None for value in known]

    def _note_results(
        self, with_gradient: Sequence[bool], args: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        """Record mutated inputs, and outputs that are inputs or views of them."""
        self.output_count = len(outputs)
        self.output_strides = [x.stride() if isinstance(x, Tensor) else None for x in outputs]
        for i, (required, arg) in enumerate(zip(with_gradient, args, strict=True)):
            if not record.is_traced(arg):
                continue
            if record.is_reshaped(arg):
                raise CannotLower(
                    "the sizes, strides or storage of an input are changed in place",
                    self.reshapes.get(id(arg), ("", "")),
                )
            if record.is_changed(arg):
                where = self.changes.get(record.storage_key(arg), ("", ""))
                if required and self.grad_enabled and i not in self.unseen - self.seen:
                    raise CannotLower(
                        "an input that requires a gradient is changed in place", where
                    )
                self.mutated[i] = where
        for j, out in enumerate(outputs):
            identical = (i for i, arg in enumerate(args) if record.is_traced(out) and out is arg)
            self.identical_outputs += [(j, i) for i in identical]


@dataclass
class _Operand:
    """An operand of the current node, as it was before."""

    node: fx.Node
    counter: Callable[[], int]
    count: int
    """Of its changes."""
    whole: Whole | None
    computed_by: fx.Node | None
    """The recorded node that computes the whole."""


class _PieceInterpreter(fx.Interpreter):
    """Runs torch-level nodes; replaces grad modes by `detach`, and inlines higher-order operators."""

    def __init__(
        self, gm: fx.GraphModule, *, trace: PieceTrace, tag: str = "", follow_grad_mode: bool = True
    ) -> None:
        super().__init__(gm, garbage_collect_values=True)
        self.trace = trace
        self.tag = tag
        self.follow_grad_mode = follow_grad_mode and trace.grad_enabled
        self.own: set[int] = set()
        """Storages of arguments of a function, by example, that it may change: nothing else reads them."""
        self.of_function = False
        """Whether this is the forward of an autograd.Function: only its backward passes gradients."""
        self.grad_mode = GradMode(trace.initial_grad_mode)
        self.origin: Origin = ("", "")
        self._detached: dict[fx.Node, Tensor] = {}
        self._hooks: dict[fx.Node, tuple[Any, list[tuple[fx.GraphModule, tuple[Any, ...]]]]] = {}
        """The result of a hook -> its tensor, and all hooks of it."""
        self._node: fx.Node | None = None
        self._last_recorded: fx.Node | None = None
        self._grad_storages: set[int] | None = None
        self._regions = RegionReuse(gm.graph)
        self._written: set[int] = set()
        """Storages that the current node changed."""
        self._wholes = Wholes()
        self._input_count = 0
        self._sources = sources_of_inner_gradients(gm.graph)
        self._apart = changed_detached(gm.graph) if self.follow_grad_mode else frozenset()

    def start(self) -> None:
        """Begin a new run."""
        self.grad_mode = GradMode(self.trace.initial_grad_mode)
        self._detached.clear()
        self._hooks.clear()
        self._wholes.clear()
        self._input_count = 0

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = super().placeholder(target, args, kwargs)
        assert self._node is not None
        self._wholes.add(self._node, value, self._input_count)
        self._input_count += 1
        return value

    def run_node(self, n: fx.Node) -> Any:
        regions = self._regions
        if self.trace.has_inner_gradients:
            with autograd_of(self.follow_grad_mode and self.grad_mode.enabled):
                return self._run_node(n)
        if not regions.repeats:
            return self._run_node(n)
        values = regions.reuse(n, self.env, self._state(), self.trace)
        if values is not None:
            self._last_recorded = record.last_recorded()
            self.env |= values
            return values[n]
        with regions.watched(n, self.env, self._state(), self.trace) as traced:
            traced.result = self._run_node(n)
            traced.written, traced.state = self._written, self._state()
        return traced.result

    def _state(self) -> Any:
        """What the trace of a call depends on beside the call."""
        return self.grad_mode.state(), thread_state()

    def _run_node(self, n: fx.Node) -> Any:
        self.origin = _line_at(n) if n.op.startswith("call") else self.origin
        self._node = n
        if n.op.startswith("call"):
            gradient_effects.refuse(n.target, self.follow_grad_mode, self.origin)
            self._refuse_subclass(n.meta.get("example_value"))
        self._written = set()
        before = self._change_counters(n)
        numbers = [self.env[node] for node in n.all_input_nodes if changes(self.env[node])]
        try:
            result = super().run_node(n)
        except CannotLower as error:
            error.origin = error.origin if any(error.origin) else self.origin
            raise
        except Exception as error:  # whatever torch raises, the piece falls back to eager
            raise CannotLower(why_untraceable(call_name(n.target), error), self.origin) from error
        fixed = tuple(value_now(number) for number in numbers if not changes(number))
        if fixed:
            self.trace.fixed_numbers.append((call_name(n.target), self.origin, fixed))
        self._check_changes(before)
        if n.op.startswith("call"):
            result = in_eager_type(n, result, self.trace.doubles)
            result = result.clone() if n in self._apart else result
            self._wholes.add(n, result)
        if n in self._sources:
            require_gradient(result)
        self._label_recorded()
        return result

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not n.op.startswith("call") or n.target is with_gradient_of:
            return super().fetch_args_kwargs_from_env(n)
        fetched: tuple[Any, ...] = fx.map_arg(n.args, self._fetch)
        fetched_kwargs: dict[str, Any] = fx.map_arg(n.kwargs, self._fetch)
        return fetched, fetched_kwargs

    def _refuse_subclass(self, example: Any) -> None:
        """Raise for a value that is traced as its parts: they are detached, so its gradient would be lost."""
        has_gradient = isinstance(example, Tensor) and example.requires_grad
        if has_gradient and is_traceable_wrapper_subclass(example):
            kind = type(example).__name__
            raise CannotLower(f"a {kind}, a tensor subclass, that has a gradient", self.origin)

    def _fetch(self, node: fx.Node) -> Any:
        """A value, detached if it requires a gradient that the current node does not pass on."""
        value = self.env[node]
        keeps = not self.follow_grad_mode or self.grad_mode.keeps_gradients_of(value)
        if keeps and not self.of_function:
            return value
        if not record.may_require_gradient(value):
            return value
        example = node.meta.get("example_value")
        if isinstance(example, Tensor) and not example.requires_grad:
            return value
        if node not in self._detached:
            self._detached[node] = value.detach()
        return self._detached[node]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in gradient_effects.GRAD_MODES:
            self._detached.clear()
            return self.grad_mode.change(target, *args)
        if target is torch._C._functorch.set_inplace_requires_grad_allowed:
            return None
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(target, args, kwargs)
        if target is raise_unless:
            return check(*args)
        if target is with_gradient_of:
            return self._with_gradient_of(*args)
        if target is torch.autograd.grad:
            return inner_gradient(*args, **kwargs)
        if target is torch._functorch.eager_transforms._set_tensor_requires_grad:
            return require_gradient_of_level(*args)
        self.grad_mode.note_transform(target)
        refuse_resized(target, args)
        if target is torch.arange:
            args, kwargs = range_of_integers(args, kwargs)
        if self.follow_grad_mode and gradient_effects.is_opaque(target):
            with gradient_effects.watched(target, self.origin):
                return super().call_function(target, args, kwargs)
        result = super().call_function(self._rewritten(target, args, kwargs), args, kwargs)
        by_rows = self._node is not None and is_pooled_by_rows(self._node, result)
        return result.contiguous() if by_rows else result

    def call_method(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target == "normal_" and self.trace.eager_draws and not is_dense(args[0]):
            # ATen draws in another order into tensors that are not contiguous; the functional form,
            # whose tensor is new, has no gaps.
            raise CannotLower("normal_ with eager's numbers into a tensor with gaps", self.origin)
        rewritten = self._rewritten(target, args, kwargs)
        if rewritten is not target:
            return rewritten(*args, **kwargs)
        if target == "requires_grad_":  # the value is a leaf, whose gradient nobody sees
            return args[0]
        if target == "item":
            with record.reading_numbers(self.trace.fake_mode):
                return super().call_method(target, args, kwargs)
        return super().call_method(target, args, kwargs)

    def _rewritten(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function, or its rewrite for float arguments that change."""
        eager_draws = self.trace.eager_draws
        return float_arguments.rewrite_for(target, args, kwargs, eager_draws) or target

    def _higher_order(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = target.name()
        if name == "tag_activation_checkpoint":
            self.trace.checkpoints += 1
            nested = self._nested(args[0], self.tag or "checkpoint", self.follow_grad_mode)
            return nested.run(*args[1:])
        if name == "autograd_function_apply":
            return self._autograd_function(args, kwargs)
        if name == "register_hook":
            return self._tensor_hook(*args)
        raise CannotLower(f"higher-order operator {name}", self.origin)

    def _nested(self, body: fx.GraphModule, tag: str, follow_grad_mode: bool) -> _PieceInterpreter:
        nested = type(self)(body, trace=self.trace, tag=tag, follow_grad_mode=follow_grad_mode)
        nested.grad_mode = copy.copy(self.grad_mode)
        nested.of_function = self.of_function
        nested.origin = self.origin
        return nested

    def _autograd_function(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inline the user's forward; a marker operator gives its outputs the user's backward."""
        forward, backward, *operands = args
        if kwargs.get("dirty_idx"):
            raise CannotLower(_CHANGES_INPUTS, self.origin)
        assert self._node is not None
        body = self._nested(forward, self.tag, False)
        body.of_function = self.trace.grad_enabled
        given = list(operands)
        for i, placeholder in enumerate(forward.graph.find_nodes(op="placeholder")):
            example = placeholder.meta.get("example_value")
            changed = isinstance(example, Tensor) and example._version > 0
            if changed and is_forgotten_behind(self._node, self._node.args[i + 2]):
                given[i] = given[i].clone()
                body.own.add(record.storage_key(example))
        outs, saved = body.run(*given)
        single = not isinstance(outs, (tuple, list))
        outs = [outs] if single else list(outs)
        apart = set(kwargs.get("non_differentiable_idx", ()))
        differentiable = [
            i for i, out in enumerate(outs) if i not in apart and record.may_require_gradient(out)
        ]
        inputs = [(i, operand) for i, operand in enumerate(operands) if isinstance(operand, Tensor)]
        if self.trace.grad_enabled and differentiable and inputs:
            known = {record.storage_key(v) for v in (*operands, *outs) if record.is_traced(v)}
            seen = [record.is_traced(v) and record.storage_key(v) in known for v in saved]

            def run(arguments: list[Any]) -> Any:
                gradients = fx.Interpreter(backward).run(*arguments)
                refuse_changes(arguments, [*(i in differentiable for i in range(len(outs))), *seen])
                return gradients

            outs = self._hand_over(run, outs, differentiable, inputs, list(saved))
        return outs[0] if single else tuple(outs)

    def _tensor_hook(self, tensor: Any, hook: fx.GraphModule, *captured: Any) -> Any:
        """A hook gets the whole gradient of its tensor, so the tensor must not be used before the hook."""
        if not self.trace.grad_enabled:
            return tensor
        assert self._node is not None
        hooked: Any = self._node.args[0]
        earlier = [node for node in hooked.users if node is not self._node and node < self._node]
        if any(map(_may_carry_gradient, earlier)):
            raise CannotLower("a hook on a tensor that was used before", self.origin)

        # Hooks of one tensor get the gradient one after the other, from the first to the last.
        tensor, hooks = self._hooks.get(hooked, (tensor, []))
        hooks = [*hooks, self._with_numbers(hook, captured)]
        self._hooks[self._node] = tensor, hooks

        def run(arguments: list[Any]) -> list[Any]:
            gradient, *read = arguments
            for hook, captured in hooks:
                given, read = read[: len(captured)], read[len(captured) :]
                changed = fx.Interpreter(hook).run(gradient, *given)
                gradient = gradient if changed is None else changed
            return [gradient]

        saved = [value for _, captured in hooks for value in captured]
        (result,) = self._hand_over(run, [tensor], [0], [(0, tensor)], saved)
        return result

    def _with_numbers(
        self, hook: fx.GraphModule, captured: tuple[Any, ...]
    ) -> tuple[fx.GraphModule, tuple[Any, ...]]:
        """The hook with the numbers that it reads from captured tensors, as Dynamo passes a float that changes.

        They are read in front of it, where they are numbers of the piece.
        """
        graph, given = copy.deepcopy(hook.graph), list(captured)
        for i, placeholder in enumerate(graph.find_nodes(op="placeholder")[1:]):
            users = list(placeholder.users)
            if users and all(node.target == "item" for node in users):
                given[i] = self.call_method("item", (given[i],), {})
                for node in users:
                    node.replace_all_uses_with(placeholder)
                    graph.erase_node(node)
        return fx.GraphModule(hook, graph), tuple(given)

    def _hand_over(
        self,
        run: Callable[[list[Any]], Any],
        outs: list[Any],
        differentiable: list[int],
        inputs: list[tuple[int, Any]],
        saved: list[Any],
    ) -> list[Any]:
        """`outs`, whose gradient is computed by `run` from all gradients and saved values."""
        plain_inputs = [(position, record.plain(value)) for position, value in inputs]
        plain_outs = [record.plain(out) for out in outs]
        plain_saved = [record.plain(value) for value in saved]
        body = GradientBody.of_user_backward(
            run, plain_outs, differentiable, plain_inputs, plain_saved
        )
        self.trace.bodies.append(body)
        with torch.no_grad():
            marked = torch.ops.ortmodule_py.custom_gradient(
                [outs[i] for i in differentiable],
                [value for _, value in inputs],
                [value for value in saved if isinstance(value, Tensor)],
                [torch.scalar_tensor(v, dtype=torch.float64) for v in saved if changes(v)],
                len(self.trace.bodies) - 1,
            )
        if self.trace.has_inner_gradients:
            own = dict(zip((id(outs[i]) for i in differentiable), marked, strict=True))
            saved = [own.get(id(value), value) for value in saved]
            given = [value for _, value in inputs]
            marked = with_user_backward(body.function, marked, given, saved)
        fresh = dict(zip(differentiable, marked, strict=True))
        return [
            fresh[i] if i in fresh else out.detach() if record.may_require_gradient(out) else out
            for i, out in enumerate(outs)
        ]

    def _with_gradient_of(self, data: Any, value: Any) -> Any:
        """`data` with a marker that its gradient goes to `value`."""
        if not self.trace.grad_enabled:
            return data
        run = lambda arguments: arguments[:1]  # noqa: E731
        return self._hand_over(run, [data.detach()], [0], [(0, value)], [])[0]

    # -- mutations

    def _change_counters(self, n: fx.Node) -> list[_Operand]:
        if not n.op.startswith("call"):
            return []
        operands = []
        for node in n.all_input_nodes:
            if record.is_traced(self.env[node]):
                counter = record.change_counter(self.env[node])
                operands.append(_Operand(node, counter, counter(), *self._whole_of(node)))
        return operands

    def _whole_of(self, node: fx.Node) -> tuple[Whole | None, fx.Node | None]:
        """What an operand is a view of, and if a change of it may be unseen by autograd the node that computes it."""
        example = node.meta.get("example_value")
        if not self.follow_grad_mode or self.module is not self.trace.gm:
            return None, None
        whole = self._wholes.of(example)
        seen = self.grad_mode.enabled and isinstance(example, Tensor) and example.requires_grad
        if whole is None or seen:
            return whole, None
        return whole, record.node_of(whole.value)

    def _check_changes(self, before: list[_Operand]) -> None:
        """Raise for mutations that a functional graph cannot represent.

        In eager a mutation under no_grad does not affect the gradient, and elements of an expanded
        tensor share memory.
        """
        for operand in before:
            node = operand.node
            value, detached = self.env[node], self._detached.get(node)
            if record.is_reshaped(value):
                self.trace.reshapes.setdefault(id(value), self.origin)
            if record.is_traced(detached) and record.is_reshaped(detached):
                raise CannotLower(
                    "sizes, strides or storage of a value with a gradient are changed in place "
                    "where gradients are off",
                    self.origin,
                )
            if operand.counter() == operand.count:
                continue
            self._written.add(record.storage_key(value))
            self.trace.changes[record.storage_key(value)] = self.origin
            example = node.meta.get("example_value")
            if isinstance(example, Tensor) and is_expanded(example):
                raise CannotLower("an expanded tensor is changed in place", self.origin)
            if self.of_function:
                refused = self._storages_with_gradient() - self.own
                if not isinstance(example, Tensor) or record.storage_key(example) in refused:
                    raise CannotLower(_CHANGES_INPUTS, self.origin)
                continue
            if not self.follow_grad_mode:
                continue
            if not isinstance(example, Tensor):
                raise CannotLower("an in-place change of a value of unknown origin", self.origin)
            if self._changes_unseen(operand, example):
                continue
            if example.requires_grad and self.grad_mode.enabled:
                continue
            if record.storage_key(example) in self._storages_with_gradient():
                raise CannotLower(
                    "a value with a gradient is changed in place where gradients are off",
                    self.origin,
                )

    def _changes_unseen(self, operand: _Operand, example: Tensor) -> bool:
        """Give a value back its own gradient, or none, if the change of its data is unseen by autograd."""
        whole, node, now = operand.whole, operand.node, self._node
        if whole is None or now is None:
            return False
        by_gradient = example.requires_grad and self.grad_mode.enabled
        if not whole.example.requires_grad:
            later = (user > now for user in (*node.users, *now.users))
            if not by_gradient or any(later):
                return False
            fresh = whole.value.detach()  # changed through `.data`
        elif by_gradient or not whole.may_be_changed_by(node, now):
            self.trace.seen.add(whole.index)
            return False
        else:
            self.trace.unseen.add(whole.index)
            assert operand.computed_by is not None
            plain = record.plain(whole.value)
            before = record.traced_like(plain, operand.computed_by, self.trace.fake_mode)
            fresh = self._with_gradient_of(whole.value, before)
        record.overwrite(whole.value, record.node_of(fresh), self.trace.fake_mode)
        return True

    def _storages_with_gradient(self) -> set[int]:
        if self._grad_storages is None:
            examples = [node.meta.get("example_value") for node in self.module.graph.nodes]
            self._grad_storages = {
                record.storage_key(e) for e in examples if isinstance(e, Tensor) and e.requires_grad
            }
        return self._grad_storages

    def _label_recorded(self) -> None:
        """Set origin and tag of the ATen nodes recorded since the last torch-level node."""
        graph = record.recorded_graph()
        for node in reversed(graph.nodes):
            if node is self._last_recorded or "origin" in node.meta:
                break
            node.meta["origin"] = self.origin
            if self._node is not None:
                node.meta["call"] = call_name(self._node.target)
                node.meta["torch_call"] = self._node
            node.meta["tag"] = self.tag
        self._last_recorded = record.last_recorded()


def _line_at(node: fx.Node) -> Origin:
    """The origin of a call; Dynamo gives none to those that enter a transform, so that of the next call."""
    origin = origin_of(node)
    while not origin[1] and node.next.op.startswith("call"):
        node = node.next
        origin = origin_of(node)
    return origin


_CHANGES_INPUTS = "an autograd.Function that changes its inputs in place"


def _may_carry_gradient(node: fx.Node) -> bool:
    example = node.meta.get("example_value")
    return not isinstance(example, Tensor) or example.requires_grad
