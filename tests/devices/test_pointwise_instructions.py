"""tools/pointwise_instructions: which way through a kernel it counts."""

from __future__ import annotations

import pytest

from tools.pointwise_instructions import main_path_length, parsed


def _sass(*instructions: str) -> str:
    lines = ["\t\tFunction : pointwise_group"]
    for at, text in enumerate(instructions):
        lines.append(
            f"        /*{at * 16:04x}*/                   {text} ;     /* 0x00000a00ff017b82 */"
        )
        lines.append("                                                  /* 0x000fe20000000800 */")
    return "\n".join(lines)


def test_takes_the_way_that_stores_vectors() -> None:
    # The elements of a tensor's end come first, in a loop.
    code = parsed(
        _sass(
            "S2R R0, SR_TID.X",
            "@!P0 BRA 0x60",
            "LDG.E.U16 R2, desc[UR4][R2.64]",
            "STG.E.U16 desc[UR4][R2.64], R5",
            "@P2 BRA 0x20",
            "EXIT",
            "LDG.E.128 R4, desc[UR4][R4.64]",
            "FADD R4, R4, R4",
            "STG.E.128 desc[UR4][R2.64], R4",
            "EXIT",
            "BRA 0xa0",
        )
    )
    assert main_path_length(code) == 6


def test_goes_past_the_slow_path_of_a_division() -> None:
    code = parsed(
        _sass(
            "MUFU.RCP R0, R1",
            "@!P0 BRA 0x40",
            "MOV R2, 0x40",
            "CALL.REL.NOINC 0x60",
            "STG.E desc[UR4][R2.64], R4",
            "EXIT",
            "RET.REL.NODEC R2 0x0",
        )
    )
    assert main_path_length(code) == 4


def test_needs_an_end() -> None:
    with pytest.raises(ValueError, match="must reach EXIT"):
        main_path_length(parsed(_sass("MOV R0, R1", "BRA 0x0")))
