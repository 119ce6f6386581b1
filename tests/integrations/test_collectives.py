"""Collectives in a forward run in eager PyTorch, between the compiled pieces."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    meeting = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Contrasting(nn.Module):
    """The scores of a batch against those that all ranks have."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def gathered(self, f: Tensor) -> Tensor:
        everyone = [torch.zeros_like(f)]
        dist.all_gather(everyone, f)
        return torch.cat(everyone)

    def forward(self, x: Tensor) -> Tensor:
        f = self.a(x)
        scores: Tensor = self.b(f) @ self.gathered(f).t()
        return scores


class Reduced(Contrasting):
    def gathered(self, f: Tensor) -> Tensor:
        total = f.detach() * 2
        dist.all_reduce(total)
        return total


class Functional(Contrasting):
    def gathered(self, f: Tensor) -> Tensor:
        result: Tensor = functional.all_gather_tensor_autograd(f, 0, dist.group.WORLD)
        return result


@pytest.mark.filterwarnings("ignore:.*all_gather_tensor_autograd:FutureWarning")
@pytest.mark.parametrize("kind", [Contrasting, Reduced, Functional])
def test_values_and_gradients_are_those_of_eager(kind: type[Contrasting]) -> None:
    torch.manual_seed(0)
    eager = kind()
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    for _ in range(2):
        x = torch.randn(3, 4)
        want, found = eager(x), ours(x)
        torch.testing.assert_close(found, want)
        want.square().sum().backward()
        found.square().sum().backward()
    for (name, p), q in zip(eager.named_parameters(), ours.module.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, msg=name)
    report = last_run_report(ours)
    if kind is Functional:
        assert "is an asynchronous collective" in report["eager_pieces"][0], report
    else:
        assert report["compiled"] and "collective" in report["graph_breaks"][0], report


def test_other_compilers_rewrite_them_still() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(gm)
        return gm.forward

    torch.compile(Reduced(), backend=backend)(torch.randn(3, 4))
    assert len(graphs) == 1
