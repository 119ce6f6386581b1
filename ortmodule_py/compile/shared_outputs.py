"""Outputs of a piece that share memory with each other or with an argument.

The engine returns each in memory of its own. Where forward goes on behind a graph break, it may change one
in place and read the other, so that views are made again: of the argument, or of the output that they view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_APART = object()
"""Instead of a layout: the output keeps memory of its own."""


@dataclass
class _View:
    """An output that is a view of an argument or of an output; sizes, strides and offset from its begin."""

    output: int
    root: int
    of_argument: bool
    carries_gradient: bool
    numbers: tuple[list[Any], list[Any], Any] | None
    """None for the same tensor."""


@dataclass
class SharedOutputs:
    """The views among the outputs of a piece."""

    views: list[_View]
    known: int
    """Outputs that Dynamo knows; roots of views may follow."""
    symbols: dict[Any, tuple[int, int]]
    """Symbol of a size -> argument and dimension, -1 for an argument that is the size."""
    _layouts: dict[Any, list[Any]] = field(default_factory=dict)

    def behind(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, whose outputs share memory as in eager PyTorch."""

        def shared(*args: Any) -> Any:
            outputs = list(run(*args))
            sizes = tuple(args[i] if d < 0 else args[i].shape[d] for i, d in self.symbols.values())
            if sizes not in self._layouts:
                self._layouts[sizes] = self._right_layouts(sizes, args, outputs)
            for view, layout in zip(self.views, self._layouts[sizes], strict=True):
                if layout is not _APART:
                    outputs[view.output] = _viewed(self._root(view, args, outputs), view, layout)
            return outputs[: self.known]

        return shared

    def _root(self, view: _View, args: Sequence[Any], outputs: Sequence[Any]) -> Any:
        return args[view.root] if view.of_argument else outputs[view.root]

    def _right_layouts(
        self, sizes: tuple[int, ...], args: Sequence[Any], outputs: Sequence[Any]
    ) -> list[Any]:
        """Of each view; _APART where the view would not hold what the engine has computed.

        Dynamo's example values have other strides than eager for some operators.
        """
        known = dict(zip(self.symbols, map(sympy.Integer, sizes), strict=True))
        layouts = [_layout(view, known) for view in self.views]
        for i, (view, layout) in enumerate(zip(self.views, layouts, strict=True)):
            root = self._root(view, args, outputs)
            # The gradient of `as_strided` of such a value is a mean over elements in one place.
            spread = view.carries_gradient and layout is not None and _overlaps(root)
            if spread or not _holds(outputs[view.output], root, view, layout):
                layouts[i] = _APART
        return layouts


def take_shared_outputs(gm: fx.GraphModule, may_add: bool) -> SharedOutputs | None:
    """The outputs that are views; None without any.

    With `may_add`, for a part of a module, what only views are returned of becomes a further output.
    """
    (output,) = gm.graph.find_nodes(op="output")
    placeholders = gm.graph.find_nodes(op="placeholder")
    outputs = list(output.args[0])
    known = len(outputs)
    symbols = _symbols(placeholders)
    roots = _roots(gm, outputs)
    views = []
    for i, node in enumerate(outputs[:known]):
        fake = value_of(node)
        root = None if fake is None else roots[storage_of(fake)]
        if root is None or root is node or not _is_view(fake, root, symbols):
            continue
        of_argument = root.op == "placeholder"
        if not of_argument and root not in outputs:
            others = (other for other in outputs[:known] if other is not node)
            if not may_add or not any(_shares(other, fake) for other in others):
                continue
            outputs.append(root)
        at = placeholders.index(root) if of_argument else outputs.index(root)
        views.append(_View(i, at, of_argument, fake.requires_grad, _numbers(fake, value_of(root))))
    if not views:
        return None
    output.args = (tuple(outputs),)
    gm.recompile()
    return SharedOutputs(views, known, symbols)


def views_of(gm: fx.GraphModule, arguments: Sequence[int]) -> SharedOutputs | None:
    """The outputs that are views of these arguments, as they are behind the run.

    None if one of them cannot be made again as a view.
    """
    (output,) = gm.graph.find_nodes(op="output")
    placeholders = gm.graph.find_nodes(op="placeholder")
    symbols, roots = _symbols(placeholders), {i: value_of(placeholders[i]) for i in arguments}
    views = []
    for j, node in enumerate(output.args[0]):
        fake = value_of(node)
        for i, base in roots.items():
            if fake is None or fake is base or storage_of(fake) != storage_of(base):
                continue
            if not _is_view(fake, placeholders[i], symbols):
                return None
            views.append(_View(j, i, True, fake.requires_grad, _numbers(fake, base)))
    return SharedOutputs(views, len(output.args[0]), symbols)


def _roots(gm: fx.GraphModule, outputs: list[Any]) -> dict[int, fx.Node]:
    """What values are views of, by their memory: its first value, or an output that is all of it."""
    roots: dict[int, fx.Node] = {}
    for node in gm.graph.nodes:
        if (fake := value_of(node)) is not None:
            roots.setdefault(storage_of(fake), node)
    for node in outputs:
        fake = value_of(node)
        if fake is None:
            continue
        root = roots[storage_of(fake)]
        if root.op != "placeholder" and root not in outputs and _is_whole(fake, root):
            roots[storage_of(fake)] = node
    return roots


def value_of(node: Any) -> Any:
    fake = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(fake, Tensor) or is_traceable_wrapper_subclass(fake):
        return None
    if torch._C._functorch.is_functorch_wrapped_tensor(fake):  # inside of vmap; it has no storage
        return None
    return fake if fake.layout is torch.strided and not fake.is_nested else None


def storage_of(fake: Tensor) -> int:
    return int(fake.untyped_storage()._cdata)


def _shares(node: Any, fake: Tensor) -> bool:
    other = value_of(node)
    return other is not None and storage_of(other) == storage_of(fake)


def _is_view(fake: Tensor, root: fx.Node, symbols: dict[Any, Any]) -> bool:
    """Whether a value can be made as a view of another, which lies in its memory as a whole."""
    base = value_of(root)
    if fake is base:
        return root.op != "placeholder"  # an argument that is returned is the argument
    if fake.requires_grad and not base.requires_grad:
        return False
    if fake.dtype != base.dtype or any(x.is_conj() or x.is_neg() for x in (fake, base)):
        return False
    if root.op != "placeholder" and not (base.is_contiguous() and base.storage_offset() == 0):
        return False
    sizes, strides, offset = _numbers(fake, base) or ([], [], 0)
    free = {s for n in (*sizes, *strides, offset) if isinstance(n, torch.SymInt) for s in _free(n)}
    return free <= symbols.keys()


def _is_whole(fake: Tensor, root: fx.Node) -> bool:
    base = value_of(root)
    same = fake.dtype == base.dtype and fake.requires_grad == base.requires_grad
    whole = fake.is_contiguous() and fake.storage_offset() == 0
    return same and whole and str(fake.numel()) == str(base.numel())


def _free(number: torch.SymInt) -> Any:
    return number.node.expr.free_symbols


def _numbers(fake: Tensor, base: Tensor) -> tuple[list[Any], list[Any], Any] | None:
    if fake is base:
        return None
    offset = fake.storage_offset() - base.storage_offset()
    return list(fake.shape), list(fake.stride()), offset


def _layout(view: _View, known: dict[Any, Any]) -> Any:
    if view.numbers is None:
        return None
    sizes, strides, offset = view.numbers
    return (
        [_evaluated(size, known) for size in sizes],
        [_evaluated(stride, known) for stride in strides],
        _evaluated(offset, known),
    )


def _holds(computed: Tensor, root: Tensor, view: _View, layout: Any) -> bool:
    """Whether the view has the values that the engine computed for it."""
    try:
        viewed = _viewed(root, view, layout).detach()
    except RuntimeError:  # beyond the memory
        return False
    if viewed.shape != computed.shape or viewed.dtype != computed.dtype:
        return False
    if not computed.is_floating_point():
        return torch.equal(viewed, computed)
    return torch.allclose(viewed, computed.detach(), rtol=1e-2, atol=1e-5, equal_nan=True)


def _overlaps(x: Tensor) -> bool:
    """Whether elements may share memory, as those of an expanded tensor do."""
    end = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= end:
            return True
        end += stride * (size - 1)
    return False


def _viewed(root: Tensor, view: _View, layout: Any) -> Tensor:
    if layout is None:
        return root
    sizes, strides, offset = layout
    root = root if view.carries_gradient else root.detach()
    return root.as_strided(sizes, strides, root.storage_offset() + offset)


def _symbols(placeholders: Sequence[fx.Node]) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for i, node in enumerate(placeholders):
        value = node.meta.get("example_value")
        sizes = enumerate(value.shape) if isinstance(value, Tensor) else [(-1, value)]
        for d, size in sizes:
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found.setdefault(size.node.expr, (i, d))
    return found


def _evaluated(number: Any, known: dict[Any, Any]) -> int:
    return (
        int(number.node.expr.xreplace(known)) if isinstance(number, torch.SymInt) else int(number)
    )
