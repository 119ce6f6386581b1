"""The extension of training: private, so without promises; the public names are `ortmodule_py`'s."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

__version__: str

class BudgetShortfall:
    def __init__(self, *, budget_bytes: int, step_bytes: int, has_pieces: bool) -> None: ...
    budget_bytes: int
    step_bytes: int
    def text(self, options: MemoryOptions) -> str: ...

class CompiledPiece:
    def plan(self, *args: Any) -> None: ...
    def facts(self) -> dict[str, Any]: ...
    def memory(self, last: bool = False) -> Any: ...
    def timeline(self, optimized: bool, last: bool = False) -> Any: ...
    def take_warnings(self) -> list[Any]: ...
    def set_budget_share(
        self, others_bytes: int, growth: float = 1.0, lenient: bool = False
    ) -> None: ...
    def assume_accumulation(self) -> None: ...
    def decision_figures(self, decisions: Sequence[tuple[int, int]]) -> Any: ...
    def row_figures(self, row: int, last: bool = False) -> Any: ...
    def graph(self, stage: str) -> Graph: ...
    def input_names(self) -> list[str]: ...
    def weight_names(self) -> list[str]: ...
    def constants(self) -> dict[str, Tensor]: ...
    def text(self, stage: str) -> str: ...

class DType:
    def __init__(self, text: str, /) -> None: ...

class Dim:
    def __init__(self, text: str, /) -> None: ...

class Graph:
    def print(self, types: bool = True, origins: bool = False) -> str: ...
    def infer(self) -> None: ...
    def verify(self) -> str | None: ...

class GraphBuilder:
    """Records one functional ATen graph in program order, or the body of a `custom_gradient`.

    It only records: the meaning of a graph is decided before it (in `lower`) or after it (in C++).
    """

    DType: type[DType]
    Dim: type[Dim]
    Opaque: type[Opaque]
    Val: type[Val]
    def __init__(self, torch_random: bool = False, kernels: str = "cpu") -> None: ...
    def has_rule(self, target: str, /) -> bool:
        """Whether the builder knows this operator; composites with a rule are not decomposed."""

    def input(
        self,
        name: str,
        kind: str,
        dtype: str,
        sizes: list[Any],
        strides: list[Any],
        requires_grad: bool,
        /,
    ) -> int:
        """Record the next flat input, a tensor; kind is "parameter", "buffer" or "tensor"."""

    def symint_input(self, symbol: str, least: float, greatest: float, /) -> int:
        """Record the next flat input, a Python int between `least` and `greatest` that binds `symbol`.

        If Dynamo has specialized it or expresses it by other symbols, `symbol` is a number or an
        expression and binds nothing.
        """

    def constant(self, tensor: Tensor, /) -> int:
        """Record a small constant tensor of the program."""

    def call(
        self,
        target: str,
        args: list[Any],
        outputs: Sequence[Any],
        origin: tuple[str, str],
        tag: str = "",
        gradient: bool = False,
    ) -> list[int] | None:
        """Record `target(**args)`; returns one id per output, -1 for an absent one.

        With `gradient` the call must be differentiable. If the builder has no gradient rule for it,
        it records nothing and returns None; the call is then written with its traced gradient.
        """

    def body(self, outputs: Sequence[int], /) -> GraphBuilder:
        """An empty backward graph for the gradients of these values."""

    def custom_gradient(
        self, outputs: Sequence[int], inputs: Sequence[int], body: GraphBuilder, traced: bool, /
    ) -> list[int]:
        """New ids for `outputs`, whose gradients with respect to `inputs` are computed by `body`.

        `traced`: it is torch's own gradient of the operator that computed `outputs`.
        """

    def mutate(self, argument: int, value: int, /) -> None:
        """Write this value to the flat input at the end of forward."""

    def alias_output(self, output: int, argument: int, /) -> None:
        """This output is this input itself."""

    def output_strides(self, output: int, strides: list[Any], /) -> None:
        """Set eager's strides of this output, if its value has others."""

    def outputs(self, values: list[Any], /) -> None:
        """Record the flat outputs; called once, last."""

    def print(self) -> str: ...
    def finish(self, options: PieceOptions, /) -> CompiledPiece: ...
    def body_input(self, id: int, /) -> int:
        """Of a body: save a value of the forward graph; returns its id in the body."""

    def grad_input(self, index: int, /) -> int:
        """Of a body: id of the gradient of the output with this index; never undefined."""

    def output(self, values: Sequence[int], /) -> None:
        """Of a body: record the gradients of the inputs, in order; -1 for an input without one."""

class MemoryOptions:
    def __init__(self) -> None: ...
    level: int
    budget_bytes: int | None
    budget_fraction: float | None
    reserved_bytes: int
    strict: bool
    gathered_parameters: bool
    other_runs: int
    mid_training: bool
    offload: bool
    host_budget_bytes: int | None
    def set_rates(
        self, flops_per_us: float, bytes_per_us: float, flops16_per_us: float = ...
    ) -> None: ...
    def set_link(
        self,
        to_host_bytes_per_us: float,
        to_device_bytes_per_us: float,
        host_copy_us: float = ...,
    ) -> None: ...
    def add_config(self, cluster_id: str, strategy: int, count: int) -> None: ...

class ORTModuleError(RuntimeError): ...
class ORTModuleIndexError(ORTModuleError): ...

class OnnxModel:
    def contents(self) -> dict[str, Any]: ...

class Opaque:
    def __init__(self, text: str, /) -> None: ...

class BesideRun:
    """What a run with sharded parameters needs outside."""

    def __init__(
        self, *, gradient_bytes: int | None = None, around_bytes: int = 0, behind_bytes: int = 0
    ) -> None: ...

class PieceCost:
    def __init__(
        self, *, peak_bytes: int, saved_bytes: int, output_bytes: int, gradient_bytes: int
    ) -> None: ...

class PieceOptions:
    def __init__(self) -> None: ...
    device: str
    emulate_cuda: bool
    cuda_graph: bool
    generated_code: bool
    trained_attention: str
    convolution_search: str | None
    training: bool
    verify: bool
    memory: MemoryOptions
    plan_cache_bytes: int
    first_sizes: dict[str, int]
    disabled_passes: set[str]
    fuel: int
    dump: Any

class Val:
    def __init__(self, id: int, /) -> None: ...

def build_info() -> dict[str, Any]: ...
def divide_budget(
    ran: Sequence[CompiledPiece], budget_bytes: int, beside: Sequence[BesideRun] = ...
) -> int | None: ...
def enable_generated_code(folders: Sequence[str], cache_folder: str) -> None: ...
def emulate_copies(time: str) -> None: ...
def engine_runs() -> int: ...
def finish_generated_code() -> None: ...
def generated_code_counts() -> dict[str, Any] | None: ...
def use_graph_convolutions(use: bool, device: str = "") -> None: ...
def graph_convolution_counts() -> dict[str, int]: ...
def use_product_epilogues(use: str, file: str = "") -> None: ...
def product_epilogues() -> dict[str, Any]: ...
def held_by_others(
    costs: Sequence[PieceCost], runs: Sequence[int], beside: Sequence[BesideRun] = ...
) -> list[int]: ...
def load_onnx(path: str) -> Graph: ...

class cpu_memory:
    """A module: counts of the allocator that counts."""

    @staticmethod
    def allocation_count() -> int: ...
    @staticmethod
    def current_bytes() -> int: ...
    @staticmethod
    def install() -> None: ...
    @staticmethod
    def installed() -> bool: ...
    @staticmethod
    def peak_bytes() -> int: ...
    @staticmethod
    def reset_peak() -> None: ...
    @staticmethod
    def start_trace() -> None: ...
    @staticmethod
    def stop_trace() -> list[int]: ...

def ops() -> list[Any]: ...
def parse_graph(text: str) -> Graph: ...
def pass_names() -> list[str]: ...
def provide_run_devices(emulate: bool) -> None: ...
def planned_peak(ran: Sequence[CompiledPiece], beside: Sequence[BesideRun] = ...) -> int: ...
def read_onnx_model(path: str) -> OnnxModel: ...
def reserve_budget(piece: CompiledPiece, earlier: Sequence[CompiledPiece]) -> None: ...
def save_model(
    graph: Graph,
    path: str,
    initializers: dict[str, Any],
    inputs: Sequence[tuple[str, str, str, Sequence[int], Mapping[int, str]]],
    outputs: Sequence[str],
    prefix: str,
) -> None: ...
def save_onnx(
    graph: Graph,
    path: str,
    initializers: dict[str, Any] = ...,
    external_threshold: int = 1073741824,
) -> None: ...
def step_costs(
    piece: CompiledPiece, tensors: Sequence[Tensor], symbols: Sequence[int], repeats: int
) -> dict[str, float]: ...
def step_peak(
    costs: Sequence[PieceCost], runs: Sequence[int], beside: Sequence[BesideRun] = ...
) -> int: ...
def torch_targets() -> list[str]: ...

torch_version: str

def fused_adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    mode: int,
    bias_correction: bool,
    lr: float,
    lr_tensor: Tensor | None,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    emulate_cuda: bool,
) -> None: ...
def unscale_gradients(
    grads: list[Tensor],
    master_grads: list[Tensor],
    factor: float,
    found_inf: Tensor,
    emulate_cuda: bool,
) -> None: ...
