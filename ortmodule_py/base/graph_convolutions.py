"""Convolutions of 16 bits by cuDNN's graph API in place of its classic calls.

An execution plan is made once and states its scratch, where each classic call finds its kernel again. A
GPU on which `python -m tools.gpu_check "convolution plans"` has not passed keeps to the classic calls.
"""

from __future__ import annotations

import logging

from ortmodule_py import _C
from ortmodule_py.base.environment import choice
from ortmodule_py.base.gpu_checks import is_checked

VARIABLE = "ORTMODULE_GRAPH_CONVOLUTIONS"
FEATURE = "graph convolutions"
"""Its name in `gpu_checks`."""


def graph_convolutions_setting() -> str:
    """The value of `ORTMODULE_GRAPH_CONVOLUTIONS`.

    Raises:
        ValueError: it is none of `auto`, `0` and `1`.
    """
    return choice(VARIABLE, ("auto", "0", "1"), "the value must be auto, 0 or 1")


def choose_graph_convolutions(kernels: str, setting: str, logger: logging.Logger) -> None:
    """Has the plans that this process makes from now on use them if `kernels` ("cpu" or "cuda") can, and the
    setting, or with `auto` a check on this GPU, says so. A build that cannot is a warning."""
    if kernels != "cuda":
        return
    wanted = setting == "1" or (setting == "auto" and is_checked(FEATURE))
    if wanted and not _C.build_info()["cuda"].get("graph_convolutions", False):
        logger.warning(
            "ortmodule_py: [%s] has no effect: this build has no cuDNN of 9.8 or newer", VARIABLE
        )
        return
    _C.use_graph_convolutions(wanted)
