"""Saves a trained module as one ONNX file, which onnxruntime and our InferenceSession run alike."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ortmodule_py import _C
from ortmodule_py.compile.onnx_files import row_major_bytes
from ortmodule_py.module import ORTModule, as_ortmodule, quiet_twin

_PREFIX = "module."


class _Flat(nn.Module):
    """A module whose arguments are the leaves of the module's, and whose results are tensors."""

    def __init__(self, module: nn.Module, spec: Any) -> None:
        super().__init__()
        self.module = module
        self._spec = spec
        self.training = module.training

    def forward(self, *flat: Any) -> tuple[Tensor, ...]:
        args, kwargs = pytree.tree_unflatten(list(flat), self._spec)
        # A copy: Dynamo returns arguments, and tensors that are returned twice, beside the graph.
        return tuple(t.clone() for t in _tensors(self.module(*args, **kwargs)))


def save_onnx(
    model: Any,
    path: str | os.PathLike[str],
    *example_inputs: Any,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: Mapping[str, Mapping[int, Any]]
    | Sequence[Mapping[int, Any] | None]
    | None = None,
    **example_kwargs: Any,
) -> None:
    """Save an ORTModule in evaluation mode as an ONNX file with its weights.

    Args:
        model: an ORTModule. It is captured in evaluation mode and left as it is.
        path: the file, which is replaced. Weights above 1 GiB go to `<path>.data`.
        example_inputs, example_kwargs: arguments of forward. Their tensors are the file's inputs;
            other values become part of the graph.
        input_names: names of the tensors, in order; otherwise those of forward's parameters.
        output_names: names of the tensors among the results, in order.
        dynamic_shapes: names of the sizes that may change, by input (name or position) and
            dimension: `{"x": {0: "batch"}}`. All other sizes are those of the example.

    Raises:
        TypeError: `model` is not an ORTModule.
        ValueError: names or `dynamic_shapes` that do not fit the example's tensors.
        ORTModuleError: the model has a graph break (its line is named), an operator without an ONNX
            form, or a fixed size that should change.
    """
    original = as_ortmodule(model, "save_onnx")._original
    leaves, spec = pytree.tree_flatten((example_inputs, example_kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    names = list(input_names or _names(original, example_inputs, example_kwargs))
    if len(names) != len(tensors) or len(set(names)) != len(names):
        raise ValueError(
            f"[save_onnx] input_names must have {len(tensors)} different names, but found {names}"
        )
    inputs_by_name = dict(zip(names, tensors, strict=True))
    dynamic = _dynamic(dynamic_shapes, {name: t.dim() for name, t in inputs_by_name.items()})
    piece, outputs = _captured(model, original, leaves, spec, inputs_by_name, dynamic)
    found = [f"output_{i}" for i in range(outputs)] if outputs != 1 else ["output"]
    results = list(output_names or found)
    if len(results) != outputs:
        raise ValueError(f"[save_onnx] output_names must have {outputs} names, but found {results}")
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    inputs = [
        (
            f"flat[{place}]",
            name,
            str(leaves[place].dtype).removeprefix("torch."),
            list(leaves[place].shape),
            dynamic.get(name, {}),
        )
        for place, name in zip(places, names, strict=True)
    ]
    data = _data(piece, original)
    _C.save_model(piece.graph("exported"), os.fspath(path), data, inputs, results, _PREFIX)


def _data(piece: Any, original: nn.Module) -> dict[str, Any]:
    """The bytes of constants and weights, by their names in the piece."""
    data = {name: row_major_bytes(tensor) for name, tensor in piece.constants().items()}
    weights = dict(original.named_parameters(remove_duplicate=False))
    weights.update(original.named_buffers(remove_duplicate=False))
    for name in piece.weight_names():
        data[name] = row_major_bytes(weights[name.removeprefix(_PREFIX)])
    return data


def _captured(
    model: ORTModule,
    original: nn.Module,
    leaves: list[Any],
    spec: Any,
    tensors: dict[str, Tensor],
    dynamic: dict[str, dict[int, str]],
) -> tuple[Any, int]:
    """The module's only piece, captured in evaluation mode, and the number of its outputs."""
    for name, sizes in dynamic.items():
        for dim in sizes:
            if tensors[name].shape[dim] < 2:
                raise ValueError(
                    f"[save_onnx] a size that may change must be at least 2 in the example, but found "
                    f"{tensors[name].shape[dim]} for dimension {dim} of {name!r}"
                )
            torch._dynamo.maybe_mark_dynamic(tensors[name], dim)
    modes = {module: module.training for module in original.modules()}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        original.eval()
        torch.backends.mha.set_fastpath_enabled(False)  # an operator that ONNX lacks
        twin = quiet_twin(model, _Flat(original, spec))
        twin._set_options(replace(twin._engine_options, fullgraph=True, bypass=False))
        with torch.no_grad():
            results = twin(*leaves)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, training in modes.items():
            module.training = training
    pieces = twin._compiler.pieces
    if len(pieces) != 1:
        report = twin._report()
        why = "; ".join(report.graph_breaks + report.eager_pieces) or "it has no operator"
        raise _C.ORTModuleError(
            f"[save_onnx] the model must be one graph, but found {len(pieces)} pieces: {why}"
        )
    return pieces[0].compiled, len(results)


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in pytree.tree_flatten(value)[0] if isinstance(t, Tensor)]


def _names(module: nn.Module, args: Any, kwargs: Any) -> list[str]:
    """Names of the tensors: those of forward's parameters, with the place inside of nested ones."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    found = []
    for path, leaf in pytree.tree_flatten_with_path(dict(bound))[0]:
        if isinstance(leaf, Tensor):
            keys = [str(getattr(key, "key", getattr(key, "idx", key))) for key in path]
            found.append("_".join(keys))
    return found


def _dynamic(given: Any, ranks: dict[str, int]) -> dict[str, dict[int, str]]:
    if given is None:
        return {}
    names = list(ranks)
    if not isinstance(given, Mapping) and len(given) > len(names):
        raise ValueError(
            f"[save_onnx] dynamic_shapes must have at most one row for each of {names}, but found "
            f"{len(given)}"
        )
    rows = given.items() if isinstance(given, Mapping) else zip(names, given, strict=False)
    dynamic: dict[str, dict[int, str]] = {}
    for name, sizes in rows:
        if name not in names:
            raise ValueError(
                f"[save_onnx] dynamic_shapes must name inputs of {names}, but found {name!r}"
            )
        if sizes:
            dynamic[name] = {
                _checked_dim(dim, name, ranks[name]): str(getattr(size, "__name__", size))
                for dim, size in dict(sizes).items()
            }
    return dynamic


def _checked_dim(dim: Any, name: str, rank: int) -> int:
    """The dimension, counted from the front."""
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise ValueError(
            f"[save_onnx] a dimension of {name!r} must be from {-rank} to {rank - 1}, but found {dim!r}"
        )
    return dim % rank
