"""Captures `nn.Transformer`, its encoder and its decoder with a mask as one graph.

These layers read the mask's values to see if it is causal, and then choose a kernel without a mask. This
read is a graph break, which makes Dynamo skip the layers. In an ORTModule a capture uses the mask as it
is, with the same results; `is_causal=True` (`tgt_is_causal`) selects the kernel without a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import transformer

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def asked(x: Tensor, mask: Tensor) -> Tensor:
        y = x * 2  # before the graph break that the patch prevents
        return y * 3 if transformer._detect_is_causal_mask(mask) else y + mask

    same = trial(lambda: asked, (torch.ones(2, 2), torch.zeros(2, 2)))
    return same and not trial.eager_pieces and not trial.graph_breaks


@patch(
    "attention_masks",
    "Layers of nn.Transformer with a mask are compiled.",
    "torch.nn.modules.transformer:_detect_is_causal_mask",
    probe=_probe,
    needed_by=None,
    traced=True,
)
def _is_causal(
    detect: Callable[..., Any], mask: Any, is_causal: bool | None = None, size: int | None = None
) -> bool:
    if torch.compiler.is_dynamo_compiling():
        return is_causal is True
    return bool(detect(mask, is_causal, size))
