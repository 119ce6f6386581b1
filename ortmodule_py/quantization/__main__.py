"""python -m ortmodule_py quantize model.onnx out.onnx: quantizes the weights of a model."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ortmodule_py.inference.feed_files import read_feeds
from ortmodule_py.quantization.dynamic import quantize_dynamic


def parser() -> argparse.ArgumentParser:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ortmodule_py quantize",
        description="Quantizes the weights of an ONNX model to 8 bits; activations in each run.",
    )
    parser.add_argument("model", help="the float32 model")
    parser.add_argument("output", help="where the quantized model is written")
    parser.add_argument("--weight-type", choices=["QInt8", "QUInt8"], default="QInt8")
    parser.add_argument("--per-channel", action="store_true", help="a scale per output channel")
    parser.add_argument("--reduce-range", action="store_true", help="7 bits")
    parser.add_argument("--op-types", nargs="+", metavar="OP", help="operators to quantize")
    parser.add_argument("--nodes", nargs="+", metavar="NAME", help="nodes to quantize")
    parser.add_argument("--exclude", nargs="+", metavar="NAME", help="nodes to leave as they are")
    parser.add_argument("--external-data", action="store_true", help="weights in a file beside")
    parser.add_argument("--subgraphs", action="store_true", help="also bodies of If and Loop")
    parser.add_argument(
        "--samples",
        nargs="+",
        metavar="FILE.npz",
        help="feeds, arrays by input name, to measure errors with",
    )
    parser.add_argument(
        "--choose",
        choices=["faster"],
        help="quantize only where it is faster here and exact enough on the samples",
    )
    parser.add_argument("--max-error", type=float, default=0.02, help="for --choose")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line. Returns the exit status."""
    given = parser().parse_args(arguments)
    samples: Any = None
    try:
        if given.samples:
            samples = [read_feeds(path, "[quantize] --samples") for path in given.samples]
        quantize_dynamic(
            given.model,
            given.output,
            given.op_types,
            given.per_channel,
            given.reduce_range,
            given.weight_type,
            given.nodes,
            given.exclude,
            given.external_data,
            {"EnableSubgraph": given.subgraphs},
            samples=samples,
            choose=given.choose,
            max_error=given.max_error,
        )
    except (RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
