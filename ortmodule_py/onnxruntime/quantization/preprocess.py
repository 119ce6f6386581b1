"""python -m ortmodule_py.onnxruntime.quantization.preprocess: onnxruntime's command of this name."""

from __future__ import annotations

import argparse
import sys

from ortmodule_py.quantization import quant_pre_process

# Of onnxruntime's command.
_FLAGS_WITHOUT_EFFECT = ("auto_merge", "guess_output_rank", "all_tensors_to_one_file")
_OPTIONS_WITHOUT_EFFECT = (
    *("skip_optimization", "skip_onnx_shape", "skip_symbolic_shape", "int_max"),
    *("verbose", "external_data_location", "external_data_size_threshold"),
)


def main(arguments: list[str] | None = None) -> int:
    """Copies the model: nothing has to be prepared. Arguments that say how have no effect."""
    parser = argparse.ArgumentParser(description="Copies a model: it needs no preparation here.")
    parser.add_argument("--input", required=True, help="the model")
    parser.add_argument("--output", required=True, help="where it is written")
    parser.add_argument("--save_as_external_data", action="store_true", help="weights beside it")
    for flag in _FLAGS_WITHOUT_EFFECT:
        parser.add_argument(f"--{flag}", action="store_true", help=argparse.SUPPRESS)
    for option in _OPTIONS_WITHOUT_EFFECT:
        parser.add_argument(f"--{option}", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
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
