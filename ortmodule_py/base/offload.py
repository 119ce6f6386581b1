"""Keeping saved activations in memory of the host while a GPU needs its own for other things.

They are copied beside the steps on streams of their own, so a GPU on which `python -m tools.gpu_check` has
not run keeps all values.
"""

from __future__ import annotations

import os

from ortmodule_py.base.environment import choice
from ortmodule_py.base.gpu_checks import is_checked

VARIABLE = "ORTMODULE_OFFLOAD"
BUDGET_VARIABLE = "ORTMODULE_OFFLOAD_BUDGET"
FEATURE = "offload"
"""Its name in `gpu_checks`."""


def offload_setting() -> str:
    """The value of `ORTMODULE_OFFLOAD`.

    Raises:
        ValueError: it is none of `auto`, `0` and `1`.
    """
    return choice(VARIABLE, ("auto", "0", "1"), "the value must be auto, 0 or 1")


def why_not(kernels: str, setting: str, *, in_parts: bool, cuda_graph: bool) -> str:
    """Why a module keeps nothing on the host; "" if it may.

    Args:
        kernels: "cpu" or "cuda": whose kernels run the steps.
        setting: the value of the variable.
        in_parts: graph breaks cut the module into pieces.
        cuda_graph: steps are replayed as CUDA graphs.
    """
    if kernels != "cuda":
        return "it runs on the CPU"
    if setting == "0":
        return f"{VARIABLE}=0"
    if in_parts:
        return "graph breaks cut it into pieces, whose copies nothing divides the link among"
    if cuda_graph:
        return "ORTMODULE_CUDA_GRAPH=1 replays steps on the GPU alone"
    if setting == "auto" and not is_checked(FEATURE):
        return (
            f"`python -m tools.gpu_check offload` has not passed on this GPU; {VARIABLE}=1 does "
            "without it"
        )
    return ""


def default_budget_bytes() -> int:
    """A quarter of the machine's memory: registered pages cannot be swapped out."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
