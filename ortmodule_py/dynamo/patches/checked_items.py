"""Takes `if x.isnan().any().item():` and `if x.max().item() > 9:` as conditions on the tensor itself.

Dynamo breaks the graph where the number is read, before it sees that only an error may depend on it. Numbers that
follow from integers that are given (`content_numbers`, which asks first) stay numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import UserFunctionVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def positive(x: Tensor) -> Tensor:
        if (x < 0).any().item() or x.max().item() > 9:
            raise ValueError("negative or large")
        return x.sqrt()

    given = (torch.ones(3), -torch.ones(3), torch.ones(2) * 10)
    return trial(lambda: positive, *((x,) for x in given)) and not trial.graph_breaks


@patch(
    "items in conditions",
    "A condition on `item()` that only decides whether an error is raised breaks no graph.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.call_method"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "item" and not args and not kwargs and _decides(tx):
        fake = self.as_proxy().node.meta["example_value"]
        if fake.numel() == 1 and not fake.is_complex():
            return UserFunctionVariable(_exact).call_function(tx, [self], {})
    return call(self, tx, name, args, kwargs)


def _decides(tx: Any) -> bool:
    """Whether the next instructions jump by the number, or by a comparison of it with a constant."""
    names = [i.opname for i in tx.instructions[tx.instruction_pointer :][:4]]
    if names[:2] == ["LOAD_CONST", "COMPARE_OP"]:
        names = names[2:]
    return any(name.startswith("POP_JUMP") and name.endswith(_BY_TRUTH) for name in names[:1]) or (
        names[:1] == ["TO_BOOL"]
    )


_BY_TRUTH = ("IF_TRUE", "IF_FALSE")


def _exact(x: Tensor) -> Tensor:
    """A number that compares with others as the one of Python."""
    x = x.reshape(())
    return x.double() if x.is_floating_point() else x
