"""python -m ortmodule_py.convert_precision in.onnx out.onnx: a model in 16-bit floats."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference.errors import translated
from ortmodule_py.inference.feed_files import read_feeds
from ortmodule_py.quantization.model_files import (
    Feed,
    feeds_of,
    ranges,
    read_model,
    write_with_report,
)
from ortmodule_py.quantization.report import QuantizationReport

# Half of float16's largest number: other inputs than the samples may give larger values.
_LARGEST_MEASURED = 65504 / 2


def convert_precision(
    model_input: Any,
    model_output: Any,
    precision: str = "float16",
    *,
    weights_only: bool = False,
    keep_io_types: bool = True,
    op_types_to_keep: Iterable[str] | None = None,
    nodes_to_keep: Iterable[str] | None = None,
    use_external_data_format: bool = False,
    samples: Any = None,
    verbose: bool = True,
) -> QuantizationReport:
    """Writes a float32 model in 16-bit floats. onnxruntime runs the file too.

    Args:
        model_input: path, bytes or ModelProto of the model.
        model_output: path of the converted model.
        precision: "float16" or "bfloat16"; of bfloat16 are weights only, since onnxruntime's CPU
            has no arithmetic in it.
        weights_only: weights have 16 bits and are cast where they are read; nodes compute in
            float32.
        keep_io_types: inputs and outputs of the model stay float32.
        op_types_to_keep: operators that stay in float32, beside those that must.
        nodes_to_keep: names of such nodes.
        use_external_data_format: weights go to `<model_output>.data`; larger ones than 2 GiB
            always do.
        samples: feeds (arrays by input name): what leaves float16's range on them stays float32,
            and the errors of the outputs are measured.
        verbose: prints the report.

    Returns which nodes are in 16 bits, why others are not, bytes and errors. Raises ValueError for
    another precision.
    """
    if precision not in ("float16", "bfloat16"):
        raise ValueError(
            f"[precision] precision must be 'float16' or 'bfloat16', but found {precision!r}"
        )
    options = _inference.PrecisionConversion()
    options.type = precision
    options.weights_only = bool(weights_only) or precision == "bfloat16"
    options.keep_io_types = bool(keep_io_types)
    options.op_types_to_keep = set(op_types_to_keep or [])
    options.nodes_to_keep = set(nodes_to_keep or [])
    feeds = feeds_of(samples)
    model = read_model(model_input)
    if feeds and not options.weights_only:
        options.wide_values = _wide_values(model, feeds)
    with translated():
        found = model.convert_precision(options)
    external, verb = use_external_data_format, f"in {precision}:"
    return write_with_report(
        model_input, model_output, model, found, external, feeds, verb, verbose
    )


def _wide_values(model: _inference.Model, feeds: Sequence[Feed]) -> set[str]:
    """The values that leave float16's range on the feeds."""
    found = ranges(model.copy(), model.computed_floats(), feeds)
    # Infinity itself float16 has, too.
    return {
        name
        for of_feed in found
        for name, ends in of_feed.items()
        if any(_LARGEST_MEASURED < abs(end) < np.inf for end in ends)
    }


def parser() -> argparse.ArgumentParser:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ortmodule_py convert_precision",
        description="Converts a float32 ONNX model to 16-bit floats.",
    )
    parser.add_argument("model", help="the float32 model")
    parser.add_argument("output", help="where the converted model is written")
    parser.add_argument("--precision", choices=["float16", "bfloat16"], default="float16")
    parser.add_argument(
        "--weights-only", action="store_true", help="nodes compute in float32 (always: bfloat16)"
    )
    parser.add_argument(
        "--convert-io", action="store_true", help="inputs and outputs become float16, too"
    )
    parser.add_argument("--keep-ops", nargs="+", metavar="OP", help="operators to keep in float32")
    parser.add_argument("--keep-nodes", nargs="+", metavar="NAME", help="nodes to keep in float32")
    parser.add_argument("--external-data", action="store_true", help="weights in a file beside")
    parser.add_argument(
        "--samples",
        nargs="+",
        metavar="FILE.npz",
        help="feeds, arrays by input name, to find wide values and measure errors with",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status."""
    given = parser().parse_args(arguments)
    try:
        where = "[convert_precision] --samples"
        samples = [read_feeds(path, where) for path in given.samples or ()]
        convert_precision(
            given.model,
            given.output,
            given.precision,
            weights_only=given.weights_only,
            keep_io_types=not given.convert_io,
            op_types_to_keep=given.keep_ops,
            nodes_to_keep=given.keep_nodes,
            use_external_data_format=given.external_data,
            samples=samples or None,
        )
    except (RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
