"""`python -m ortmodule_py ops`: every op with its file, gradient, kernels per device and ONNX form."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ortmodule_py import _C

_DEVICES = ("cpu", "cuda")


def op_rows() -> list[dict[str, Any]]:
    """One row per op, by name: `name`, `domain`, `kind`, `file`, `gradient`, `onnx`, `torch`,
    `kernels`, and whether the op has a `body`, a decomposition into other ops.

    `gradient` is `rule`, `body` (the gradient of the op's decomposition), `none`, or empty for
    gradient ops. `onnx` is `standard`, `standard parts` (several standard ops) or `own domain`,
    which stock runtimes do not have. A kernel whose name ends in `_aten` calls torch on planned memory.
    """
    rows: list[dict[str, Any]] = _C.ops()
    return sorted(rows, key=lambda row: row["name"].lower())


def kernel_names(row: dict[str, Any], device: str) -> str:
    """Kernel names without the variants per instruction set; torch's kernels are called ATen."""
    names = dict.fromkeys(k["name"] for k in row["kernels"] if k["device"] == device)
    if not names:
        # A view takes no step of the plan; an op without a kernel is decomposed.
        return "no step" if row["kind"] == "view" else "as its body" if row["body"] else "-"
    return ", ".join("ATen" if name.endswith("_aten") else name for name in names)


def table(rows: list[dict[str, Any]]) -> Table:
    """The rows as a table."""
    result = Table(title=f"{len(rows)} ops")
    for column in (
        "op",
        "file",
        "gradient",
        "ONNX form",
        "CPU kernel",
        "CUDA kernel",
        "ATen calls",
    ):
        result.add_column(column, overflow="fold")
    for row in rows:
        result.add_row(
            f"{row['domain']}::{row['name']}" if row["domain"] else row["name"],
            row["file"].removeprefix("csrc/ops/"),
            row["gradient"] or "-",
            row["onnx"],
            *(kernel_names(row, device) for device in _DEVICES),
            ", ".join(target.removeprefix("aten.") for target in row["torch"]),
        )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m ortmodule_py ops", description=__doc__)
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    parser.add_argument("name", nargs="?", help="only ops or ATen calls that contain this")
    options = parser.parse_args(arguments)
    rows = op_rows()
    if options.name:
        wanted = options.name.lower()
        rows = [r for r in rows if any(wanted in t.lower() for t in (r["name"], *r["torch"]))]
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table(rows))
    console.print(
        f"{len(_C.torch_targets())} ATen overloads have a conversion of their own; any other one "
        "runs through torch's dispatcher, with a gradient that is traced once."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
