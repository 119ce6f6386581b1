"""`python -m tools.pointwise_instructions CUBIN...`: instructions an element of generated pointwise groups.

Counts SASS along the path of a thread whose elements are all there, past the slow paths of divisions,
which are calls. It needs no GPU: cuobjdump disassembles. The cubins
of the groups of docs/design.md are written by the C++ tests:

    ORTM_CUBINS=FOLDER ortm_core_tests --gtest_filter=RtcCompiler.CompilesForEveryArchitecture
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cuda_resources import find_cuobjdump

ELEMENTS = 8
"""Of a thread: one vector of eight 16-bit elements, or two of four."""


@dataclass(frozen=True)
class Instruction:
    """One line of SASS."""

    address: int
    predicate: str
    opcode: str
    target: int | None
    """Of a branch."""


_LINE = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(?:\s+(?:!?U?P\d, ?)?0x([0-9a-f]+))?"
)


def parsed(sass: str) -> list[Instruction]:
    """The instructions of a kernel, from `cuobjdump -sass`."""
    found = []
    for line in sass.splitlines():
        match = _LINE.match(line)
        if match:
            address, predicate, opcode, target = match.groups()
            branches = opcode.startswith("BRA") and target is not None
            found.append(
                Instruction(
                    int(address, 16),
                    (predicate or "").strip(),
                    opcode,
                    int(target, 16) if branches else None,
                )
            )
    return found


_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def _stored_bytes(opcode: str) -> int:
    if not opcode.startswith("STG"):
        return 0
    return next((_WIDTHS[part] for part in opcode.split(".") if part in _WIDTHS), 4)


def main_path_length(code: Sequence[Instruction]) -> int:
    """Instructions of the way to an EXIT that stores most, the shortest one of several: that of a
    thread in the middle of a tensor. Loops, which only the end of a tensor has, are not on it."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    no_way = (-1, 0)
    best = [no_way] * (len(code) + 1)  # stored bytes and negative length of the way from here
    for at in reversed(range(len(code))):
        instruction = code[at]
        ends = instruction.opcode in ("EXIT", "RET")
        after = []
        if instruction.predicate or not (ends or instruction.target is not None):
            after.append(best[at + 1])
        if instruction.target is not None and index.get(instruction.target, 0) > at:
            after.append(best[index[instruction.target]])
        if instruction.opcode == "EXIT" and not instruction.predicate:
            after.append((0, 0))
        stored, length = max(after, default=no_way)
        if stored >= 0 and not instruction.opcode.startswith("CALL"):
            best[at] = (stored + _stored_bytes(instruction.opcode), length - 1)
    if best[0] == no_way:
        raise ValueError("[pointwise_instructions] a kernel must reach EXIT, but none was found")
    return -best[0][1]


def per_element(cubin: Path, tool: str) -> float:
    """Instructions an element of the one kernel in this file."""
    sass = subprocess.run([tool, "-sass", str(cubin)], check=True, capture_output=True, text=True)
    return main_path_length(parsed(sass.stdout)) / ELEMENTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row per group, a column per architecture."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.pointwise_instructions", description=__doc__
    )
    parser.add_argument("cubins", nargs="+", type=Path, help="files NAME.sm_ARCHITECTURE.cubin")
    options = parser.parse_args(arguments)
    tool = find_cuobjdump()
    if tool is None:
        print("cuobjdump must be there, but was not found: pip install nvidia-cuda-cuobjdump")
        return 1
    counts: dict[str, dict[int, float]] = {}
    for cubin in options.cubins:
        name, architecture = cubin.name.removesuffix(".cubin").split(".sm_")
        counts.setdefault(name, {})[int(architecture)] = per_element(cubin, tool)
    architectures = sorted({a for row in counts.values() for a in row})
    print("".join([f"{'group':24}", *(f"{f'sm_{a}':>8}" for a in architectures)]))
    for name, row in sorted(counts.items()):
        cells = (f"{row[a]:8.1f}" if a in row else f"{'-':>8}" for a in architectures)
        print("".join([f"{name:24}", *cells]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
