"""nn.Transformer with masks, as sequence-to-sequence models use it, is one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

QUIET = DebugOptions(log_level=LogLevel.ERROR)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
BANDED = torch.full((5, 5), float("-inf")).triu(2)
FLAGS = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDED = torch.arange(5) >= torch.tensor([[5], [3], [4]])


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)


def _decoder() -> nn.Module:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 1)


def _whole() -> nn.Module:
    return nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)


CASES: dict[str, tuple[Callable[[], nn.Module], int, dict[str, Any]]] = {
    "encoder, padded": (_encoder, 1, {"mask": FLAGS, "src_key_padding_mask": PADDED}),
    "decoder": (_decoder, 2, {"tgt_mask": CAUSAL}),
    "transformer": (_whole, 2, {"tgt_mask": CAUSAL}),
    "transformer, said": (_whole, 2, {"tgt_mask": CAUSAL, "tgt_is_causal": True}),
}


def _step(runner: nn.Module, inputs: list[Tensor], masks: dict[str, Any]) -> list[Tensor]:
    runner.zero_grad()
    out = runner(*inputs, **masks)
    out.square().sum().backward()
    return [out, *(p.grad.clone() for p in runner.parameters() if p.grad is not None)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_masks(case: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, count, masks = CASES[case]
    model = ORTModule(make(), QUIET)
    inputs = [torch.randn(3, 5, 8) for _ in range(count)]
    torch.testing.assert_close(
        _step(model, inputs, masks), _step(model.module, inputs, masks), rtol=1e-4, atol=1e-4
    )
    report = last_run_report(model)
    assert report["compiled"] and report["captures"] == 1 and not report["graph_breaks"], report


def test_a_mask_may_have_other_values_in_the_next_step() -> None:
    """The capture knows that there is a mask, not which one."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = ORTModule(_encoder(), QUIET)
    inputs = [torch.randn(3, 5, 8)]
    for mask in (CAUSAL, BANDED, torch.zeros(5, 5), CAUSAL):
        torch.testing.assert_close(
            _step(model, inputs, {"mask": mask}),
            _step(model.module, inputs, {"mask": mask}),
            rtol=1e-4,
            atol=1e-4,
        )
    assert last_run_report(model)["captures"] == 1


def test_others_see_torchs_own_function() -> None:
    before = transformer._detect_is_causal_mask
    model = ORTModule(nn.Linear(4, 4), QUIET)
    model(torch.randn(2, 4))
    with pytest.raises(TypeError):
        model()
    assert transformer._detect_is_causal_mask is before
    assert before(CAUSAL) and not before(BANDED)
