"""cuBLASLt's epilogues that give a second result: a bias's gradient beside that of the weight, and what Gelu
is applied to.

One call may take longer than the product and a kernel behind it. Which of the two computes a problem is
measured when it first runs and kept in a file, as they round differently. A GPU on which
`python -m tools.gpu_check epilogues` has not passed always uses the epilogues.
"""

from __future__ import annotations

import logging

import torch

from ortmodule_py import _C
from ortmodule_py.base.cache_files import cache_path, file_name
from ortmodule_py.base.environment import choice
from ortmodule_py.base.gpu_checks import build_hash, is_checked

VARIABLE = "ORTMODULE_PRODUCT_EPILOGUES"
FEATURE = "measured epilogues"
"""Its name in `gpu_checks`."""


def product_epilogues_setting() -> str:
    """The value of `ORTMODULE_PRODUCT_EPILOGUES`.

    Raises:
        ValueError: it is none of `auto`, `0`, `1` and `measure`.
    """
    return choice(
        VARIABLE, ("auto", "0", "1", "measure"), "the value must be auto, 0, 1 or measure"
    )


def choose_product_epilogues(kernels: str, setting: str, logger: logging.Logger) -> None:
    """Has the plans that this process makes from now on use them if `kernels` ("cpu" or "cuda") can: always
    ("1"), never ("0"), or where they take less time ("measure", and "auto" after a check on this GPU). Logs when
    the last begins."""
    if kernels != "cuda":
        return
    if setting == "auto":
        setting = "measure" if is_checked(FEATURE) else "1"
    use = {"0": "never", "1": "always", "measure": "measured"}[setting]
    if use == "measured" != _C.product_epilogues()["use"]:
        logger.info(
            "ortmodule_py: cuBLASLt's epilogues are timed once for each problem (%s=1: always used)",
            VARIABLE,
        )
    _C.use_product_epilogues(use, choices_file() if use == "measured" else "")


def choices_file() -> str:
    """Where this GPU's choices are kept, for this build; a user may write into it, a line for each problem."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "emulated"
    name = file_name(f"{torch.__version__}-{device}")
    return str(cache_path(f"epilogues-{build_hash()}-{name}.txt"))
