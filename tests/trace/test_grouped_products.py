"""Products of groups of rows, as layers of experts have them."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers.integrations.moe
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET

ENDS = torch.tensor([5, 5, 17, 30], dtype=torch.int32)


class Experts(nn.Module):
    def __init__(self, transposed: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        sizes = (4, 24, 16) if transposed else (4, 16, 24)
        self.weight = nn.Parameter(torch.randn(sizes, generator=generator))
        self.transposed = transposed

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        weight = self.weight.mT if self.transposed else self.weight
        return torch.nn.functional.grouped_mm(x, weight, offs=ends)

    def one_by_one(self, x: Tensor, ends: Tensor) -> Tensor:
        weight = self.weight.mT if self.transposed else self.weight
        bounds = [0, *ends.tolist()]
        rows = [
            x[first:last] @ part
            for first, last, part in zip(bounds, bounds[1:], weight, strict=False)
        ]
        return torch.cat([*rows, torch.zeros_like(x[bounds[-1] :] @ weight[0])])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("transposed", [False, True])
def test_each_group_has_its_weights(transposed: bool, dtype: torch.dtype) -> None:
    """Rows of no group give 0, and so does their gradient, where torch leaves what was in memory."""
    eager = Experts(transposed).to(dtype)
    model = ORTModule(copy.deepcopy(eager), QUIET)
    for rows in (30, 33):
        x, grad = torch.randn(rows, 16).to(dtype), torch.randn(rows, 24).to(dtype)
        results = []
        for module, forward in ((model, model), (eager, eager.one_by_one)):
            module.zero_grad()
            given = x.clone().requires_grad_()
            y = forward(given, ENDS)
            y.backward(grad)
            results.append((y.detach(), given.grad, *(p.grad for p in module.parameters())))
        torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)
    report = last_run_report(model)
    assert report["compiled"] and report["captures"] == 1 and not report["nodes_aten_fallback"]
    assert report["prediction_exact"]


class OfTransformers(Experts):
    """By the operator that transformers has for other types than bfloat16."""

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        weight = self.weight.mT if self.transposed else self.weight
        product: Tensor = torch.ops.transformers.grouped_mm_fallback(x, weight, ends)
        return product.tanh()


def test_gradients_of_gradients() -> None:
    eager = OfTransformers(True).double()
    model = ORTModule(copy.deepcopy(eager), QUIET)
    x = torch.randn(33, 16, dtype=torch.float64)
    results = []
    for module, forward in ((model, model), (eager, lambda *a: eager.one_by_one(*a).tanh())):
        given = x.clone().requires_grad_()
        (weight,) = module.parameters()
        first = torch.autograd.grad(forward(given, ENDS).sum(), (given, weight), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (given, weight))
        results.append((*first, *second))
    torch.testing.assert_close(*results)
    assert not last_run_report(model)["nodes_aten_fallback"]


def test_ends_that_descend_are_an_error() -> None:
    model = ORTModule(OfTransformers(False), QUIET)
    with pytest.raises(RuntimeError, match="must ascend within 33 rows, but found 3 after 5"):
        model(torch.randn(33, 16), torch.tensor([5, 3, 17, 30]))


def test_experts_of_transformers() -> None:
    config = transformers.MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        use_cache=False,
    )
    torch.manual_seed(0)
    eager = transformers.MixtralForCausalLM(config).train()
    model = ORTModule(copy.deepcopy(eager), QUIET)
    for length in (9, 14):
        ids = torch.randint(0, 50, (2, length))
        losses = []
        for module in (eager, model):
            module.zero_grad()
            loss = module(input_ids=ids, labels=ids).loss
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    report = last_run_report(model)
    assert report["compiled"]
    assert not [target for target in report["traced_gradients"] if "grouped" in target]
