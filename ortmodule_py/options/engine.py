"""The options of the engine, read from the environment once per ORTModule."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ortmodule_py import _C
from ortmodule_py.base.devices import EMULATION, check_emulation
from ortmodule_py.base.environment import choice, flag
from ortmodule_py.base.fused_attention import fused_attention_setting
from ortmodule_py.base.generated_code import generated_code_setting
from ortmodule_py.base.graph_convolutions import graph_convolutions_setting
from ortmodule_py.base.machine_rates import check_machine_rates
from ortmodule_py.base.product_epilogues import product_epilogues_setting
from ortmodule_py.options.memory import MemoryRequest

CUDA_GRAPH = "ORTMODULE_CUDA_GRAPH"


def _count(name: str, what: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or len(text) > 19 or int(text) >= 1 << 63:
        raise ValueError(
            f"[{name}] {what} must be a whole number >= 0 and below 2^63, but found {text!r}"
        )
    return int(text)


_FALLBACK_POLICIES = (
    "FALLBACK_DISABLE",
    "FALLBACK_FORCE_TORCH_FORWARD",
    "FALLBACK_FORCE_TORCH_BACKWARD",
    "FALLBACK_UNSUPPORTED_DEVICE",
    "FALLBACK_UNSUPPORTED_DATA",
    "FALLBACK_UNSUPPORTED_TORCH_MODEL",
    "FALLBACK_UNSUPPORTED_ONNX_MODEL",
    "FALLBACK_BAD_INITIALIZATION",
)


def _eager_allowed() -> bool:
    """Whether pieces may fall back to eager PyTorch; of ORTModule's policies only FALLBACK_DISABLE forbids it."""
    variable = "ORTMODULE_FALLBACK_POLICY"
    names = [name.strip() for name in os.environ.get(variable, "").split("|") if name.strip()]
    for name in names:
        if name not in _FALLBACK_POLICIES:
            raise ValueError(
                f"[{variable}] a policy must be one of {', '.join(_FALLBACK_POLICIES)}, "
                f"but found {name!r}"
            )
    return "FALLBACK_DISABLE" not in names


def _generator() -> str:
    return choice("ORTMODULE_RNG", ("philox", "torch"), "the generator must be philox or torch")


@dataclass
class EngineOptions:
    """Options for users and developers of the engine."""

    bypass: bool = False
    fullgraph: bool = False
    verify: bool = False
    verify_every: int = 0
    """Every n-th training forward is compared with eager PyTorch; 0 for none."""
    eager_allowed: bool = True
    """A piece that cannot be compiled runs in eager PyTorch, instead of being an error."""
    torch_rng: bool = False
    print_memory_stats: bool = False
    fuel: int = -1
    disabled_passes: list[str] = field(default_factory=list)
    dump: Path | None = None
    memory: MemoryRequest = field(default_factory=MemoryRequest)
    convolution_search: str = ""
    """How cuDNN's algorithms are chosen; empty to follow torch.backends.cudnn.benchmark."""
    emulate_cuda: bool = False
    """Runs CPU tensors through the CUDA kernels compiled for the host (developer builds)."""
    cuda_graph: bool = False
    """Records steps on a GPU as CUDA graphs and replays them."""
    generated_code: str = "auto"
    """Whether pointwise groups on a GPU become code of their own."""
    graph_convolutions: str = "auto"
    """Whether convolutions of 16 bits on a GPU run by cuDNN's graph API."""
    product_epilogues: str = "auto"
    """Whether products on a GPU use cuBLASLt's epilogues that give a second result."""
    fused_attention: str = "auto"
    """Whether attention that is written as products and a softmax trains as one operator."""

    @classmethod
    def from_environment(cls, memory_budget: str | int | float | None = None) -> EngineOptions:
        """Reads the `ORTMODULE_*` variables; a ValueError names the variable and its allowed values."""
        options = cls(
            memory=MemoryRequest.from_environment(memory_budget),
            bypass=flag("ORTMODULE_BYPASS"),
            fullgraph=flag("ORTMODULE_FULLGRAPH"),
            verify=flag("ORTMODULE_VERIFY"),
            verify_every=_count("ORTMODULE_VERIFY_EVERY", "the number of steps", 0),
            eager_allowed=_eager_allowed(),
            disabled_passes=_disabled_passes(),
            dump=_dump_directory(),
            fuel=_count("ORTMODULE_FUEL", "the number of rewrites", -1),
            print_memory_stats=flag("ORTMODULE_PRINT_MEMORY_STATS"),
            emulate_cuda=flag(EMULATION),
            cuda_graph=flag(CUDA_GRAPH),
            generated_code=generated_code_setting(),
            graph_convolutions=graph_convolutions_setting(),
            product_epilogues=product_epilogues_setting(),
            fused_attention=fused_attention_setting(),
            convolution_search=choice(
                "ORTMODULE_CONV_ALGO_SEARCH",
                ("", "EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
                "the search must be one of EXHAUSTIVE, HEURISTIC, DEFAULT",
            ),
            torch_rng=_generator() == "torch",
        )
        if options.cuda_graph and options.memory.budget is not None:
            raise ValueError(
                f"[{CUDA_GRAPH}] must be 0 with a memory budget, which does not count the memory that "
                "graphs hold between steps, but found both; unset one of them"
            )
        if options.emulate_cuda:
            check_emulation()
        check_machine_rates()
        return options


def _disabled_passes() -> list[str]:
    names = os.environ.get("ORTMODULE_DISABLE_PASSES", "").split(",")
    disabled = [name.strip() for name in names if name.strip()]
    known = _C.pass_names()
    for name in disabled:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"[ORTMODULE_DISABLE_PASSES] the names must be those of passes, but found {name!r}; "
                f"the nearest is {nearest}"
            )
    return disabled


def _dump_directory() -> Path | None:
    given = os.environ.get("ORTMODULE_DUMP")
    if not given:
        return None
    try:
        Path(given).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"[ORTMODULE_DUMP] the directory must be one that can be made, but found {given!r} "
            f"({error.strerror})"
        ) from None
    return Path(given)
