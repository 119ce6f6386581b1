"""Pointwise groups as code of their own, which NVRTC compiles while the first steps run.

Until a group's code is there its steps are interpreted, with the same bits. A GPU on which
`python -m tools.gpu_check` has not compared the two keeps to the interpreter.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import torch

from ortmodule_py import _C
from ortmodule_py.base.cache_files import cache_path
from ortmodule_py.base.environment import choice
from ortmodule_py.base.gpu_checks import is_checked

VARIABLE = "ORTMODULE_GENERATED_CODE"
FEATURE = "generated code"
"""Its name in `gpu_checks`."""


def generated_code_setting() -> str:
    """The value of `ORTMODULE_GENERATED_CODE`.

    Raises:
        ValueError: it is none of `auto`, `0` and `1`.
    """
    return choice(VARIABLE, ("auto", "0", "1"), "the value must be auto, 0 or 1")


def enable_generated_code(kernels: str, setting: str, logger: logging.Logger) -> None:
    """Turns it on for the plans made from now on, if `kernels` ("cpu" or "cuda") can have it and the
    setting, or with `auto` a check on this GPU, says so. What is missing for it is a warning."""
    if kernels != "cuda" or setting == "0" or _C.generated_code_counts() is not None:
        return
    if setting == "auto" and not is_checked(FEATURE):
        return
    try:
        _enable(logger)
    except _C.ORTModuleError as error:
        logger.warning("ortmodule_py: pointwise groups stay interpreted: %s", error)
        return
    logger.info("ortmodule_py: pointwise groups become code of their own (%s=0: off)", VARIABLE)


def _enable(logger: logging.Logger) -> None:
    folders = _folders()
    try:
        _C.enable_generated_code(folders, str(cache_path("generated_code")))
    except _C.ORTModuleError as error:
        if "[code cache]" not in str(error):
            raise
        logger.warning("ortmodule_py: generated code is not kept between processes: %s", error)
        _C.enable_generated_code(folders, "")


def _folders() -> list[str]:
    """Where NVRTC may be: in NVIDIA's wheels, which come with torch's, and in a CUDA Toolkit."""
    places = [Path(p) / "nvidia" for p in sys.path if p]
    found = [str(lib.parent) for place in places for lib in place.glob("*/lib/libnvrtc.so*")]
    toolkit = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return [*dict.fromkeys(found), f"{toolkit}/lib64", str(Path(torch.__file__).parent / "lib")]
