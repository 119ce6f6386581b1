"""`explain model.onnx`: what a run of a model takes, from its plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO

from ortmodule_py.commands.command import Command, given_sizes, parser, stage
from ortmodule_py.inference import InferenceSession, SessionOptions
from ortmodule_py.inference.errors import Fail, translated
from ortmodule_py.inference.explanation import InferenceExplanation

_SUMMARY = "the memory of a run of an ONNX model: predicted, nothing runs"


def run(arguments: list[str]) -> int:
    """Prints the explanation of a model's plan."""
    options = _parser().parse_args(arguments)
    sizes = given_sizes(options.sizes)
    with stage(f"opening {options.model}", options.quiet):
        session = InferenceSession(options.model, SessionOptions())
    beside = sys.stderr if options.json else sys.stdout
    for value in session.get_inputs():
        print(f"input  {value.name}: {value.type} {value.shape}", file=beside)
    for value in session.get_outputs():
        print(f"output {value.name}: {value.type} {value.shape}", file=beside)
    with stage("planning", options.quiet):
        explanation = session.explain(sizes) if sizes else _for_likely_sizes(session, beside)
    if not options.json:
        print(explanation)
    largest = {}
    if options.limit is not None:
        size, _, limit = options.limit.partition("=")
        others = {name: value for name, value in sizes.items() if name != size}
        largest = {size: session.largest(size, limit, others)}
        print(f"largest {size} within {limit}: {largest[size]}", file=beside)
    if options.json:
        facts = json.loads(explanation.as_json())
        print(json.dumps(facts | ({"largest": largest} if largest else {}), indent=2))
    if options.picture is not None:
        explanation.save_picture(options.picture)
        print(f"wrote {options.picture}", file=sys.stderr)
    return 0


def _parser() -> Any:
    given = parser("explain", _SUMMARY, _EPILOG)
    given.add_argument("model", help="an .onnx file")
    given.add_argument("sizes", nargs="*", metavar="NAME=SIZE", help="sizes of the inputs")
    given.add_argument("--picture", type=Path, metavar="FILE", help="draw the plan (.png, .svg)")
    given.add_argument("--limit", metavar="batch=512MiB", help="the largest size that fits")
    given.add_argument("--json", action="store_true", help="the explanation as JSON")
    given.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return given


_EPILOG = """examples:
  explain model.onnx batch=32
  explain model.onnx x=32x3x224x224 --picture plan.svg
  explain model.onnx --limit batch=512MiB
Without sizes, likely ones are assumed and printed."""


def _for_likely_sizes(session: InferenceSession, beside: TextIO) -> InferenceExplanation:
    """For fixed sizes, or the first likely ones that the model takes."""
    inputs = session.get_inputs()
    refused: Fail | None = None
    with translated():
        likely = session._session.likely_sizes()
    for shapes in likely:
        named = {value.name: shape for value, shape in zip(inputs, shapes, strict=True)}
        try:
            explanation = session.explain(named)
        except Fail as error:
            refused = refused or error
            continue
        if any(not isinstance(size, int) for value in inputs for size in value.shape):
            assumed = " ".join(f"{name}={'x'.join(map(str, s))}" for name, s in named.items())
            print(f"assumed sizes: {assumed}", file=beside)
        return explanation
    assert refused is not None  # there is at least one set of sizes
    raise refused


COMMAND = Command(_SUMMARY, run)
