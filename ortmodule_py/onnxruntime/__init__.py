"""The names of onnxruntime's Python package, for code that was written for it.

`import ortmodule_py.onnxruntime as ort` instead of `import onnxruntime as ort`. A program that is
not to be changed finds this package as `onnxruntime` after

    sys.modules["onnxruntime"] = ortmodule_py.onnxruntime

The names that are left out, and why, are in `ABSENT`, modules in `absent_modules`.
"""

from __future__ import annotations

from typing import Any

from ortmodule_py.inference.adapters import (
    AdapterFormat as AdapterFormat,
    LoraAdapter as LoraAdapter,
)
from ortmodule_py.inference.enums import *  # noqa: F403
from ortmodule_py.inference.ep_devices import *  # noqa: F403
from ortmodule_py.inference.io_binding import IOBinding as IOBinding
from ortmodule_py.inference.model_facts import (
    ModelMetadata as ModelMetadata,
    NodeArg as NodeArg,
    OrtArenaCfg as OrtArenaCfg,
    OrtMemoryInfo as OrtMemoryInfo,
)
from ortmodule_py.inference.module_functions import *  # noqa: F403
from ortmodule_py.inference.module_functions import get_version_string
from ortmodule_py.inference.notices import (
    set_default_logger_callback as set_default_logger_callback,
    set_default_logger_severity as set_default_logger_severity,
    set_default_logger_verbosity as set_default_logger_verbosity,
)
from ortmodule_py.inference.options import (
    RunOptions as RunOptions,
    SessionOptions as SessionOptions,
)
from ortmodule_py.inference.ort_value import (
    OrtDevice as OrtDevice,
    OrtDeviceVendorId as OrtDeviceVendorId,
    OrtValue as OrtValue,
    copy_tensors as copy_tensors,
)
from ortmodule_py.inference.providers import (
    get_all_providers as get_all_providers,
    get_available_providers as get_available_providers,
    set_global_thread_pool_sizes as set_global_thread_pool_sizes,
)
from ortmodule_py.inference.session import InferenceSession as InferenceSession
from ortmodule_py.onnxruntime import capi as capi
from ortmodule_py.onnxruntime.absent_modules import (
    report_absent_modules as _report_absent_modules,
)

_report_absent_modules()

# The release of onnxruntime whose names these are: programs compare it.
__version__: str = get_version_string()
version: str = __version__
package_name: str = "onnxruntime"
cuda_version: str = ""

_DEVICES = "sessions run on the CPU, without plug-ins for other devices"
_COMPILED = "models are planned when they run; nothing is compiled for a device beforehand"
_PACKAGES = "there are no packages of models; open the .onnx file"

ABSENT: dict[str, str] = {
    "ModelCompiler": _COMPILED,
    "ModelPackage": _PACKAGES,
    "ModelPackageComponentContext": _PACKAGES,
    "ModelPackageContext": _PACKAGES,
    "ModelPackageOptions": _PACKAGES,
    "ModelPackageWriteMode": _PACKAGES,
    "OrtEpAssignedNode": _DEVICES,
    "OrtEpAssignedSubgraph": _DEVICES,
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "OrtExternalInitializerInfo": _COMPILED,
    "OrtSyncStream": _DEVICES,
    "SessionIOBinding": "what IOBinding wraps; use session.io_binding()",
    "SparseTensor": "feed and fetch dense arrays; sparse initializers of models are read",
    "InferenceSession.get_provider_graph_assignment_info": _DEVICES,
    "SessionOptions.clear_ep_context_data_read_func": _COMPILED,
    "SessionOptions.set_ep_context_data_read_func": _COMPILED,
    "SessionOptions.set_provider_selection_policy_delegate": _DEVICES,
    "OrtEpDevice.create_sync_stream": _DEVICES,
    "contextlib": "a module that onnxruntime imports",
    "import_capi_exception": "what onnxruntime's import failed with",
    "onnxruntime_validation": "checks of onnxruntime's own installation",
}


def __getattr__(name: str) -> Any:
    if name in ABSENT:
        raise AttributeError(f"ortmodule_py.onnxruntime has no {name}: {ABSENT[name]}")
    if name == "quantization":  # imported with its first use
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
