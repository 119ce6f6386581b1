"""Runs ONNX models with the names of onnxruntime's Python API. Needs no torch."""

from __future__ import annotations

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
from ortmodule_py.inference.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from ortmodule_py.inference.session import InferenceSession, MemoryReport, NodeArg

__all__ = [
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "MemoryReport",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
]
