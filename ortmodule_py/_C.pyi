from typing import Any

from torch import Tensor

torch_version: str
__version__: str

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
def __getattr__(name: str) -> Any: ...
