"""Fused Adam and AdamW: a step is one pass over all parameters, on the CPU and on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ortmodule_py import _C

_Lists = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]
_VARIANTS = ("amsgrad", "maximize", "differentiable")
"""Options of torch's Adam that select another algorithm, which is not implemented here."""
_OF_ALL_GROUPS = ("set_grad_none", "state_in_param_dtype")


class AdamWMode(IntEnum):
    """Where `FusedAdam` applies weight decay."""

    ADAM_L2_REGULARIZATION = 0
    """Added to the gradient: `torch.optim.Adam`."""
    ADAMW_TRANSFORMERS = 1
    """`p -= lr * weight_decay * p` after the update, with `eps` added to the root before its bias
    correction: the former AdamW of Hugging Face Transformers; `bias_correction` is its `correct_bias`."""
    ADAMW_TORCH = 2
    """`p -= lr * weight_decay * p` before the update: `torch.optim.AdamW`."""


class FusedAdam(torch.optim.Optimizer):
    """Adam (arXiv:1412.6980) and AdamW (arXiv:1711.05101), all parameters of a group in one pass.

    Args:
        params: parameters or groups of them, on the CPU or on CUDA devices; float32, float64,
            float16, bfloat16 or complex.
        lr: learning rate; a single-element tensor on a CUDA device is read without a synchronization.
        bias_correction: divide the moments by `1 - beta ** step`.
        betas: decay of the moments.
        eps: added to the root of the second moment. (The default is that of ORTModule's FusedAdam.)
        adam_w_mode: where `weight_decay` is applied, an `AdamWMode`.
        weight_decay: coefficient of the weight decay.
        set_grad_none: whether `zero_grad()` without an argument sets gradients to None.
        state_in_param_dtype: keep the moments of 16-bit parameters in the parameters' type, as
            torch does, instead of float32. This saves 4 bytes per element and loses precision: with
            `beta2 = 0.999` a second moment in bfloat16 no longer decreases, since 0.1 % is below its
            precision, and one in float16 underflows for gradients below 2e-4.

    `lr`, `betas`, `eps`, `weight_decay`, `bias_correction` and `adam_w_mode` may differ between
    groups. Parameters in 16-bit floats are updated in float32 and rounded; wrap the optimizer in
    `FP16_Optimizer` to keep float32 masters of them.

    The state has the names of `torch.optim.Adam` (`step`, `exp_avg`, `exp_avg_sq`), and either
    optimizer loads the other's `state_dict()`. With `torch.amp.GradScaler` the step itself unscales
    the gradients, and is skipped if they are not finite, on CUDA without a synchronization. On CUDA the
    `step` counts are on the parameters' device, so that a step can be part of a CUDA graph.

    The operations and their order are those of `torch.optim.Adam` and `AdamW` (`foreach` or not)
    and of Transformers' AdamW. Over 120 steps parameters differ from theirs by at most 1e-6 of the largest
    parameter in float32 and 2e-15 in float64. Results do not depend on the number of threads.

    >>> import torch
    >>> from ortmodule_py.optim import AdamWMode, FusedAdam
    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = FusedAdam(
    ...     model.parameters(), lr=1e-3, eps=1e-8, adam_w_mode=AdamWMode.ADAMW_TORCH
    ... )
    >>> model(torch.ones(3, 4)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()

    Raises:
        ValueError: an argument is out of range, or a group or a loaded state has `amsgrad`, `maximize`
            or `differentiable` set.
        ORTModuleError: (in `step`) a gradient is sparse or has another type than its parameter.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler then sets grad_scale and found_inf
    _emulate_cuda = False  # for tests: run the CUDA kernels that developer builds have for the host

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: AdamWMode | int = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        *,
        state_in_param_dtype: bool = False,
        amsgrad: bool = False,
    ) -> None:
        _check_variants({"amsgrad": amsgrad})
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "adam_w_mode": adam_w_mode,
            "weight_decay": weight_decay,
        }
        self.set_grad_none = set_grad_none
        self.state_in_param_dtype = state_in_param_dtype
        _check_arguments(defaults)
        defaults["adam_w_mode"] = int(adam_w_mode)  # a plain number, for checkpoints
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; options that it lacks have the constructor's values."""
        if isinstance(param_group, dict):
            _check_variants(param_group)
            _check_scope(param_group)
            _check_arguments(self.defaults | param_group)
            if "adam_w_mode" in param_group:
                param_group["adam_w_mode"] = int(param_group["adam_w_mode"])
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Sets gradients to None or to zero; without an argument as `set_grad_none` selects."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient; returns what `closure` returned, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    @torch.compiler.disable
    def _step_group(self, group: dict[str, Any]) -> None:
        tensors = self._tensors_of(group)
        if not tensors[0]:
            return
        lr, lr_tensor = _host_lr(group["lr"])
        beta1, beta2 = group["betas"]
        _C.fused_adam(
            *tensors,
            group["adam_w_mode"],
            group["bias_correction"],
            lr,
            lr_tensor,
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            getattr(self, "grad_scale", None),
            getattr(self, "found_inf", None),
            self._emulate_cuda,
        )

    def _tensors_of(self, group: dict[str, Any]) -> _Lists:
        """Parameters with gradients, their gradients, moments and step counts."""
        params = [param for param in group["params"] if param.grad is not None]
        states = [self.state[param] or self._new_state(param) for param in params]
        exp_avgs, exp_avg_sqs, steps = (
            [state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        return params, [param.grad for param in params], exp_avgs, exp_avg_sqs, steps

    def _new_state(self, param: Tensor) -> dict[str, Any]:
        dtype = self._moment_dtype(param)
        state: dict[str, Any] = self.state[param]
        state["step"] = torch.zeros((), dtype=torch.float32, device=_step_device(param))
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
        return state

    def _moment_dtype(self, param: Tensor) -> torch.dtype:
        if param.dtype in (torch.float16, torch.bfloat16) and not self.state_in_param_dtype:
            return torch.float32
        return param.dtype

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of a FusedAdam, of `torch.optim.Adam` or of `torch.optim.AdamW`.

        Options that the loaded groups lack keep the constructor's values.
        """
        final: dict[str, Any] = {}  # the state after all pre-hooks, of which this one is the last

        def check_and_keep(_: Any, loaded: dict[str, Any]) -> None:
            _check_loaded(loaded)
            final.update(loaded)

        handle = self.register_load_state_dict_pre_hook(check_and_keep)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        self._restore(final)

    def _restore(self, saved: dict[str, Any]) -> None:
        """Restores moments that torch has rounded to the parameters' type, and counts that are numbers."""
        for group, saved_group in zip(self.param_groups, saved["param_groups"], strict=True):
            group_step = group.pop("step", None)  # ORTModule's FusedAdam counts by group
            for param, index in zip(group["params"], saved_group["params"], strict=True):
                loaded = saved["state"].get(index)
                if not loaded:
                    continue
                state, dtype = self.state[param], self._moment_dtype(param)
                for name in ("exp_avg", "exp_avg_sq"):
                    if state[name].dtype != dtype:
                        state[name] = loaded[name].to(dtype=dtype, device=param.device, copy=True)
                step = torch.as_tensor(loaded.get("step", group_step), dtype=torch.float32)
                state["step"] = step.to(_step_device(param), copy=True)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        own = {name: getattr(self, name) for name in ("set_grad_none", "state_in_param_dtype")}
        return state | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)


def _step_device(param: Tensor) -> torch.device:
    return param.device if param.is_cuda else torch.device("cpu")


def _host_lr(lr: float | Tensor) -> tuple[float, Tensor | None]:
    """The learning rate as a number, or as a tensor that is read on its device."""
    if isinstance(lr, Tensor) and lr.is_cuda:
        return 0.0, lr
    return float(lr), None


def _check_variants(group: dict[str, Any]) -> None:
    for name in _VARIANTS:
        if group.get(name):
            raise ValueError(
                f"[FusedAdam] {name} must be False, but found True; use torch.optim.AdamW for it"
            )


def _check_scope(group: dict[str, Any]) -> None:
    for name in _OF_ALL_GROUPS:
        if name in group:
            raise ValueError(
                f"[FusedAdam] {name} must be the constructor's argument, for all groups, but found "
                "it in one group"
            )


def _check_loaded(state_dict: dict[str, Any]) -> None:
    for group in state_dict["param_groups"]:
        for name in _VARIANTS:
            if group.get(name):
                raise ValueError(
                    f"[FusedAdam] a loaded state must have {name}=False, but found True; "
                    "load it into torch.optim.AdamW"
                )
    for index, state in state_dict["state"].items():
        if state and not {"exp_avg", "exp_avg_sq"} <= state.keys():
            raise ValueError(
                "[FusedAdam] a loaded state must have exp_avg and exp_avg_sq, but found "
                f"{', '.join(map(str, state))} for parameter {index}; load it into the kind of "
                "optimizer that saved it"
            )


def _check_arguments(group: dict[str, Any]) -> None:
    lr, betas, mode = group["lr"], group["betas"], group["adam_w_mode"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"[FusedAdam] lr must be one number, but found {tuple(lr.shape)}")
    elif not (_is_number(lr) and lr >= 0.0):
        raise ValueError(f"[FusedAdam] lr must be a number >= 0, but found {lr!r}")
    pair = isinstance(betas, Collection) and len(betas) == 2
    if not (pair and all(_is_number(beta) and 0.0 <= beta < 1.0 for beta in betas)):
        raise ValueError(f"[FusedAdam] betas must be two numbers in [0, 1), but found {betas!r}")
    for name in ("eps", "weight_decay"):
        if not (_is_number(group[name]) and group[name] >= 0.0):
            raise ValueError(f"[FusedAdam] {name} must be a number >= 0, but found {group[name]!r}")
    if not _is_number(mode) or mode not in list(AdamWMode):
        raise ValueError(
            f"[FusedAdam] adam_w_mode must be an AdamWMode (0, 1 or 2), but found {mode!r}"
        )


def _is_number(value: Any) -> bool:
    """Whether `value` is a number of Python or numpy, or a tensor of one element, as torch allows."""
    return isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
