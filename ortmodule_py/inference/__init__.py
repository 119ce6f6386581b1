"""Runs ONNX models with the names of onnxruntime's Python API. Needs no torch.

`ortmodule_py.onnxruntime` has all names of onnxruntime's package, for code that imports it.
"""

from __future__ import annotations

from ortmodule_py.inference.enums import (
    ExecutionMode as ExecutionMode,
    ExecutionOrder as ExecutionOrder,
    GraphOptimizationLevel as GraphOptimizationLevel,
)
from ortmodule_py.inference.errors import (
    EngineError as EngineError,
    Fail as Fail,
    InvalidArgument as InvalidArgument,
    InvalidGraph as InvalidGraph,
    InvalidProtobuf as InvalidProtobuf,
    NoModel as NoModel,
    NoSuchFile as NoSuchFile,
    NotImplemented as NotImplemented,
    RuntimeException as RuntimeException,
)
from ortmodule_py.inference.explanation import InferenceExplanation as InferenceExplanation
from ortmodule_py.inference.io_binding import IOBinding as IOBinding
from ortmodule_py.inference.memory import MemoryReport as MemoryReport
from ortmodule_py.inference.model_facts import ModelMetadata as ModelMetadata, NodeArg as NodeArg
from ortmodule_py.inference.options import (
    RunOptions as RunOptions,
    SessionOptions as SessionOptions,
)
from ortmodule_py.inference.ort_value import (
    OrtDevice as OrtDevice,
    OrtDeviceVendorId as OrtDeviceVendorId,
    OrtValue as OrtValue,
    OrtValueVector as OrtValueVector,
    copy_tensors as copy_tensors,
)
from ortmodule_py.inference.session import InferenceSession as InferenceSession
