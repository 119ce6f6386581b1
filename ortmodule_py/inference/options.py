"""Options with onnxruntime's attributes. What an option does here is in its docstring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference.adapters import LoraAdapter
from ortmodule_py.inference.checked_options import (
    CheckedOptions,
    ConfigEntries,
    Option,
    as_bool,
    as_int,
)
from ortmodule_py.inference.config_keys import (
    EXTERNAL_BYTES,
    EXTERNAL_FILE,
    RUN_KEYS,
    SESSION_KEYS,
)
from ortmodule_py.inference.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)
from ortmodule_py.inference.ep_devices import OrtEpDevice, provider_of
from ortmodule_py.inference.errors import InvalidArgument
from ortmodule_py.inference.notices import did_you_mean
from ortmodule_py.inference.providers import checked_provider, global_thread_count
from ortmodule_py.inference.seeds import current_seed


def _thread_count(value: Any) -> int:
    """An integer of 32 bits; below 0 it means what 0 does."""
    count = as_int(value)
    if not -(1 << 31) <= count < 1 << 31:
        raise ValueError
    return count


class SessionOptions(CheckedOptions):
    """Options of an InferenceSession, with onnxruntime's names.

    `graph_optimization_level`: see GraphOptimizationLevel. `optimized_model_filepath`: where the
    optimized model is written as an ONNX file. `intra_op_num_threads`: threads of the session's
    pool, 0 for one per core. `enable_profiling`: a trace of every step, in a file that begins with
    `profile_file_prefix`. `log_severity_level`: least severity that is logged, -1 for the default
    logger's. `enable_fp16`: weights are kept in float16, or in bfloat16 where float16 cannot hold
    them, and products widen them while they read them. Options that change nothing here are
    accepted with a notice; names that do not exist are errors.
    """

    enable_cpu_mem_arena = Option(True)
    enable_mem_pattern = Option(True)
    enable_mem_reuse = Option(True)
    enable_profiling = Option(False)
    enable_fp16 = Option(False)
    execution_mode = Option(
        ExecutionMode.ORT_SEQUENTIAL, "steps run one after the other, each on all threads"
    )
    execution_order = Option(ExecutionOrder.DEFAULT, "the planner chooses the order of steps")
    graph_optimization_level = Option(GraphOptimizationLevel.ORT_ENABLE_ALL)
    inter_op_num_threads = Option(
        0, "steps run one after the other; set intra_op_num_threads", _thread_count
    )
    intra_op_num_threads = Option(0, kind=_thread_count)
    optimized_model_filepath = Option("")
    profile_file_prefix = Option("onnxruntime_profile_")
    use_deterministic_compute = Option(False)  # results never depend on threads
    use_per_session_threads = Option(True)

    def __init__(self) -> None:
        self._fixed_sizes: dict[str, int] = {}
        self._fixed_denotations: dict[str, int] = {}
        self._config = ConfigEntries("SessionOptions", "entry", SESSION_KEYS)
        self._initializers: dict[str, Any] = {}
        self._external_files: dict[str, Any] = {}
        self._providers: list[tuple[str, dict[str, str]]] = []

    def add_free_dimension_override_by_name(self, dim_name: str, dim_value: int) -> None:
        """Fixes the size that the model names `dim_name`."""
        self._fixed_sizes[dim_name] = _size(dim_value)

    def add_free_dimension_override_by_denotation(self, denotation: str, dim_value: int) -> None:
        """Fixes the sizes that the model denotes so ("DATA_BATCH")."""
        self._fixed_denotations[denotation] = _size(dim_value)

    def add_session_config_entry(self, config_key: str, config_value: str) -> None:
        """Stores a configuration entry, as text."""
        self._config.add(config_key, config_value)

    def get_session_config_entry(self, config_key: str) -> str:
        """Returns a stored entry. Raises InvalidArgument if there is none."""
        return self._config.get(config_key)

    def add_initializer(self, name: str, value: Any) -> None:
        """Uses `value`, an OrtValue or an array, in place of the model's initializer `name`.

        Type and sizes must be those of the model. The value is kept alive and not copied. A
        name that the model lacks is not read.
        """
        self._initializers[name] = value

    def add_external_initializers(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Uses `values` in place of initializers, whose external files need not exist."""
        if len(names) != len(values):
            raise InvalidArgument(
                f"[SessionOptions] there must be a value for each name, but found {len(names)} "
                f"names and {len(values)} values"
            )
        self._initializers |= zip(names, values, strict=True)

    def add_external_initializers_from_files_in_memory(
        self, file_names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int]
    ) -> None:
        """Gives the contents of external files, by the name that the model has for them."""
        if not len(file_names) == len(buffers) == len(lengths):
            raise InvalidArgument(
                "[SessionOptions] there must be a buffer and a length for each file, but found "
                f"{len(file_names)}, {len(buffers)} and {len(lengths)}"
            )
        for name, buffer, length in zip(file_names, buffers, lengths, strict=True):
            view = memoryview(buffer).cast("B")
            if length > len(view):
                raise InvalidArgument(
                    f"[SessionOptions] file '{name}' must have {length} bytes, but found {len(view)}"
                )
            self._external_files[name] = view[:length]

    def add_provider(self, name: str, options: Mapping[str, Any]) -> None:
        """Adds an execution provider, in order of preference."""
        self._providers.append(checked_provider(name, options))

    def append_execution_provider(
        self, name: str, options: Mapping[str, Any] | None = None
    ) -> None:
        """The same under another name."""
        self.add_provider(name, options or {})

    def add_provider_for_devices(
        self, devices: Sequence[OrtEpDevice], options: Mapping[str, str]
    ) -> None:
        """Adds the execution provider of devices that `get_ep_devices` lists."""
        self.add_provider(*provider_of(devices, options))

    def has_providers(self) -> bool:
        """Whether an execution provider was added."""
        return bool(self._providers)

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Accepted; sessions run on the CPU."""
        OrtExecutionProviderDevicePolicy(policy)
        self._log().once("policy", "provider selection policy: sessions run on the CPU")

    def set_load_cancellation_flag(self, is_canceled: bool) -> None:
        """Accepted; models are mapped, which takes no time that could be canceled."""

    def register_custom_ops_library(self, library_path: str) -> None:
        """Raises NotImplementedError: libraries of onnxruntime's operators cannot be loaded."""
        raise NotImplementedError(
            f"[SessionOptions] operators must be defined in the model as functions; the library "
            f"{library_path!r} is for onnxruntime's binary interface"
        )

    def _engine_options(self) -> _inference.Options:
        """The same for the engine."""
        options = _inference.Options()
        options.threads = max(self.intra_op_num_threads, 0)
        if not self.use_per_session_threads:
            options.threads = global_thread_count()
        options.seed = current_seed() % (1 << 64)
        options.fixed_sizes = self._fixed_sizes
        options.fixed_denotations = self._fixed_denotations
        options.optimization_level = int(self.graph_optimization_level)
        options.profiling = self.enable_profiling
        options.half_weights = self.enable_fp16
        options.optimized_data = self._optimized_data()
        disabled = self._config.find("optimization.disable_specified_optimizers")
        options.disabled_passes = self._known_passes(disabled.split(";"))
        return options

    def _optimized_data(self) -> _inference.DataPlacement:
        """Where the weights of the optimized model go: by themselves, beside it from 1 GiB on."""
        placement = _inference.DataPlacement()
        placement.file = self._config.find(EXTERNAL_FILE)
        if placement.file:
            placement.threshold = 0
            least = self._config.find(EXTERNAL_BYTES, str(placement.least_bytes))
            if not least.isdecimal():
                raise InvalidArgument(
                    f"[SessionOptions] entry '{EXTERNAL_BYTES}' must be a number, but found {least!r}"
                )
            placement.least_bytes = int(least)
        return placement

    def _known_passes(self, names: Iterable[str]) -> set[str]:
        """Those that are passes of this package; the others are onnxruntime's, or misspelled."""
        known = _inference.passes()
        for name in names:
            if name and name not in known:
                near = did_you_mean(name, sorted(known))
                self._log().once(f"pass {name}", f"there is no pass '{name}' to disable{near}")
        return known & set(names)

    def _given_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays in place of initializers, by name."""
        return {
            name: value.numpy() if hasattr(value, "data_ptr") else np.asarray(value)
            for name, value in self._initializers.items()
        }


class RunOptions(CheckedOptions):
    """Options of one run, with onnxruntime's attributes.

    `terminate`: once it is True, runs with these options end before their next step, with an error.
    """

    only_execute_path_to_fetches = Option(False, "all outputs are computed")

    def __init__(self) -> None:
        self._control = _inference.RunControl()
        self._config = ConfigEntries("RunOptions", "run entry", RUN_KEYS)
        self._adapters: list[LoraAdapter] = []

    @property
    def terminate(self) -> bool:
        """Whether runs end. May be set by another thread."""
        return self._control.terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._control.terminate = as_bool(value)

    def add_run_config_entry(self, config_key: str, config_value: str) -> None:
        """Stores a configuration entry, as text."""
        self._config.add(config_key, config_value)

    def get_run_config_entry(self, config_key: str) -> str:
        """Returns a stored entry. Raises InvalidArgument if there is none."""
        return self._config.get(config_key)

    def add_active_adapter(self, adapter: LoraAdapter) -> None:
        """Feeds the adapter's parameters in runs with these options, except those with bindings."""
        if not isinstance(adapter, LoraAdapter):
            raise TypeError(f"[RunOptions] an adapter must be a LoraAdapter, but found {adapter!r}")
        self._adapters.append(adapter)


def _size(value: int) -> int:
    size = as_int(value)
    if size < 0:
        raise InvalidArgument(f"[SessionOptions] a size must not be negative, but found {value}")
    return size
