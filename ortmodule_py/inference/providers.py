"""Execution providers: their names, their options, and which of them this build has."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from ortmodule_py.inference import cuda
from ortmodule_py.inference.errors import InvalidArgument
from ortmodule_py.inference.notices import Log, did_you_mean

CPU = "CPUExecutionProvider"

# onnxruntime's names, in its order of preference.
_ALL = [
    "NvTensorRTRTXExecutionProvider",
    "TensorrtExecutionProvider",
    "CUDAExecutionProvider",
    "MIGraphXExecutionProvider",
    "ROCMExecutionProvider",
    "OpenVINOExecutionProvider",
    "DnnlExecutionProvider",
    "VitisAIExecutionProvider",
    "QNNExecutionProvider",
    "NnapiExecutionProvider",
    "VSINPUExecutionProvider",
    "JsExecutionProvider",
    "CoreMLExecutionProvider",
    "DmlExecutionProvider",
    "RknpuExecutionProvider",
    "WebNNExecutionProvider",
    "WebGpuExecutionProvider",
    "XnnpackExecutionProvider",
    "CANNExecutionProvider",
    "AzureExecutionProvider",
    CPU,
]


def get_all_providers() -> list[str]:
    """The names of all execution providers, those of other builds included."""
    return list(_ALL)


def get_available_providers() -> list[str]:
    """The execution providers that can run here, best first: CUDA's where torch sees a GPU."""
    return [cuda.CUDA, CPU] if cuda.is_available() else [CPU]


# ---- options -----------------------------------------------------------------------------------


def _expected(allowed: tuple[Any, ...], value: str) -> str:
    """What the value of an option must be, "" if it is: one of these words, between these numbers, or anything."""
    if not allowed or value in allowed:
        return ""
    if isinstance(allowed[0], str):
        return f"one of {', '.join(allowed)}"
    least, most = allowed
    try:
        if least <= int(value) <= most:
            return ""
    except ValueError:
        pass
    return f"an integer of at least {least}" + (f" and at most {most}" if most < inf else "")


_FLAG = ("0", "1", "true", "false", "True", "False")
_ARENA = ("kNextPowerOfTwo", "kSameAsRequested")
_COUNT = (0, inf)

_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    CPU: {"arena_extend_strategy": _ARENA, "use_arena": _FLAG},
    cuda.CUDA: {
        "arena_extend_strategy": _ARENA,
        "cudnn_conv1d_pad_to_nc1d": _FLAG,
        "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        "cudnn_conv_use_max_workspace": _FLAG,
        "device_id": (0, 2**31 - 1),
        "do_copy_in_default_stream": _FLAG,
        "enable_cuda_graph": _FLAG,
        "enable_skip_layer_norm_strict_mode": _FLAG,
        "external_stream_handle": (),
        "fuse_conv_bias": _FLAG,
        "gpu_external_alloc": _COUNT,
        "gpu_external_empty_cache": _COUNT,
        "gpu_external_free": _COUNT,
        "gpu_mem_limit": (1, inf),
        "has_user_compute_stream": _FLAG,
        "prefer_nhwc": _FLAG,
        "sdpa_kernel": _COUNT,
        "tunable_op_enable": _FLAG,
        "tunable_op_max_tuning_duration_ms": _COUNT,
        "tunable_op_tuning_enable": _FLAG,
        "use_ep_level_unified_stream": _FLAG,
        "use_tf32": _FLAG,
        "user_compute_stream": _COUNT,
    },
}


def checked_provider(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Name and options as text. Raises InvalidArgument for what is misspelled or out of range."""
    if not isinstance(name, str):
        raise ValueError(f"[providers] a provider must be a name, but found {name!r}")
    if name not in _ALL:
        stem = name.removesuffix("ExecutionProvider")
        near = did_you_mean(stem, [each.removesuffix("ExecutionProvider") for each in _ALL], 0.7)
        if near:
            near = near.removesuffix("'?") + "ExecutionProvider'?"
            raise InvalidArgument(
                f"[providers] a provider must be one of onnxruntime's, but found '{name}'{near}"
            )
    texts = {str(key): str(value) for key, value in options.items()}
    known = _OPTIONS.get(name)
    if known is None:
        return name, texts
    for key, value in texts.items():
        if key not in known:
            raise InvalidArgument(
                f"[providers] an option of {name} must be one of {', '.join(known)}, but found "
                f"'{key}'{did_you_mean(key, list(known))}"
            )
        if expected := _expected(known[key], value):
            raise InvalidArgument(
                f"[providers] option '{key}' of {name} must be {expected}, but found '{value}'"
            )
    return name, texts


def normalized(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> list[tuple[str, dict[str, str]]]:
    """The providers with their options as text. Raises ValueError where their form is wrong."""
    if providers is None:
        return []
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(provider_options):
            raise ValueError(
                "'providers' and 'provider_options' should be the same length if both are given."
            )
        if not all(isinstance(each, str) for each in providers):
            raise ValueError(
                "Only string values for 'providers' are supported if 'provider_options' is given."
            )
        if not all(isinstance(each, Mapping) for each in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        providers = list(zip(providers, provider_options, strict=True))  # type: ignore[arg-type]
    found: list[tuple[str, dict[str, str]]] = []
    for each in providers:
        pair = (each, {}) if isinstance(each, str) else each
        if not (
            isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[1], Mapping)
        ):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        name, options = checked_provider(*pair)
        if any(name == known for known, _ in found):
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=4)
            continue
        found.append((name, options))
    return found


def asked_for(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
    may_fall_back: bool,
) -> list[tuple[str, dict[str, str]]]:
    """As `normalized`; with `may_fall_back` the CPU, and a warning, where their form is wrong.

    onnxruntime runs such programs, too, as with `providers="CPUExecutionProvider"`.
    """
    try:
        return normalized(providers, provider_options)
    except ValueError as error:
        if not may_fall_back:
            raise
        warnings.warn(
            f"{error} The {CPU} runs the model, as found providers={providers!r}, "
            f"provider_options={provider_options!r}",
            stacklevel=3,
        )
        return [(CPU, {})]


def known(asked: list[tuple[str, dict[str, str]]]) -> list[tuple[str, dict[str, str]]]:
    """The same. Raises InvalidArgument for a name that is none of onnxruntime's."""
    for name, _ in asked:
        if name not in _ALL:
            raise InvalidArgument(
                f"[providers] Unknown Provider Type: {name}; onnxruntime's are {_ALL}"
            )
    return asked


def chosen(
    asked: list[tuple[str, dict[str, str]]], log: Log, cpu_takes_over: bool = True
) -> dict[str, dict[str, str]]:
    """The available ones of the providers that were asked for, with their options.

    The CPU takes over from the others, with one warning, and stands behind those that are there.
    Without `cpu_takes_over`, an absent provider is an error.
    """
    available = get_available_providers()
    absent = [name for name, _ in asked if name not in available]
    if absent:
        text = (
            f"Specified provider '{', '.join(absent)}' is not in available provider names."
            f"Available providers: '{', '.join(available)}'"
        )
        if not cpu_takes_over:
            raise InvalidArgument(f"[providers] the CPU must not take over, but found: {text}")
        warnings.warn(text, stacklevel=4)
        log.write(1, f"{CPU} takes over from {', '.join(absent)}", "providers")
    found = {name: options for name, options in asked if name in available}
    found.setdefault(CPU, {})
    return found


# ---- threads that sessions share ---------------------------------------------------------------

_global_threads = 0


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Threads of each session with `use_per_session_threads = False`; 0 or less: one per core."""
    global _global_threads
    _global_threads = max(int(intra_op_num_threads), 0)


def global_thread_count() -> int:
    """What set_global_thread_pool_sizes was called with."""
    return _global_threads
