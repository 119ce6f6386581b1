"""onnxruntime's enumerations."""

from __future__ import annotations

import enum


class _Named(enum.IntEnum):
    """Printed as onnxruntime prints them: "GraphOptimizationLevel.ORT_ENABLE_ALL", not 99."""

    __str__ = enum.Enum.__str__
    __format__ = enum.Enum.__format__


class GraphOptimizationLevel(_Named):
    """How far graphs are optimized. All levels give equal results up to rounding.

    `ORT_DISABLE_ALL`: each node of the model runs by itself. `ORT_ENABLE_BASIC`: cleanup of the
    graph. `ORT_ENABLE_EXTENDED`: fusions, and groups of pointwise nodes. `ORT_ENABLE_LAYOUT`:
    images are channels-last inside. `ORT_ENABLE_ALL`: what depends on weights alone is computed
    once.
    """

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Named):
    """Accepted; nodes always run one after the other, on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Named):
    """Accepted; the planner chooses the order of nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_Named):
    """How memory is allocated."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Named):
    """For what memory is allocated."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(_Named):
    """Who can read memory of a device."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(_Named):
    """Kinds of devices with memory."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtHardwareDeviceType(_Named):
    """Kinds of devices that compute."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtExecutionProviderDevicePolicy(_Named):
    """Accepted by SessionOptions; sessions run on the CPU."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtSparseFormat(_Named):
    """Formats of sparse tensors."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtCompileApiFlags(_Named):
    """Flags of onnxruntime's model compiler, which this package lacks."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2
