"""A prepared model of ONNX's interface for runtimes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.backend.base import BackendRep

from ortmodule_py.inference.options import RunOptions
from ortmodule_py.inference.session import InferenceSession

_RUN_OPTIONS = {
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "only_execute_path_to_fetches",
}


def set_options(options: Any, given: dict[str, Any], allowed: set[str]) -> None:
    """Sets those that are allowed; other names of options are errors, and unknown ones ignored."""
    for name, value in given.items():
        if name in allowed:
            setattr(options, name, value)
        elif hasattr(type(options), name):
            raise RuntimeError(
                f"[backend] an option must be one of {', '.join(sorted(allowed))}, but found '{name}'"
            )


class OnnxRuntimeBackendRep(BackendRep):
    """Runs one session."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """Runs on a list with a value for each input, or on the value of the only one.

        `kwargs` are attributes of RunOptions that concern its messages.
        """
        options = RunOptions()
        set_options(options, kwargs, _RUN_OPTIONS)
        names = [i.name for i in self._session.get_inputs()]
        if not isinstance(inputs, list):
            if len(names) != 1:
                raise RuntimeError(f"Model expect {len(names)} inputs")
            inputs = [inputs]
        values = (np.asarray(v) if isinstance(v, np.generic) else v for v in inputs)
        return self._session.run(None, dict(zip(names, values, strict=False)), options)
