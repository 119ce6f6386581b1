"""Attention that a model writes as products and a softmax, as one operator in training.

On a GPU that is torch's fused operator, so it is off there until `python -m tools.gpu_check attention` has
passed. On the CPU it is our own, which is off unless it is asked for: the parts have clusters of their own
in configurations of the memory optimizer.
"""

from __future__ import annotations

import torch

from ortmodule_py.base.environment import choice
from ortmodule_py.base.gpu_checks import is_checked

VARIABLE = "ORTMODULE_FUSED_ATTENTION"
FEATURE = "fused attention"
"""Its name in `gpu_checks`."""


def fused_attention_setting() -> str:
    """The value of `ORTMODULE_FUSED_ATTENTION`.

    Raises:
        ValueError: it is none of `auto`, `0` and `1`.
    """
    return choice(VARIABLE, ("auto", "0", "1"), "the value must be auto, 0 or 1")


def attention_form(setting: str, *, on_gpu: bool, emulated: bool, configured: bool) -> str:
    """What such attention becomes: "spelled" (it stays), "own", "torch_cuda" or "torch_on_cpu".

    Args:
        setting: the value of the variable.
        on_gpu: the module is on a GPU.
        emulated: CUDA kernels run on the CPU.
        configured: a configuration names clusters, which the parts may be.
    """
    cuda = on_gpu or emulated
    if setting == "auto" and (configured or not cuda or not is_checked(FEATURE)):
        return "spelled"
    if setting == "0":
        return "spelled"
    if not cuda:
        return "own"
    # Its backward adds up in the order in which blocks end.
    if torch.are_deterministic_algorithms_enabled():
        return "spelled"
    return "torch_cuda" if on_gpu else "torch_on_cpu"
