"""python -m ortmodule_py.onnxruntime.quantization.preprocess: onnxruntime's command of this name."""

from __future__ import annotations

import argparse
import sys

from ortmodule_py.quantization import quant_pre_process


def main(arguments: list[str] | None = None) -> int:
    """Copies the model: nothing has to be prepared. Other arguments of onnxruntime are accepted."""
    parser = argparse.ArgumentParser(description="Copies a model: it needs no preparation here.")
    parser.add_argument("--input", required=True, help="the model")
    parser.add_argument("--output", required=True, help="where it is written")
    parser.add_argument("--save_as_external_data", action="store_true", help="weights beside it")
    given, _ = parser.parse_known_args(arguments)
    try:
        quant_pre_process(
            given.input, given.output, save_as_external_data=given.save_as_external_data
        )
    except (RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
