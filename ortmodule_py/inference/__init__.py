"""Runs ONNX models with the names of onnxruntime's Python API. Needs no torch.

`ortmodule_py.onnxruntime` has all names of onnxruntime's package, for code that imports it.
"""

from __future__ import annotations

from ortmodule_py.inference.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
)
from ortmodule_py.inference.errors import (
    EngineError,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoModel,
    NoSuchFile,
    NotImplemented,  # onnxruntime's name
    RuntimeException,
)
from ortmodule_py.inference.explanation import InferenceExplanation
from ortmodule_py.inference.io_binding import IOBinding
from ortmodule_py.inference.memory import MemoryReport
from ortmodule_py.inference.model_facts import ModelMetadata, NodeArg
from ortmodule_py.inference.options import RunOptions, SessionOptions
from ortmodule_py.inference.ort_value import (
    OrtDevice,
    OrtDeviceVendorId,
    OrtValue,
    OrtValueVector,
    copy_tensors,
)
from ortmodule_py.inference.session import InferenceSession

__all__ = [
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceExplanation",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "MemoryReport",
    "ModelMetadata",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
    "copy_tensors",
]
