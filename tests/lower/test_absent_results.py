"""Results of operators that their op in the engine does not compute."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from ortmodule_py import _C
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.call_writer import CallWriter
from tests.semantics import Calls, as_in_eager, assert_whole


def _statistics(self: Any, x: Tensor) -> Any:
    """A norm saves none where they are given."""
    given = self.norm.running_mean, self.norm.running_var
    return torch.native_batch_norm(self.fc(x), None, None, *given, False, 0.1, 1e-5)


def test_empty_results_are_eagers() -> None:
    def step(model: Any) -> Any:
        results = model(torch.ones(3, 4))
        results[0].square().sum().backward()
        return results

    assert_whole(as_in_eager(Calls(_statistics, norm=nn.BatchNorm1d(4)), step))


def test_others_are_left_to_eager() -> None:
    graph = fx.Graph()
    call = graph.call_function(torch.ops.aten.native_dropout.default)
    mask = graph.call_function(operator.getitem, (call, 1))
    mask.meta["val"] = torch.ones(3)
    graph.output(mask)
    builder = _C.GraphBuilder(False, "cpu")
    writer = CallWriter(builder, builder, torch.device("cpu"), ids={call: [0, -1]})
    with pytest.raises(CannotLower, match=r"result 1 of aten\.native_dropout\.default"):
        writer.write(mask, ("", ""), "")
