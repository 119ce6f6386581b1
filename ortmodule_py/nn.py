"""Layers that the engine fuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py.module import ORTModule
from ortmodule_py.options.debug import DebugOptions, LogLevel
from ortmodule_py.options.memory import MemoryRequest


class LinearCrossEntropy(nn.Module):
    """`cross_entropy(linear(input), target)` that never holds all scores at once.

    For a loss outside the model: the model returns the input of its head, and this layer is the head and
    the loss. Inside an ORTModule the engine fuses a linear layer and its loss by itself. Loss and gradients
    are computed tile by tile in forward; see docs/memory_optimizer.md.

    Args:
        in_features: size of the input's last dim.
        num_classes: number of classes; the scores are tiled from 1,024 classes on.
        bias: whether the linear layer has a bias.
        class_weights: weight of each class, `[num_classes]`.
        ignore_index, reduction, label_smoothing: as in `torch.nn.functional.cross_entropy`.
            With `reduction="none"` all scores are computed.

    Parameters are named and initialized as in `torch.nn.Linear`.
    """

    weight: Tensor
    bias: Tensor | None
    class_weights: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = True,
        *,
        class_weights: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(
                f"[LinearCrossEntropy] reduction must be none, mean or sum, but found {reduction!r}"
            )
        linear = nn.Linear(in_features, num_classes, bias, device=device, dtype=dtype)
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("class_weights", class_weights)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> LinearCrossEntropy:
        """A layer that shares the parameters of `linear`; `options` are arguments of the loss."""
        layer = cls(linear.in_features, linear.out_features, bias=False, device="meta", **options)
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of `input` `[..., in_features]` against class indices `target` `[...]`."""
        if input.shape[:-1] != target.shape:
            raise ValueError(
                "[LinearCrossEntropy] target must have input's shape without the last dim, but "
                f"found {tuple(target.shape)} and {tuple(input.shape)}"
            )
        rows = input.reshape(-1, input.shape[-1])
        labels = target.reshape(-1)
        operands = (rows, self.weight, self.bias, labels, self.class_weights)
        loss: Tensor = (
            self._rows(*operands) if torch.compiler.is_compiling() else self._engine()(*operands)
        )
        return loss.reshape(target.shape) if self.reduction == "none" else loss

    def scores(self, input: Tensor) -> Tensor:
        """The scores, `[..., num_classes]`, for inference."""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The options in the `repr` of the layer."""
        return (
            f"in_features={self.weight.shape[1]}, num_classes={self.weight.shape[0]}, "
            f"bias={self.bias is not None}, reduction={self.reduction!r}"
        )

    def _rows(self, *operands: Any) -> Tensor:
        rows, weight, bias, labels, class_weights = operands
        return F.cross_entropy(
            F.linear(rows, weight, bias),
            labels,
            class_weights,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def _engine(self) -> nn.Module:
        """The layer's own ORTModule, made at the first call and not part of its state."""
        engine = self.__dict__.get("_runner")
        if engine is None:
            engine = ORTModule(_Rows(self), DebugOptions(log_level=LogLevel.ERROR))
            # Memory options and outputs in the environment are meant for the model, not for its loss.
            engine._set_options(replace(engine._engine_options, memory=MemoryRequest()))
            engine.__dict__["_outputs"] = None
            self.__dict__["_runner"] = engine
        engine.train(self.training)
        return engine

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_runner"}


class _Rows(nn.Module):
    """The loss as a module without submodules: its parameters are arguments, owned by the layer alone."""

    def __init__(self, layer: LinearCrossEntropy) -> None:
        super().__init__()
        self.__dict__["layer"] = layer

    def forward(self, *operands: Tensor | None) -> Tensor:
        layer: LinearCrossEntropy = self.__dict__["layer"]
        return layer._rows(*operands)
