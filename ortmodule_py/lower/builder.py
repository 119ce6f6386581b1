"""What capture says to C++: the interface of the graph builder, as Python sees it.

The builder only takes notes. Every decision about what a graph means is made before (in `capture`) or after (in C++).
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
        """Note `target(**args)`; one id per output, -1 where there is none.

        With `gradient`, a gradient must flow through the call; None says that the builder has no
        rule for it: then nothing was noted, and the call comes again with its traced gradient.
        """

    def constant(self, tensor: Any) -> int:
        """Note a small tensor that is part of the program's text."""


class BodyBuilder(OpSink, Protocol):
    """The backward of one `custom_gradient`, written as calls on values that are saved or arrive as gradients."""

    def body_input(self, value: int) -> int:
        """Id, inside the body, of a value computed outside, which is saved for it."""

    def grad_input(self, index: int) -> int:
        """Id of the gradient of the output with this index; always defined."""

    def output(self, grads: list[int]) -> None:
        """The gradients of the inputs, in order; -1 for an input that gets none."""


class Words(Protocol):
    """What arguments are made of."""

    Val: Any
    DType: Any
    Opaque: Any

    def Dim(self, text: str) -> Any:
        """A size, in the grammar of `symbolic`."""


class GraphBuilder(OpSink, Words, Protocol):
    """Takes one functional ATen graph; implemented by `_C.GraphBuilder`."""

    def has_rule(self, target: str) -> bool:
        """Whether the builder knows this operator; composites that it knows arrive whole."""

    def input(
        self,
        name: str,
        kind: str,
        dtype: str,
        sizes: list[Any],
        strides: list[Any],
        requires_grad: bool,
    ) -> int:
        """Note the next flat input, a tensor; kind is "parameter", "buffer" or "tensor"."""

    def symint_input(self, symbol: str, least: float, greatest: float) -> int:
        """Note the next flat input, a Python int between `least` and `greatest` which binds `symbol`.

        Where Dynamo has fixed it or expressed it by others, `symbol` is a number or an expression
        and binds nothing.
        """

    def body(self, outputs: list[int]) -> BodyBuilder:
        """An empty backward body for the gradients of these values."""

    def custom_gradient(
        self, outputs: list[int], inputs: list[int], body: BodyBuilder
    ) -> list[int]:
        """New ids for `outputs`, whose gradient with respect to `inputs` is given by `body`."""

    def mutate(self, input_index: int, value: int) -> None:
        """At the end of forward the flat input with this index takes this value."""

    def alias_output(self, output_index: int, input_index: int) -> None:
        """This output is this very input."""

    def output_strides(self, output_index: int, strides: list[Any]) -> None:
        """Eager's strides of this output, where they are not those of its value."""

    def outputs(self, values: list[Any]) -> None:
        """The flat outputs; called once, last."""
