"""`DebugOptions`: the log level and the graphs to save."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class LogLevel(enum.IntEnum):
    """How much ORTModule logs.

    WARNING shows the banner, notices and warnings; INFO adds all rows of the plan table and every
    capture; DEVINFO adds the saved activations, and ranks other than 0; VERBOSE adds the time of each
    stage.
    """

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5


def _level_from_environment(given: LogLevel) -> LogLevel:
    name = os.environ.get("ORTMODULE_LOG_LEVEL", "")
    if not name.strip():
        return given
    try:
        return LogLevel[name.strip().upper()]
    except KeyError:
        names = ", ".join(level.name for level in LogLevel)
        raise ValueError(
            f"[ORTMODULE_LOG_LEVEL] the level must be one of {names}, but found {name!r}"
        ) from None


def _check(name: str, value: Any, fits: bool, kind: str) -> None:
    if not fits:
        found = type(value).__name__
        raise TypeError(f"[DebugOptions] {name} must be {kind}, but found {found}")


@dataclass(frozen=True)
class SaveOnnxOptions:
    """The graphs that are saved: `DebugOptions.save_onnx_models`."""

    save: bool
    name_prefix: str
    path: str


@dataclass(frozen=True)
class LoggingOptions:
    """What is logged: `DebugOptions.logging`."""

    log_level: LogLevel


class DebugOptions:
    """Logging and saved graphs of one ORTModule.

    Args:
        log_level: how much is logged; the environment variable `ORTMODULE_LOG_LEVEL` overrides it.
        save_onnx: write the graph of each stage as an `.onnx` file.
        onnx_prefix: start of the file names; required with `save_onnx`.
        save_path: directory of the files, by default the working directory;
            `ORTMODULE_SAVE_ONNX_PATH` overrides it.
        config: ignored, as in ORTModule.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: `save_onnx` without `onnx_prefix`, or an unknown level in the environment.
        OSError: the directory is not writable.
    """

    def __init__(
        self,
        log_level: LogLevel = LogLevel.WARNING,
        save_onnx: bool = False,
        onnx_prefix: str = "",
        save_path: str = "",
        config: Any = None,
    ) -> None:
        _check("log_level", log_level, isinstance(log_level, LogLevel), "a LogLevel")
        _check("save_onnx", save_onnx, save_onnx in (False, True), "a bool")
        _check("onnx_prefix", onnx_prefix, isinstance(onnx_prefix, str), "a str")
        self.log_level = _level_from_environment(log_level)
        self.save_onnx = save_onnx
        self.onnx_prefix = onnx_prefix
        self.save_path = Path(os.environ.get("ORTMODULE_SAVE_ONNX_PATH") or save_path or ".")
        if save_onnx and not onnx_prefix:
            raise ValueError("[DebugOptions] onnx_prefix must be provided when save_onnx is set")
        if save_onnx and not os.access(self.save_path, os.W_OK):
            raise OSError(
                f"[DebugOptions] directory {self.save_path} is not writable; set "
                "ORTMODULE_SAVE_ONNX_PATH to one that is"
            )

    @property
    def save_onnx_models(self) -> SaveOnnxOptions:
        """Whether, under which names and where graphs are saved."""
        return SaveOnnxOptions(self.save_onnx, self.onnx_prefix, str(self.save_path))

    @property
    def logging(self) -> LoggingOptions:
        """The effective level, as in `log_level`."""
        return LoggingOptions(self.log_level)

    @property
    def torch_exporter_filter(self) -> list[str] | None:
        """None: the exporter has no output to filter."""
        return None

    @property
    def onnxruntime_log_filter(self) -> list[str] | None:
        """None, as in ORTModule."""
        return None
