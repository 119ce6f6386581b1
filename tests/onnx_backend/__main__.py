"""`python -m tests.onnx_backend FOLDER`: the small models of ONNX's backend tests as files."""

from __future__ import annotations

import sys
from pathlib import Path

from .cases import KINDS, cases

MOST_BYTES = 20_000


def main(folder: str) -> None:
    """Writes a file for each model that is small enough to be changed at random."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    count = 0
    for kind in KINDS:
        for case in cases(kind):
            model = case.model if isinstance(case.model, bytes) else Path(case.model).read_bytes()
            if len(model) <= MOST_BYTES:
                (Path(folder) / f"{kind}-{case.name}.onnx").write_bytes(model)
                count += 1
    print(f"{count} models in {folder}")


if __name__ == "__main__":
    main(*sys.argv[1:])
