"""Whether sessions can run on CUDA, and what its provider's options mean. Torch is loaded only then."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from ortmodule_py import _inference
from ortmodule_py.inference.notices import Log

CUDA = "CUDAExecutionProvider"

# What an option asks for that sessions do not do.
_NOTICES = {
    "enable_cuda_graph": "runs launch each kernel",
    "has_user_compute_stream": "runs use torch's current stream: call run() inside torch.cuda.stream(...)",
    "prefer_nhwc": "cuDNN gets the layout that the plan has chosen",
    "tunable_op_enable": "cuBLASLt's own choice of algorithms is used",
}


def is_on(text: str) -> bool:
    """The value of an option that is one of "0", "1", "true" ..."""
    return text not in ("0", "false", "False")


def emulated() -> bool:
    """Whether CUDA's kernels are to run on the host, as in tests."""
    return os.environ.get("ORTMODULE_CUDA_EMULATION") == "1"


@cache
def device_count(emulate: bool) -> int:
    """GPUs that sessions can run on; 1 for the emulation. Loads torch if this build has CUDA."""
    try:
        built_for = import_module("ortmodule_py._build_info").built_for
        if not emulate and not built_for()["cuda_kernels"]:
            return 0
        torch = import_module("torch")
        native = import_module("ortmodule_py")._C  # checks that it was built for this torch
    except ImportError:
        return 0
    emulation = bool(native.build_info()["cuda_emulation"])
    count = int(emulation) if emulate else int(torch.cuda.device_count())
    if count:
        native.provide_run_devices(emulate)
        generated = import_module("ortmodule_py.base.generated_code")
        setting, log = generated.generated_code_setting(), logging.getLogger("ortmodule_py")
        generated.enable_generated_code("cuda", setting, log)
        graphs = import_module("ortmodule_py.base.graph_convolutions")
        graphs.choose_graph_convolutions("cuda", graphs.graph_convolutions_setting(), log)
        epilogues = import_module("ortmodule_py.base.product_epilogues")
        epilogues.choose_product_epilogues("cuda", epilogues.product_epilogues_setting(), log)
    return count


def is_available() -> bool:
    """Whether there is a GPU that sessions can run on."""
    return device_count(emulated()) > 0


def configure(options: _inference.Options, given: Mapping[str, str], log: Log) -> None:
    """Has the session run on a GPU, as the provider's options say."""
    options.device = int(given.get("device_id", 0))
    options.convolution_search = given.get("cudnn_conv_algo_search", "")
    options.allow_tf32 = is_on(given.get("use_tf32", "1"))
    for name, what in _NOTICES.items():
        if is_on(given.get(name, "0")):
            log.write(2, f"{CUDA}: {name} has no effect: {what}", "providers")
