"""`python -m tools.cuda_resources FILE...`: what the compiler gave every CUDA kernel in these libraries.

A table of registers, stack, static shared memory, theoretical occupancy and SASS instructions, a line per
kernel and architecture with the worst of its variants (`--all` has a line per variant). It needs no GPU:
it reads the machine code by cuobjdump, which PyPI's nvidia-cuda-cuobjdump brings. It fails if a kernel
touches local memory (a spill, or an array that is indexed by a variable) or has a lower occupancy than
FLOOR, unless ALLOWANCES says why it may.

Occupancy is that of the block size in `__launch_bounds__`, with the rules of NVIDIA's cuda_occupancy.h:
registers are given to a warp in units of 256, shared memory to a block in units of 128 bytes beside 1 KiB
of the system's from sm_80 on. Dynamic shared memory is not known to the compiler and not counted.
"""

from __future__ import annotations

import argparse
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

FLOOR = 0.25
"""Eight warps of 32, sixteen of 64: what keeps enough loads in flight for most of the memory's rate."""


@dataclass(frozen=True)
class Allowance:
    """Why kernels may be below the rules."""

    kernels: str
    """A regular expression on the kernel's name."""
    occupancy: float
    local_memory: bool
    why: str


ALLOWANCES: tuple[Allowance, ...] = (
    Allowance(
        r"<.*\blong, long\b",
        FLOOR,
        True,
        "64-bit positions, for tensors beyond 2^30 elements: their divisions are calls, which save",
    ),
    Allowance(
        "^pointwise_group_cuda<",
        FLOOR,
        True,
        "sin, cos and tan of arguments beyond 105,615 read an array of CUDA's own library",
    ),
    Allowance(
        r"^row_sums_cuda<.*\bBFloat16, 8>",
        FLOOR,
        True,
        "one register on sm_90: without, 72 are taken instead of 48, and half of the rows are in flight",
    ),
    Allowance(
        "^step_product_cuda<double",
        FLOOR,
        True,
        "one register of a product in float64, which no training uses",
    ),
)


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has (CUDA C++ Programming Guide, "Technical Specifications")."""

    warps: int
    blocks: int
    shared_bytes: int
    registers: int = 65536


MULTIPROCESSORS: dict[int, Multiprocessor] = {
    75: Multiprocessor(32, 16, 64 << 10),
    80: Multiprocessor(64, 32, 164 << 10),
    86: Multiprocessor(48, 16, 100 << 10),
    87: Multiprocessor(48, 16, 164 << 10),
    89: Multiprocessor(48, 24, 100 << 10),
    90: Multiprocessor(64, 32, 228 << 10),
    100: Multiprocessor(64, 32, 228 << 10),
    103: Multiprocessor(64, 32, 228 << 10),
    110: Multiprocessor(48, 24, 228 << 10),
    120: Multiprocessor(48, 24, 100 << 10),
    121: Multiprocessor(48, 24, 100 << 10),
}


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel."""

    name: str
    arch: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    """Of a block, at most."""
    instructions: int
    local_accesses: int
    """Instructions that read or write local memory."""

    def occupancy(self) -> float:
        """Warps that a multiprocessor holds, as a part of those that it could."""
        has = MULTIPROCESSORS[self.arch]
        warps = -(-self.threads // 32)
        of_warp = -(-self.registers * 32 // 256) * 256
        # Warps go to four schedulers, each with a quarter of the registers.
        by_registers = has.registers // 4 // max(of_warp, 1) * 4 // warps
        system = 0 if self.arch < 80 else 1024
        of_block = -(-(self.shared_bytes + system) // 128) * 128
        by_shared = has.shared_bytes // of_block if of_block else has.blocks
        blocks = min(has.warps // warps, has.blocks, by_registers, by_shared)
        return blocks * warps / has.warps

    def fault(self) -> str:
        """What is wrong with it, or nothing."""
        excepted = [e for e in ALLOWANCES if re.search(e.kernels, self.name)]
        floor = min([e.occupancy for e in excepted], default=FLOOR)
        if self.local_accesses and not any(e.local_memory for e in excepted):
            return f"{self.local_accesses} instructions access local memory"
        if self.occupancy() < floor:
            return f"its occupancy of {self.occupancy():.3f} is below {floor}"
        return ""


# ---- reading -------------------------------------------------------------------------------------
_MAX_THREADS = 0x05  # EIATTR_MAX_THREADS, as `cuobjdump -elf` names it
_SIZED = 0x04  # EIFMT_SVAL: a size and as many bytes; other formats hold their value in its place


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The entries of a section .nv.info."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield attribute, info[at : at + size]
            at += size


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of an ELF file's sections (64 bits, little-endian)."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    for name, kind, _, _, offset, length in headers:
        end = elf.index(b"\0", names + name)
        content = b"" if kind == 8 else elf[offset : offset + length]  # 8: it has no content
        yield elf[names + name : end].decode(), content


def block_sizes(cubin: bytes) -> dict[str, int]:
    """The most threads of a block, by kernel."""
    threads: dict[str, int] = {}
    for section, content in _sections(cubin):
        if not section.startswith(".nv.info."):
            continue
        kernel = section.removeprefix(".nv.info.")
        threads[kernel] = 1024
        for attribute, value in _attributes(content):
            if attribute == _MAX_THREADS:
                x, y, z = struct.unpack("<III", value)
                threads[kernel] = x * y * z
    return threads


def resources(text: str) -> dict[str, dict[str, int]]:
    """REG, STACK, SHARED and so on by kernel, from `cuobjdump --dump-resource-usage`."""
    found: dict[str, dict[str, int]] = {}
    for name, facts in re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", text):
        found[name] = {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", facts)}
    return found


def instructions(text: str) -> dict[str, list[str]]:
    """Opcodes by kernel, from `cuobjdump -sass`."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        function = re.match(r"\s*Function : (\S+)", line)
        if function:
            current = found.setdefault(function[1], [])
            continue
        opcode = re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", line)
        if opcode:
            current.append(opcode[1])
    return {name: _without_padding(opcodes) for name, opcodes in found.items()}


def _without_padding(opcodes: list[str]) -> list[str]:
    end = len(opcodes)
    while end and opcodes[end - 1] in ("NOP", "BRA"):
        end -= 1
    return opcodes[:end]


def kernels_of(cubin: Path, tool: str) -> list[Kernel]:
    """All kernels of a cubin file."""

    def dumped(option: str) -> str:
        return subprocess.run(
            [tool, option, str(cubin)], check=True, capture_output=True, text=True
        ).stdout

    usage = dumped("--dump-resource-usage")
    code = instructions(dumped("-sass"))
    threads = block_sizes(cubin.read_bytes())
    found_arch = re.search(r"arch = sm_(\d+)", usage) or re.search(r"sm_(\d+)", cubin.name)
    if not found_arch:
        raise ValueError(
            f"[cuda_resources] a cubin must name its architecture, but {cubin} does not"
        )
    arch = int(found_arch[1])
    if arch not in MULTIPROCESSORS:
        known = ", ".join(f"sm_{known}" for known in MULTIPROCESSORS)
        raise ValueError(
            f"[cuda_resources] an architecture must be one of {known}, but found sm_{arch} in "
            f"{cubin.name}; add what its multiprocessor has"
        )
    kernels = []
    for name, facts in resources(usage).items():
        opcodes = code.get(name, [])
        local = sum(op.split(".")[0] in ("LDL", "STL") for op in opcodes)
        kernels.append(
            Kernel(
                name=name,
                arch=arch,
                registers=facts["REG"],
                stack_bytes=facts["STACK"],
                shared_bytes=facts["SHARED"],
                threads=threads.get(name, 1024),
                instructions=len(opcodes),
                local_accesses=local,
            )
        )
    return kernels


def _demangled(names: list[str]) -> list[str]:
    tool = shutil.which("cu++filt") or shutil.which("c++filt")
    if tool is None:
        return names
    found = subprocess.run(
        [tool], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return found.stdout.splitlines()


def short_name(name: str) -> str:
    """`softmax_cuda<float, 4>` of a demangled kernel."""
    name = name.replace("(anonymous namespace)::", "")
    name = re.sub(r"\b_GLOBAL__N__\w+::", "", name)
    depth, end = 0, len(name)
    for at, character in enumerate(name):  # the parameters begin at the first ( outside of < >
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            end = at
            break
    return re.sub(r"\b\w+::", "", name[:end]).removeprefix("void ").strip()


def read(files: Sequence[Path], tool: str) -> list[Kernel]:
    """All kernels of these libraries or objects, names shortened."""
    kernels: list[Kernel] = []
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [tool, "-xelf", "all", str(file.resolve())],
                cwd=folder,
                check=True,
                capture_output=True,
            )
            for cubin in sorted(Path(folder).glob("*.cubin")):
                kernels += kernels_of(cubin, tool)
    names = _demangled([kernel.name for kernel in kernels])
    return [replace(k, name=short_name(n)) for k, n in zip(kernels, names, strict=True)]


# ---- the table -----------------------------------------------------------------------------------
_HEAD = ("kernel", "sm", "variants", "threads", "registers", "stack", "shared", "occupancy", "SASS")


def table(kernels: Sequence[Kernel], every: bool) -> list[str]:
    """Lines with the worst of each kernel's variants; with `every`, of each variant."""
    groups: dict[tuple[str, int], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[(kernel.name if every else kernel.name.split("<")[0], kernel.arch)].append(kernel)
    rows = [_HEAD]
    for (name, arch), group in sorted(groups.items()):
        most = [
            max(getattr(kernel, fact) for kernel in group)
            for fact in ("threads", "registers", "stack_bytes", "shared_bytes")
        ]
        occupancy = min(kernel.occupancy() for kernel in group)
        longest = max(kernel.instructions for kernel in group)
        cells = (name[:70], arch, len(group), *most, f"{occupancy:.2f}", longest)
        rows.append(tuple(map(str, cells)))  # type: ignore[arg-type]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def find_cuobjdump() -> str | None:
    """The tool of the toolkit on the path, or of this environment's packages."""
    found = shutil.which("cuobjdump")
    packaged = sorted(Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin/cuobjdump"))
    return found or (str(packaged[0]) if packaged else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a kernel breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m tools.cuda_resources", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="libraries, objects or cubins")
    parser.add_argument("--report", action="store_true", help="name what breaks a rule, end with 0")
    parser.add_argument("--all", action="store_true", help="a line per variant of a kernel")
    options = parser.parse_args(arguments)
    tool = find_cuobjdump()
    if tool is None:
        print("cuobjdump must be there, but was not found: pip install nvidia-cuda-cuobjdump")
        return 1
    kernels = read(options.files, tool)
    if not kernels:
        print(f"there must be kernels, but none were found in {', '.join(map(str, options.files))}")
        return 1
    print("\n".join(table(kernels, options.all)))
    faults = [(k, k.fault()) for k in kernels if k.fault()]
    for kernel, fault in faults:
        print(f"{kernel.name}, sm_{kernel.arch}: {fault}")
    print(f"{len(kernels)} kernels, {len(faults)} break a rule")
    return 1 if faults and not options.report else 0


if __name__ == "__main__":
    sys.exit(main())
