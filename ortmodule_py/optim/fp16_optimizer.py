"""Float32 master parameters and a loss scale for any optimizer, for models in 16-bit floats."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ortmodule_py import _C
from ortmodule_py.base.environment import rank

from .loss_scale import LossScale

_LOW = (torch.float16, torch.bfloat16)
_STATE_KEY = "fp16_optimizer"
_logger = logging.getLogger("ortmodule_py.optim")


class FP16_Optimizer(torch.optim.Optimizer):
    """Trains a model whose parameters are float16 or bfloat16 with any torch optimizer.

    The optimizer works on float32 copies of the parameters, the masters; each step rounds them into the
    model. The loss is scaled, gradients are unscaled in one pass, and a step whose gradients are not
    finite is skipped, with a line in the log.

    >>> import torch
    >>> from ortmodule_py.optim import FP16_Optimizer, FusedAdam
    >>> model = torch.nn.Linear(4, 2).half()
    >>> optimizer = FP16_Optimizer(FusedAdam(model.parameters(), lr=1e-3))
    >>> loss = model(torch.ones(3, 4).half()).float().sum()
    >>> optimizer.zero_grad()
    >>> optimizer.backward(loss)  # instead of loss.backward()
    >>> _ = optimizer.clip_master_grads(1.0)  # if wanted
    >>> optimizer.step()

    Args:
        optimizer: any `torch.optim.Optimizer` of the model's parameters. From then on use the wrapper
            only. Existing state is kept, in float32.
        loss_scale: "dynamic" or a number. None means "dynamic" once there is a float16 parameter, and
            1 otherwise, as bfloat16 has the range of float32.
        init_scale, growth_factor, backoff_factor, growth_interval, min_scale: options of a dynamic
            scale, see `LossScale`.

    `param_groups` and `state` are the optimizer's: groups contain masters, and learning rate schedulers
    take the wrapper. Parameters in float32 and float64 are updated in place, in their own type. The
    model's gradients stay scaled; the unscaled gradients belong to the masters. A frozen parameter has no
    master until it trains or a state with its master is loaded. A shared parameter has one master. If a
    parameter is changed from outside (`model.load_state_dict`), its master follows at the next step.

    Save `state_dict()` itself: the functions of `torch.distributed.checkpoint.state_dict` look for
    the model's own parameters in the groups and do not find masters.

    Raises:
        TypeError: `optimizer` is not a torch optimizer, or it belongs to DeepSpeed, Apex or Megatron and
            has masters of its own.
    """

    _emulate_cuda = False  # for tests: run the CUDA kernels that developer builds have for the host

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        loss_scale: float | str | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        min_scale: float = 1.0,
        **unknown: Any,
    ) -> None:
        _check_optimizer(optimizer)
        if unknown:
            _refuse_arguments(unknown)
        self.optimizer = optimizer
        super().__setstate__({})  # sets up hooks, without groups
        if isinstance(loss_scale, str) and loss_scale != "dynamic":
            raise ValueError(
                f'[FP16_Optimizer] loss_scale must be "dynamic" or a number, found {loss_scale!r}'
            )
        dynamic = LossScale(
            scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            min_scale=min_scale,
        )
        self._open_scale = dynamic if loss_scale is None else None  # used once there is float16
        self._scale = dynamic
        if loss_scale != "dynamic":
            fixed = 1.0 if loss_scale is None else float(loss_scale)
            self._scale = replace(dynamic, scale=fixed, dynamic=False)
        self._params: dict[Tensor, Tensor] = {}  # by master
        self._grads_scale: float | None = (
            None  # of the model's gradients, if backward() computed them
        )
        self._unscaled = False  # whether the masters have these gradients, unscaled
        self.overflow = False
        """Whether a gradient of the last step was not finite."""
        self.skipped_steps = 0
        """How many steps were skipped because of that."""
        self._adopt()

    # ---- attributes of the wrapped optimizer -----------------------------------------------------
    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's groups, which contain masters."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        """The optimizer's state, by master."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:
        """The optimizer's defaults."""
        return self.optimizer.defaults

    @property
    def loss_scale(self) -> float:
        """The factor of the next loss."""
        return self._scale.scale

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of the model's parameters.

        Raises:
            ValueError: a parameter is already in a group.
        """
        given = param_group["params"]
        if not isinstance(given, (Tensor, set)):  # torch rejects sets
            given = list(given)
        members = [given] if isinstance(given, Tensor) else given
        params = [member[1] if isinstance(member, tuple) else member for member in members]
        taken = {id(param) for param in self._params.values()}
        if any(id(param) in taken for param in params):
            raise ValueError(
                "[FP16_Optimizer] a parameter must be in one group only, but found one that is in a "
                "group already; leave it out of the new group"
            )
        self.optimizer.add_param_group({**param_group, "params": given})
        self._adopt()

    # ---- masters ---------------------------------------------------------------------------------
    def _adopt(self, trained: Collection[Tensor] = ()) -> None:
        """Replaces parameters that train, or are in `trained`, by masters in the groups."""
        masters = {param: master for master, param in self._params.items()}
        for group in self.param_groups:
            for i, param in enumerate(group["params"]):
                if param in self._params or not (param.requires_grad or param in trained):
                    continue
                if param not in masters:
                    masters[param] = self._new_master(param)
                group["params"][i] = masters[param]
        self._choose_scale()

    def _choose_scale(self) -> None:
        """Makes the default loss scale dynamic once there is a float16 parameter."""
        if self._open_scale is None or self._scale.dynamic or self._scale.scale != 1.0:
            return
        params = (self._params.get(p, p) for p in self.master_params())
        if any(param.dtype == torch.float16 for param in params):
            self._scale = replace(self._open_scale)

    def _new_master(self, param: Tensor) -> Tensor:
        own = param.detach()
        master = nn.Parameter(own.float() if param.dtype in _LOW else own)
        self._params[master] = param
        if param in self.state:
            self.state[master] = _in_float32(self.state.pop(param), param.dtype)
        return master

    @torch.no_grad()
    def _follow_parameters(self) -> None:
        """Updates masters of parameters that were changed from outside."""
        for master, param in self._params.items():
            if param.dtype not in _LOW:
                if master.data_ptr() != param.data_ptr():
                    master.data = param.detach()
            else:
                # Compares values, as `param.data` does not change the version. No synchronization.
                changed = (param != master.to(param.dtype)).any()
                torch.where(changed, param.float(), master, out=master)

    @torch.no_grad()
    def _round_masters(self) -> None:
        pairs = [(p, m) for m, p in self._params.items() if p.dtype in _LOW]
        if pairs:
            params, masters = zip(*pairs, strict=True)
            torch._foreach_copy_(params, masters)

    # ---- gradients -------------------------------------------------------------------------------
    def scale(self, loss: Tensor) -> Tensor:
        """The scaled loss, for training loops that call its `backward` themselves."""
        self._choose_scale()
        if self._grads_scale not in (None, self.loss_scale):
            self._rescale_gradients(self.loss_scale / self._grads_scale)
        self._grads_scale, self._unscaled = self.loss_scale, False
        return (loss.float() if loss.dtype in _LOW else loss) * self.loss_scale

    def backward(
        self, loss: Tensor, update_master_grads: bool = False, retain_graph: bool = False
    ) -> None:
        """Runs backward of the scaled loss; gradients accumulate until `zero_grad`.

        With `update_master_grads` the masters get their gradients now, otherwise in `clip_master_grads`
        or `step`.
        """
        self.scale(loss).backward(retain_graph=retain_graph)
        if update_master_grads:
            self.update_master_grads()

    @torch.no_grad()
    def update_master_grads(self) -> None:
        """Sets the masters' gradients to the model's, unscaled, and `overflow`."""
        self._adopt()
        grads, master_grads = [], []
        for master, param in self._params.items():
            if param.grad is None:
                master.grad = None
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
            grads.append(param.grad)
            master_grads.append(master.grad)
        self.overflow = False
        if grads:
            found = torch.zeros((), device=grads[0].device)
            factor = 1.0 / self._scale_of_gradients()
            _C.unscale_gradients(grads, master_grads, factor, found, self._emulate_cuda)
            self.overflow = bool(found.item())
        self._unscaled = True

    @torch.no_grad()
    def _rescale_gradients(self, factor: float) -> None:
        """Rescales the accumulated gradients to the scale of the next ones."""
        grads = [param.grad for param in self._params.values() if param.grad is not None]
        if grads:
            torch._foreach_mul_(grads, factor)

    def _scale_of_gradients(self) -> float:
        if self._grads_scale is None:
            if self.loss_scale != 1.0:
                raise RuntimeError(
                    "[FP16_Optimizer] gradients must be those of the scaled loss, but found some "
                    "from another backward; call optimizer.backward(loss) instead of "
                    "loss.backward(), or optimizer.scale(loss).backward()"
                )
            return 1.0
        return self._grads_scale

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scales all gradients down to a total norm of `max_norm`; returns the norm before.

        Returns -1 if a gradient is not finite, in which case `step` is skipped.
        """
        if not self._unscaled:
            self.update_master_grads()
        if self.overflow:
            return -1.0
        return float(nn.utils.clip_grad_norm_(list(self._params), max_norm, norm_type))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the gradients of the model and of the masters to None, or to zero."""
        self._grads_scale, self._unscaled = None, False
        for tensors in (self._params.values(), self.master_params()):
            for tensor in tensors:
                if set_to_none:
                    tensor.grad = None
                elif tensor.grad is not None:
                    tensor.grad.detach_().zero_()

    def master_params(self) -> Iterator[Tensor]:
        """All tensors of the groups: masters, and parameters that do not train."""
        for group in self.param_groups:
            yield from group["params"]

    # ---- step ------------------------------------------------------------------------------------
    def step(self, closure: None = None) -> None:
        """Updates the model; if a gradient is not finite, lowers the scale instead.

        Raises:
            ValueError: a closure is given.
        """
        if closure is not None:
            raise ValueError(
                "[FP16_Optimizer] step must be called without a closure, which could not be "
                "unscaled, but found one; call backward(loss) before, and for optimizers that "
                "need a closure (LBFGS) train in float32"
            )
        if not self._unscaled:
            self.update_master_grads()
        self._unscaled = False
        before = self.loss_scale
        self._scale.update(overflow=self.overflow)
        if self.overflow:
            self._skip(before)
            return
        self._follow_parameters()
        self.optimizer.step()
        self._round_masters()

    def _skip(self, before: float) -> None:
        self.skipped_steps += 1
        if rank() != 0:
            return
        what = f"loss scale {before:g} -> {self.loss_scale:g}"
        if before == self.loss_scale:
            what = f"loss scale stays at {before:g}, so the model itself gives them"
        _logger.warning("FP16_Optimizer: gradients are not finite, step skipped, %s", what)

    # ---- state -----------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, with masters and scale under the key "fp16_optimizer".

        The wrapped optimizer can load it as well.
        """
        self._follow_parameters()
        masters = [
            [p.detach() if p in self._params else None for p in group["params"]]
            for group in self.param_groups
        ]
        own = {"masters": masters, "loss_scale": self._scale.state_dict()}
        state: dict[str, Any] = self.optimizer.state_dict()
        return state | {_STATE_KEY: own}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state from `state_dict`, or the state of a plain optimizer.

        The model's parameters are set to the rounded masters. A plain state has no masters; they are set
        to the model's parameters.
        """
        plain = {name: value for name, value in state_dict.items() if name != _STATE_KEY}
        own = state_dict.get(_STATE_KEY)
        # If the groups contain masters, torch does not round the state to the parameters' type.
        self._adopt(self._trained(own["masters"]) if own is not None else ())
        self._follow_parameters()
        self.optimizer.load_state_dict(plain)
        if own is None:
            for master, param in self._params.items():
                master.copy_(param)
            return
        self._scale = LossScale(**own["loss_scale"])
        for group, masters in zip(self.param_groups, own["masters"], strict=True):
            for param, saved in zip(group["params"], masters, strict=True):
                if saved is not None:
                    param.copy_(saved)
                elif param in self._params:
                    param.copy_(self._params[param])
        self._round_masters()
        self._choose_scale()

    def _trained(self, saved_masters: list[list[Tensor | None]]) -> set[Tensor]:
        """The parameters that have masters in a state."""
        return {
            param
            for group, masters in zip(self.param_groups, saved_masters, strict=False)
            for param, saved in zip(group["params"], masters, strict=False)
            if saved is not None
        }

    def __getstate__(self) -> dict[str, Any]:
        names = ("optimizer", "_scale", "_open_scale", "overflow", "skipped_steps")
        own = {name: getattr(self, name) for name in names}
        return own | {"_params": list(self._params.items())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._params = dict(state["_params"])
        self._grads_scale, self._unscaled = None, False
        super().__setstate__({})

    def __repr__(self) -> str:
        return f"FP16_Optimizer(loss_scale={self.loss_scale:g}, {self.optimizer!r})"


def _in_float32(state: Any, dtype: torch.dtype) -> Any:
    """The state of a parameter, with 16-bit tensors converted to float32."""
    if not isinstance(state, dict) or dtype not in _LOW:
        return state
    return {
        name: value.float() if isinstance(value, Tensor) and value.dtype in _LOW else value
        for name, value in state.items()
    }


_ADVICE = {
    "deepspeed": 'set "fp16" or "bf16" in DeepSpeed\'s configuration, whose engine scales the loss',
    "apex": "leave out amp.initialize and wrap the optimizer that it was given, or use "
    "torch.autocast with torch.amp.GradScaler",
    "megatron": "use Megatron-LM's own --fp16 or --bf16, whose optimizer keeps masters",
}
_PLAIN = ("deepspeed.ops.", "apex.optimizers.")
"""Modules of these libraries with plain optimizers."""


def _owner_of(optimizer: Any) -> str | None:
    """The library that has masters for this optimizer, if any."""
    if hasattr(optimizer, "_amp_stash"):
        return "apex"
    for cls in type(optimizer).__mro__:
        module = f"{cls.__module__}."
        if module.startswith("accelerate.") and ".deepspeed." in module:
            return "deepspeed"
        owner = module.partition(".")[0]
        if owner in _ADVICE and not module.startswith(_PLAIN):
            return owner
    return None


def _check_optimizer(optimizer: Any) -> None:
    owner = _owner_of(optimizer)
    if owner is not None:
        raise TypeError(
            "[FP16_Optimizer] optimizer must be a plain torch optimizer, but found a "
            f"{type(optimizer).__qualname__} that {owner} made; {_ADVICE[owner]}"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "[FP16_Optimizer] optimizer must be a torch.optim.Optimizer, but found "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}; call "
            "FP16_Optimizer(torch.optim.AdamW(model.parameters()))"
        )
    if isinstance(optimizer, FP16_Optimizer):
        raise TypeError("[FP16_Optimizer] optimizer must be plain, but found an FP16_Optimizer")


def _refuse_arguments(unknown: dict[str, Any]) -> NoReturn:
    names = ", ".join(sorted(unknown))
    if any("parallel" in name for name in unknown):
        raise TypeError(
            f"[FP16_Optimizer] arguments must be those of one process, but found {names}; "
            f"{_ADVICE['megatron']}"
        )
    raise TypeError(f"[FP16_Optimizer] arguments must be known, but found {names}")
