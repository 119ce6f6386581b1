"""ONNX's backend tests. What fails is listed in expected_failures.txt, with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.onnx_backend.cases import KINDS, Case, cases, run

# The least that must pass of all cases of onnx 1.23.2, whatever the list says.
LEAST = {"node": 1810, "simple": 15, "pytorch-converted": 82, "pytorch-operator": 35}
# Reasons that begin so: a case of ten random bits passes once in a thousand runs.
CHANCE = "random numbers"


def expected_failures() -> dict[str, str]:
    """Reasons by name of the case."""
    lines = Path(__file__).with_name("expected_failures.txt").read_text().splitlines()
    rows = [line.partition("  ") for line in lines if line and not line.startswith("#")]
    return {name: reason.strip() for name, _, reason in rows}


def failure(case: Case) -> str | None:
    """Why the case fails, on one line, or None."""
    try:
        run(case)
    except Exception as error:
        lines = str(error).strip().splitlines()
        node = next((line.strip()[2:] for line in lines if line.startswith("  - ")), None)
        return f"{type(error).__name__}: {node or (lines[0] if lines else '')}"
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_all_cases(kind: str) -> None:
    expected = expected_failures()
    all_cases = cases(kind)
    failed = {case.name: reason for case in all_cases if (reason := failure(case))}
    new = {name: reason for name, reason in failed.items() if name not in expected}
    assert not new, "these cases fail now:\n" + "\n".join(f"{n}  {r}" for n, r in new.items())
    names = {case.name for case in all_cases if not expected.get(case.name, "").startswith(CHANCE)}
    mended = sorted(name for name in expected if name in names and name not in failed)
    assert not mended, f"take these cases out of expected_failures.txt: {mended}"
    assert len(all_cases) - len(failed) >= LEAST[kind]
