"""Session options that a model has in its metadata, as onnxruntime reads them when it is told to."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

from ortmodule_py.inference.errors import InvalidArgument
from ortmodule_py.inference.options import SessionOptions

_KEY = "ort_config"
_VARIABLE = "ORT_LOAD_CONFIG_FROM_MODEL"
_OPTIONS = [
    "enable_profiling",
    "execution_mode",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
]


def reads_config(argument: Any) -> bool:
    """Whether a session takes its model's options: by its argument, else by onnxruntime's variable."""
    return int(argument) == 1 if argument is not None else os.environ.get(_VARIABLE) == "1"


def with_config(options: SessionOptions, metadata: dict[str, str]) -> SessionOptions:
    """A copy of the options with those of the model, which win. Raises InvalidArgument."""
    if _KEY not in metadata:
        return options
    try:
        given = json.loads(metadata[_KEY]).get("session_options", {}).items()
    except (AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"[options] the model's '{_KEY}' must be JSON with an object 'session_options', but "
            f"found {metadata[_KEY]!r}: {error}"
        ) from None
    options = copy.copy(options)
    for name, value in given:
        if name not in _OPTIONS:
            options._log().write(2, f"the model's option '{name}' is ignored: it may be {_OPTIONS}")
            continue
        try:
            setattr(options, name, value)
        except TypeError as error:
            raise InvalidArgument(f"{error} in the model's '{_KEY}'") from None
    return options
