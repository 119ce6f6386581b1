"""Arguments of operators that run through torch's dispatcher, noted by hand: nothing is traced."""

from __future__ import annotations

import torch
from torch import Tensor

from ortmodule_py import _C


def _piece(target: str, tensors: list[Tensor], arguments: list[tuple[str, object]]) -> object:
    """A piece with that one call, which gives one tensor like the first; the tensors come first among
    the arguments."""
    builder = _C.GraphBuilder()
    noted: list[tuple[str, object]] = []
    facts = []
    for position, (name, value) in enumerate(arguments):
        if not isinstance(value, Tensor):
            noted.append((name, value))
            continue
        sizes, strides = list(value.shape), list(value.stride())
        facts.append({"dtype": "float32", "sizes": sizes, "strides": strides})
        number = builder.input(f"x{position}", "user", "float32", sizes, strides, False)
        noted.append((name, builder.Val(number)))
    (result, *_) = builder.call(target, noted, [facts[0], None, None], ("", ""))
    builder.outputs([builder.Val(result)])
    piece = builder.finish(_C.PieceOptions())
    return piece(*tensors)[0]


def test_a_missing_tensor_is_undefined_where_the_schema_has_no_none() -> None:
    # `weight` and `reserve` are no optional tensors, as the sequence starts of attention's backward.
    grad, x = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    mean, scale = x.mean((0, 2)), x.var((0, 2), correction=0).add(1e-5).rsqrt()
    given = {
        "grad_out": grad,
        "input": x,
        "weight": None,
        "running_mean": None,
        "running_var": None,
    }
    given |= {"save_mean": mean, "save_var": scale, "update": True, "eps": 1e-5}
    given |= {"output_mask": [True, False, False], "reserve": None}
    ours = _piece("aten.batch_norm_backward.default", [grad, x, mean, scale], list(given.items()))
    leaf = x.clone().requires_grad_()
    torch.nn.functional.batch_norm(leaf, None, None, training=True).backward(grad)
    torch.testing.assert_close(ours, leaf.grad)
