"""The Python interface of the C++ graph builder.

The builder only records. The meaning of a graph is decided before it (in `lower`) or after it (in C++).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class OpSink(Protocol):
    """Takes calls of ATen operators in program order."""

    def call(
        self,
        target: str,
        args: list[tuple[str, Any]],
        outputs: Sequence[dict[str, Any] | None],
        origin: tuple[str, str],
        tag: str = "",
        gradient: bool = False,
    ) -> list[int] | None:
        """Record `target(**args)`; returns one id per output, -1 for an absent one.

        With `gradient` the call must be differentiable. If the builder has no gradient rule for it,
        it records nothing and returns None; the call is then written with its traced gradient.
        """

    def constant(self, tensor: Any) -> int:
        """Record a small constant tensor of the program."""


class BodyBuilder(OpSink, Protocol):
    """The backward graph of one `custom_gradient`: calls on saved values and gradients of outputs."""

    def body_input(self, value: int) -> int:
        """Save a value of the forward graph; returns its id in the body."""

    def grad_input(self, index: int) -> int:
        """Id of the gradient of the output with this index; never undefined."""

    def output(self, grads: list[int]) -> None:
        """Record the gradients of the inputs, in order; -1 for an input without one."""


class ArgumentTypes(Protocol):
    """Types of arguments beside plain Python values."""

    Val: Any
    DType: Any
    Opaque: Any

    def Dim(self, text: str) -> Any:
        """A size, in the grammar of `sizes.symbolic`."""


class GraphBuilder(OpSink, ArgumentTypes, Protocol):
    """Records one functional ATen graph; implemented by `_C.GraphBuilder`."""

    def has_rule(self, target: str) -> bool:
        """Whether the builder knows this operator; composites with a rule are not decomposed."""

    def input(
        self,
        name: str,
        kind: str,
        dtype: str,
        sizes: list[Any],
        strides: list[Any],
        requires_grad: bool,
    ) -> int:
        """Record the next flat input, a tensor; kind is "parameter", "buffer" or "tensor"."""

    def symint_input(self, symbol: str, least: float, greatest: float) -> int:
        """Record the next flat input, a Python int between `least` and `greatest` that binds `symbol`.

        If Dynamo has specialized it or expresses it by other symbols, `symbol` is a number or an
        expression and binds nothing.
        """

    def body(self, outputs: list[int]) -> BodyBuilder:
        """An empty backward graph for the gradients of these values."""

    def custom_gradient(
        self, outputs: list[int], inputs: list[int], body: BodyBuilder
    ) -> list[int]:
        """New ids for `outputs`, whose gradients with respect to `inputs` are computed by `body`."""

    def mutate(self, input_index: int, value: int) -> None:
        """Write this value to the flat input at the end of forward."""

    def alias_output(self, output_index: int, input_index: int) -> None:
        """This output is this input itself."""

    def output_strides(self, output_index: int, strides: list[Any]) -> None:
        """Set eager's strides of this output, if its value has others."""

    def outputs(self, values: list[Any]) -> None:
        """Record the flat outputs; called once, last."""
