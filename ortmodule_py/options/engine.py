"""What a user may choose: log level, dumps, and the environment variables read at construction."""

from __future__ import annotations

import difflib
import enum
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmodule_py import _C
from ortmodule_py.base.devices import EMULATION, check_emulation
from ortmodule_py.base.machine_rates import check_machine_rates
from ortmodule_py.options.memory import MemoryRequest

CUDA_GRAPH = "ORTMODULE_CUDA_GRAPH"


class LogLevel(enum.IntEnum):
    """How much ORTModule says, from everything to nothing but fatal errors.

    WARNING shows the banner, notices and warnings; INFO adds every plan and every capture; DEVINFO
    adds the values that backward needs, and other ranks than 0; VERBOSE adds the times of each pass.
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
        log_level: how much is logged; the environment variable `ORTMODULE_LOG_LEVEL` wins.
        save_onnx: write the graph of each stage as an `.onnx` file.
        onnx_prefix: start of the file names; needed with `save_onnx`.
        save_path: directory for the files, the working directory by default;
            `ORTMODULE_SAVE_ONNX_PATH` wins.
        config: ignored, as in ORTModule.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: `save_onnx` without `onnx_prefix`, or an unknown level in the environment.
        OSError: the directory cannot be written.
    """

    def __init__(
        self,
        log_level: LogLevel = LogLevel.WARNING,
        save_onnx: bool = False,
        onnx_prefix: str = "",
        save_path: str = "",
        config: Any = None,
    ) -> None:
        if not isinstance(log_level, LogLevel):
            raise TypeError(
                f"[DebugOptions] log_level must be a LogLevel, but found {type(log_level).__name__}"
            )
        if save_onnx not in (False, True):
            raise TypeError(
                f"[DebugOptions] save_onnx must be a bool, but found {type(save_onnx).__name__}"
            )
        if not isinstance(onnx_prefix, str):
            raise TypeError(
                f"[DebugOptions] onnx_prefix must be a str, but found {type(onnx_prefix).__name__}"
            )
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
        """The level in force; the same as `log_level`."""
        return LoggingOptions(self.log_level)

    @property
    def torch_exporter_filter(self) -> list[str] | None:
        """None: the exporter prints nothing that would have to be left out."""
        return None

    @property
    def onnxruntime_log_filter(self) -> list[str] | None:
        """None, as in ORTModule."""
        return None


def _flag(name: str) -> bool:
    text = os.environ.get(name, "0").strip()
    if text not in ("0", "1", ""):
        raise ValueError(f"[{name}] the value must be 0 or 1, but found {text!r}")
    return text == "1"


def _count(name: str, what: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"[{name}] {what} must be a whole number >= 0, but found {text!r}")
    return int(text)


_FALLBACK_POLICIES = (
    "FALLBACK_DISABLE",
    "FALLBACK_FORCE_TORCH_FORWARD",
    "FALLBACK_FORCE_TORCH_BACKWARD",
    "FALLBACK_UNSUPPORTED_DEVICE",
    "FALLBACK_UNSUPPORTED_DATA",
    "FALLBACK_UNSUPPORTED_TORCH_MODEL",
    "FALLBACK_UNSUPPORTED_ONNX_MODEL",
    "FALLBACK_BAD_INITIALIZATION",
)


def _eager_allowed() -> bool:
    """Whether a piece may run in eager PyTorch; only one of the old policies forbids it."""
    variable = "ORTMODULE_FALLBACK_POLICY"
    names = [name.strip() for name in os.environ.get(variable, "").split("|") if name.strip()]
    for name in names:
        if name not in _FALLBACK_POLICIES:
            raise ValueError(
                f"[{variable}] a policy must be one of {', '.join(_FALLBACK_POLICIES)}, "
                f"but found {name!r}"
            )
    return "FALLBACK_DISABLE" not in names


_CONVOLUTION_SEARCHES = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")


def _convolution_search() -> str:
    """How convolutions on CUDA find their algorithm, or "" where nothing was said."""
    variable = "ORTMODULE_CONV_ALGO_SEARCH"
    name = os.environ.get(variable, "").strip().upper()
    if name and name not in _CONVOLUTION_SEARCHES:
        raise ValueError(
            f"[{variable}] the search must be one of {', '.join(_CONVOLUTION_SEARCHES)}, "
            f"but found {name!r}"
        )
    return name


@dataclass
class EngineOptions:
    """Developer and run-time switches, read from the environment once per ORTModule."""

    bypass: bool = False
    fullgraph: bool = False
    verify: bool = False
    verify_every: int = 0
    """Training forwards between two comparisons with eager PyTorch; 0 for none."""
    eager_allowed: bool = True
    """Whether a piece that cannot be compiled runs in eager PyTorch, or is an error."""
    torch_rng: bool = False
    print_memory_stats: bool = False
    fuel: int = -1
    disabled_passes: list[str] = field(default_factory=list)
    dump: Path | None = None
    memory: MemoryRequest = field(default_factory=MemoryRequest)
    convolution_search: str = ""
    """How cuDNN's algorithms are chosen; empty: as torch.backends.cudnn.benchmark says."""
    emulate_cuda: bool = False
    """Tensors on the CPU run through the CUDA kernels, compiled for the host (developer builds)."""
    cuda_graph: bool = False
    """Steps on a GPU are recorded as CUDA graphs and replayed."""

    @classmethod
    def from_environment(cls, memory_budget: str | int | float | None = None) -> EngineOptions:
        """Read `ORTMODULE_*`; ValueError names the variable and what it may be."""
        options = cls(
            memory=MemoryRequest.from_environment(memory_budget),
            bypass=_flag("ORTMODULE_BYPASS"),
            fullgraph=_flag("ORTMODULE_FULLGRAPH"),
            verify=_flag("ORTMODULE_VERIFY"),
            verify_every=_count("ORTMODULE_VERIFY_EVERY", "the number of steps", 0),
            eager_allowed=_eager_allowed(),
            fuel=_count("ORTMODULE_FUEL", "the number of rewrites", -1),
            print_memory_stats=_flag("ORTMODULE_PRINT_MEMORY_STATS"),
            emulate_cuda=_flag(EMULATION),
            cuda_graph=_flag(CUDA_GRAPH),
            convolution_search=_convolution_search(),
        )
        if options.cuda_graph and options.memory.budget is not None:
            raise ValueError(
                f"[{CUDA_GRAPH}] graphs keep their memory between steps, which a memory budget does not "
                "count, but found both; unset one of them"
            )
        if options.emulate_cuda:
            check_emulation()
        rng = os.environ.get("ORTMODULE_RNG", "").strip().lower() or "philox"
        if rng not in ("philox", "torch"):
            raise ValueError(
                f"[ORTMODULE_RNG] the generator must be philox or torch, but found {rng!r}"
            )
        options.torch_rng = rng == "torch"
        options.disabled_passes = _disabled_passes()
        options.dump = _dump_directory()
        check_machine_rates()
        return options


def _disabled_passes() -> list[str]:
    names = os.environ.get("ORTMODULE_DISABLE_PASSES", "").split(",")
    disabled = [name.strip() for name in names if name.strip()]
    known = _C.pass_names()
    for name in disabled:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"[ORTMODULE_DISABLE_PASSES] the names must be those of passes, but found {name!r}; "
                f"the nearest is {nearest}"
            )
    return disabled


def _dump_directory() -> Path | None:
    given = os.environ.get("ORTMODULE_DUMP")
    if not given:
        return None
    try:
        Path(given).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"[ORTMODULE_DUMP] the directory must be one that can be made, but found {given!r} "
            f"({error.strerror})"
        ) from None
    return Path(given)
