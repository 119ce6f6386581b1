"""Tests of the CUDA kernels that are compiled for the host."""

from __future__ import annotations

import pytest

from ortmodule_py import _C

EMULATED: bool = _C.build_info()["cuda_emulation"]
emulated = pytest.mark.skipif(
    not EMULATED, reason="a build for CUDA lacks the kernels compiled for the host"
)
