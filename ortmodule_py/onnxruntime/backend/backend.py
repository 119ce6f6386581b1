"""ONNX's interface for runtimes, as onnxruntime.backend has it."""

from __future__ import annotations

import os
import unittest
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend

from ortmodule_py.inference.module_functions import get_device
from ortmodule_py.inference.options import SessionOptions
from ortmodule_py.inference.session import InferenceSession
from ortmodule_py.onnxruntime.backend.backend_rep import OnnxRuntimeBackendRep, set_options

# Options that write no files.
_SESSION_OPTIONS = {
    *("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode"),
    *("execution_order", "graph_optimization_level", "inter_op_num_threads"),
    *("intra_op_num_threads", "log_severity_level", "log_verbosity_level", "logid"),
    *("use_deterministic_compute", "use_per_session_threads"),
}


class OnnxRuntimeBackend(Backend):
    """Prepares models for runs. `python -m onnx.backend.test` and others call it."""

    allowReleasedOpsetsOnly = os.getenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Whether models can run on the device."""
        return cls.supports_device(get_device() if device is None else device)

    @classmethod
    def is_opset_supported(cls, model: onnx.ModelProto) -> tuple[bool, str]:
        """Whether the model's operator sets are released ones, and what is said if not."""
        for opset in model.opset_import if cls.allowReleasedOpsetsOnly else ():
            domain = opset.domain or "ai.onnx"
            if (domain, opset.version) not in onnx.helper.OP_SET_ID_VERSION_MAP:
                return False, (
                    "Skipping this test as only released onnx opsets are supported. "
                    "To run this test set env variable ALLOW_RELEASED_ONNX_OPSET_ONLY to 0. "
                    f"Got Domain '{domain}' version '{opset.version}'."
                )
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` ("CPU", "CUDA") is the one that sessions run on."""
        return ("GPU" if device == "CUDA" else device) == get_device()

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """Opens a model: a path, bytes, an onnx.ModelProto, or a session.

        `kwargs` are attributes of SessionOptions. Raises unittest.SkipTest for operator sets that
        are not released.
        """
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if not isinstance(model, (str, bytes)):
            content = model.SerializeToString()
            onnx.checker.check_model(content)
            supported, why = cls.is_opset_supported(model)
            if not supported:
                raise unittest.SkipTest(why)
            return cls.prepare(content, device, **kwargs)
        options = SessionOptions()
        set_options(options, kwargs, _SESSION_OPTIONS)
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected '{device}', got '{get_device()}'")
        return OnnxRuntimeBackendRep(InferenceSession(model, options))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Prepares and runs a model. `kwargs` go to both."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: Any = None, outputs_info: Any = None, **kwargs: Any
    ) -> Any:
        """Runs a model of one node on a list of arrays, one for each of its inputs that are given.

        `kwargs` go to `run_model`, but for `opset_version` (the newest). onnxruntime refuses this.
        """
        names = [name for name in node.input if name]
        arrays = [np.asarray(value) for value in inputs]
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in zip(names, arrays, strict=True)
            ],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        opset = onnx.helper.make_opsetid(node.domain, version)
        model = onnx.helper.make_model(graph, opset_imports=[opset])
        return cls.run_model(model.SerializeToString(), arrays, device, **kwargs)


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
