"""Options with onnxruntime's attributes. What an option does here is in its docstring."""

from __future__ import annotations

from enum import IntEnum

from ortmodule_py import _inference
from ortmodule_py.inference.errors import InvalidArgument


class GraphOptimizationLevel(IntEnum):
    """How far graphs are optimized. All levels give equal results up to rounding."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Accepted; nodes always run one after the other, on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """Accepted; the planner chooses the order of nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions:
    """Options of an InferenceSession.

    `intra_op_num_threads`: threads of the session's pool, 0 for one per core. Free dimension
    overrides fix named sizes. The other attributes exist as in onnxruntime and are accepted.
    """

    def __init__(self) -> None:
        self.enable_cpu_mem_arena: bool = True
        self.enable_mem_pattern: bool = True
        self.enable_mem_reuse: bool = True
        self.enable_profiling: bool = False
        self.execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
        self.graph_optimization_level: GraphOptimizationLevel = (
            GraphOptimizationLevel.ORT_ENABLE_ALL
        )
        self.inter_op_num_threads: int = 0
        self.intra_op_num_threads: int = 0
        self.log_severity_level: int = -1
        self.log_verbosity_level: int = 0
        self.logid: str = ""
        self.optimized_model_filepath: str = ""
        self.profile_file_prefix: str = "onnxruntime_profile_"
        self.use_deterministic_compute: bool = False
        self._fixed_sizes: dict[str, int] = {}
        self._config: dict[str, str] = {}

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Fixes the size that the model names `dim_name`."""
        if dim_value < 0:
            raise InvalidArgument(
                f"[SessionOptions] a size must not be negative, but found {dim_value}"
            )
        self._fixed_sizes[dim_name] = int(dim_value)

    def add_free_dimension_override_by_denotation(self, denotation: str, dim_value: int) -> None:
        """Accepted. Models denote their sizes by names; use the override by name."""

    def add_session_config_entry(self, config_key: str, config_value: str) -> None:
        """Stores a configuration entry, as text."""
        self._config[config_key] = config_value

    def get_session_config_entry(self, config_key: str) -> str:
        """Returns a stored entry. Raises InvalidArgument if there is none."""
        if config_key not in self._config:
            raise InvalidArgument(f"[SessionOptions] there is no entry '{config_key}'")
        return self._config[config_key]

    def _engine_options(self) -> _inference.Options:
        """The same for the engine."""
        options = _inference.Options()
        options.threads = self.intra_op_num_threads
        options.fixed_sizes = self._fixed_sizes
        return options


class RunOptions:
    """Options of one run, with onnxruntime's attributes. All are accepted."""

    def __init__(self) -> None:
        self.log_severity_level: int = -1
        self.log_verbosity_level: int = 0
        self.logid: str = ""
        self.only_execute_path_to_fetches: bool = False
        self.synchronize_execution_providers: bool = True
        self.terminate: bool = False
        self.training_mode: bool = False
        self._config: dict[str, str] = {}

    def add_run_config_entry(self, config_key: str, config_value: str) -> None:
        """Stores a configuration entry, as text."""
        self._config[config_key] = config_value

    def get_run_config_entry(self, config_key: str) -> str:
        """Returns a stored entry. Raises InvalidArgument if there is none."""
        if config_key not in self._config:
            raise InvalidArgument(f"[RunOptions] there is no entry '{config_key}'")
        return self._config[config_key]
