"""tools/cuda_resources: what it reads from the compiler's output, and what it makes of it."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from tools import cuda_resources
from tools.cuda_resources import Allowance, Kernel

_USAGE = """
Fatbin elf code:
================
arch = sm_90
Resource usage:
 Common:
  GLOBAL:0
 Function _Z1fPf:
  REG:40 STACK:16 SHARED:1024 LOCAL:0 CONSTANT[0]:584 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
_SASS = """
		Function : _Z1fPf
        /*0000*/                   LDC R1, c[0x0][0x28] ;           /* 0x00000a00ff017b82 */
                                                                    /* 0x000fe20000000800 */
        /*0010*/              @!P0 STL.64 [R1+0x8], R2 ;            /* 0x0000000000057919 */
        /*0020*/              @UP1 LDL R5, [R1] ;                   /* 0x0000000000057919 */
        /*0030*/                   EXIT ;                           /* 0x0000000000057919 */
        /*0040*/                   BRA 0x40;                        /* 0x0000000000057919 */
        /*0050*/                   NOP ;                            /* 0x0000000000057919 */
"""


def _elf(sections: dict[str, bytes]) -> bytes:
    """An ELF file with these sections and nothing else."""
    names, contents, headers = b"\0", b"", []
    for name, content in {**sections, ".shstrtab": b""}.items():
        headers.append((len(names), len(contents), len(content)))
        names += name.encode() + b"\0"
        contents += content
    headers[-1] = (headers[-1][0], len(contents), len(names))
    contents += names
    table = 64 + len(contents)
    head = struct.pack("<40xQ10xHHHH", table, 0, 64, len(headers), len(headers) - 1)
    head = b"\x7fELF".ljust(0x28, b"\0") + struct.pack("<Q", table)
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, len(headers), len(headers) - 1)
    entries = [
        struct.pack("<IIQQQQ24x", name, 1, 0, 0, 64 + offset, size)
        for name, offset, size in headers
    ]
    return head.ljust(64, b"\0") + contents + b"".join(entries)


def _kernel(**facts: int) -> Kernel:
    return replace(Kernel("f<float>", 90, 32, 0, 0, 256, 100, 0), **facts)


def test_a_cubin_is_read(tmp_path: Path) -> None:
    info = struct.pack("<BBH", 3, 0x1B, 255) + struct.pack("<BBHIII", 4, 5, 12, 32, 8, 1)
    path = tmp_path / "k.cubin"
    path.write_bytes(_elf({".text._Z1fPf": b"code", ".nv.info._Z1fPf": info, ".nv.info._Z1g": b""}))
    assert cuda_resources.block_sizes(path.read_bytes()) == {"_Z1fPf": 256, "_Z1g": 1024}
    tool = tmp_path / "cuobjdump"
    tool.write_text(
        f"#!/bin/sh\nif [ $1 = -sass ]; then cat <<'END'\n{_SASS}\nEND\n"
        f"else cat <<'END'\n{_USAGE}\nEND\nfi\n"
    )
    tool.chmod(0o755)
    (kernel,) = cuda_resources.kernels_of(path, str(tool))
    assert kernel == Kernel("_Z1fPf", 90, 40, 16, 1024, 256, instructions=4, local_accesses=2)


# What NVIDIA's occupancy calculator says of these.
@pytest.mark.parametrize(
    ("facts", "occupancy"),
    [
        ({}, 1.0),
        ({"registers": 33}, 0.75),
        ({"registers": 64}, 0.5),
        ({"registers": 255}, 0.125),
        ({"arch": 75, "registers": 64}, 1.0),
        ({"arch": 120}, 1.0),
        ({"arch": 120, "registers": 56}, 4 * 8 / 48),
        ({"shared_bytes": 48 << 10}, 0.5),
        ({"arch": 75, "shared_bytes": 48 << 10}, 0.25),
        ({"threads": 32}, 0.5),
        ({"threads": 1024, "registers": 40}, 0.5),
    ],
)
def test_occupancy(facts: dict[str, int], occupancy: float) -> None:
    assert _kernel(**facts).occupancy() == pytest.approx(occupancy)


def test_spills_and_low_occupancy_are_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _kernel().fault() == ""
    assert _kernel(local_accesses=3).fault() == "3 instructions access local memory"
    assert _kernel(registers=255).fault() == "its occupancy of 0.125 is below 0.25"
    allowance = Allowance("^f<", 0.1, True, "a row in registers")
    monkeypatch.setattr(cuda_resources, "ALLOWANCES", (allowance,))
    assert _kernel(registers=255, local_accesses=3).fault() == ""
    assert _kernel(registers=255, threads=128).fault() == ""
    other = replace(_kernel(local_accesses=1), name="g")
    assert other.fault()


def test_allowances_are_for_single_kernels() -> None:
    spilling = _kernel(local_accesses=15)
    assert replace(spilling, name="pointwise_group_cuda<unsigned int>").fault() == ""
    assert replace(spilling, name="row_copy_cuda<long, long, 4>").fault() == ""
    assert replace(spilling, name="norm_forward_cuda<float, 4>").fault()


def test_names_and_table() -> None:
    name = "void ortmodule::cuda::(anonymous namespace)::f<ortmodule::BFloat16, 4>(float*, int (*)(int))"
    assert cuda_resources.short_name(name) == "f<BFloat16, 4>"
    kernels = [_kernel(), replace(_kernel(registers=64), name="f<double>"), _kernel(arch=75)]
    lines = [line.split() for line in cuda_resources.table(kernels, every=False)]
    assert lines[1:] == [
        ["f", "75", "1", "256", "32", "0", "0", "1.00", "100"],
        ["f", "90", "2", "256", "64", "0", "0", "0.50", "100"],
    ]
    assert len(cuda_resources.table(kernels, every=True)) == 4
