"""Random ONNX graphs of common operators, with symbolic sizes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

Size = int | str
"""A number, or the name of a size that a call decides."""
Value = tuple[str, tuple[Size, ...]]
"""A name and a shape."""
Array = np.ndarray[Any, Any]

FLOAT = TensorProto.FLOAT
CALLS: tuple[dict[str, int], ...] = ({"N": 2, "L": 5}, {"N": 1, "L": 1}, {"N": 3, "L": 8})
"""What each symbolic size is, call by call."""
_SHAPES: tuple[tuple[Size, ...], ...] = (
    ("N", 4, 8, 8),
    ("N", 3, 9, 7),
    ("N", 4, "L", 8),
    ("N", "L", 8),
    ("N", 8),
    ("N", "L", 6),
    ("N", 5, 8),
)
# Where a function jumps, a rounding error becomes a result: these are applied to inputs alone.
_JUMPS = ("Sign", "Floor", "Round", "Ceil", "ThresholdedRelu")
_SMOOTH = (
    *("Relu", "Sigmoid", "Tanh", "Neg", "Erf", "Abs", "HardSwish", "Elu", "LeakyRelu", "Softplus"),
    *("Softsign", "Sin", "HardSigmoid", "Selu", "Mish", "Celu", "Gelu", "Identity"),
)


class RandomGraph:
    """Nodes, weights and values of a graph that grows step by step."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        shape = self.choose.choice(_SHAPES)
        self.inputs: list[Value] = [(f"x{i}", shape) for i in range(self.choose.randint(1, 2))]
        self.values = list(self.inputs)

    def constant(self, array: Any) -> str:
        """The name of a new initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def number(self, number: float) -> str:
        return self.constant(np.float32(number))

    def sizes(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, "int64"))

    def weight(self, *shape: int) -> str:
        return self.constant((self.numbers.standard_normal(shape) * 0.5).astype("float32"))

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The first result of a new node."""
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [result], name=result, **attributes))
        return result

    def like(self, value: Value) -> str:
        """Any value of the same shape, perhaps the same one."""
        return self.choose.choice([name for name, shape in self.values if shape == value[1]])

    def maybe(self, chance: float = 0.5) -> bool:
        return self.choose.random() < chance

    def model(self, steps: int) -> ModelProto:
        """The graph after so many steps; its outputs are what no node reads."""
        for _ in range(steps):
            value = self.choose.choice(self.values)
            made = self.choose.choice(_STEPS)(self, value)
            if made is not None:
                self.values.append(made)
        read = {name for node in self.nodes for name in node.input}
        results = [v for v in self.values if v not in self.inputs and v[0] not in read]
        if not results:
            results = [(self.node("Relu", "x0"), self.inputs[0][1])]
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(name, FLOAT, list(s)) for name, s in self.inputs],
            [helper.make_tensor_value_info(name, FLOAT, None) for name, _ in results],
            self.weights,
        )
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])

    def feeds(self, call: dict[str, int]) -> dict[str, Array]:
        return {
            name: self.numbers.standard_normal(
                [call[s] if isinstance(s, str) else s for s in shape]
            ).astype("float32")
            for name, shape in self.inputs
        }


Step = Callable[[RandomGraph, Value], Value | None]
_STEPS: list[Step] = []


def _step(step: Step) -> Step:
    _STEPS.append(step)
    return step


@_step
def _activation(g: RandomGraph, value: Value) -> Value:
    names = _SMOOTH + (_JUMPS if value in g.inputs else ())
    return g.node(g.choose.choice(names), value[0]), value[1]


@_step
def _clip(g: RandomGraph, value: Value) -> Value:
    bounds = [g.number(-0.7)] + ([g.number(1.1)] if g.maybe() else [])
    return g.node("Clip", value[0], *bounds), value[1]


@_step
def _binary(g: RandomGraph, value: Value) -> Value:
    name, shape = value
    width = shape[-1]
    others = [g.like(value), g.weight(1)]
    if isinstance(width, int):
        others.append(g.weight(width))
    other = g.choose.choice(others)
    op = g.choose.choice(["Add", "Mul", "Sub", "Max", "Min", "Div", "Mean", "Sum"])
    if op == "Div":
        other = g.node("Add", g.node("Abs", other), g.number(0.5))
    elif g.maybe(0.3):
        name, other = other, name
    return g.node(op, name, other), shape


@_step
def _power(g: RandomGraph, value: Value) -> Value:
    return g.node("Pow", g.node("Tanh", value[0]), g.number(g.choose.choice([2.0, 3.0]))), value[1]


@_step
def _choice(g: RandomGraph, value: Value) -> Value | None:
    inputs = [v for v in g.inputs if v[1] == value[1]]
    if not inputs:
        return None
    op = g.choose.choice(["Greater", "Less", "GreaterOrEqual", "LessOrEqual"])
    condition = g.node(op, g.choose.choice(inputs)[0], g.number(0.1))
    if g.maybe(0.3):
        condition = g.node("Not", condition)
    return g.node("Where", condition, value[0], g.like(value)), value[1]


@_step
def _product(g: RandomGraph, value: Value) -> Value | None:
    name, (*outer, width) = value
    if not isinstance(width, int):
        return None
    columns = g.choose.choice([1, 4, 8, 5])
    y = g.node("MatMul", name, g.weight(width, columns))
    if g.maybe():
        y = g.node("Add", y, g.weight(columns))
    return y, (*outer, columns)


@_step
def _gemm(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if len(shape) != 2 or not isinstance(shape[1], int):
        return None
    columns, transposed = g.choose.choice([3, 8]), g.maybe()
    weight = g.weight(*((columns, shape[1]) if transposed else (shape[1], columns)))
    factors = {"alpha": g.choose.choice([1.0, 0.5]), "beta": g.choose.choice([1.0, 2.0])}
    y = g.node("Gemm", name, weight, g.weight(columns), transB=int(transposed), **factors)
    return y, (shape[0], columns)


@_step
def _attention(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if len(shape) < 3:
        return None
    swapped = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    scores = g.node("MatMul", name, g.node("Transpose", g.like(value), perm=swapped))
    if g.maybe():
        scores = g.node(g.choose.choice(["Mul", "Div"]), scores, g.number(2.0))
    scores = g.node("Softmax", scores, axis=-1)
    return g.node("MatMul", scores, g.like(value)), shape


@_step
def _convolution(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if len(shape) != 4 or not isinstance(shape[1], int):
        return None
    groups = g.choose.choice([1, 1, shape[1]])
    channels = shape[1] * g.choose.choice([1, 2]) if groups > 1 else g.choose.choice([2, 6])
    kernel = g.choose.choice([1, 3])
    operands = [name, g.weight(channels, shape[1] // groups, kernel, kernel)]
    if g.maybe():
        operands.append(g.weight(channels))
    y = g.node("Conv", *operands, group=groups, pads=[kernel // 2] * 4)
    if g.maybe():
        variance = g.constant((g.numbers.random(channels) + 0.5).astype("float32"))
        statistics = [*(g.weight(channels) for _ in range(3)), variance]
        y = g.node("BatchNormalization", y, *statistics)
    if g.maybe():
        y = g.node("Mul", y, g.node("Sigmoid", y)) if g.maybe() else g.node("Relu", y)
    return y, (shape[0], channels, *shape[2:])


@_step
def _pool(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if len(shape) != 4:
        return None
    if g.maybe():
        return g.node("GlobalAveragePool", name), (*shape[:2], 1, 1)
    height, width = shape[2:]
    if not (isinstance(height, int) and isinstance(width, int) and min(height, width) > 1):
        return None
    op = g.choose.choice(["MaxPool", "AveragePool"])
    y = g.node(op, name, kernel_shape=[2, 2], strides=[2, 2])
    return y, (*shape[:2], height // 2, width // 2)


@_step
def _norm(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    # One element has no variance, so that its result is rounding alone.
    if not isinstance(shape[-1], int) or shape[-1] < 4:
        return None
    if g.maybe():
        return g.node("Softmax", name, axis=-1), shape
    weights = [g.weight(shape[-1]) for _ in range(2)]
    return g.node("LayerNormalization", name, *weights, axis=-1, epsilon=1e-2), shape


@_step
def _reduction(g: RandomGraph, value: Value) -> Value:
    name, shape = value
    axis = g.choose.randrange(len(shape))
    op = g.choose.choice(["Mean", "Max", "Sum", "Min", "L2", "SumSquare", "LogSumExp"])
    y = g.node(f"Reduce{op}", name, g.sizes(axis), keepdims=1)
    if g.maybe():
        return g.node("Sub", name, y), shape
    return y, (*shape[:axis], 1, *shape[axis + 1 :])


@_step
def _transpose(g: RandomGraph, value: Value) -> Value:
    order = list(range(len(value[1])))
    g.choose.shuffle(order)
    return g.node("Transpose", value[0], perm=order), tuple(value[1][d] for d in order)


@_step
def _heads(g: RandomGraph, value: Value) -> Value | None:
    """As exporters split heads: by sizes that the graph computes."""
    name, shape = value
    if len(shape) != 3 or not isinstance(shape[2], int) or shape[2] % 2:
        return None
    given = g.node("Shape", name)
    kept = [g.node("Gather", given, g.sizes(d)) for d in (0, 1)]
    wanted = g.node("Concat", *kept, g.sizes(2), g.sizes(-1), axis=0)
    y = g.node("Transpose", g.node("Reshape", name, wanted), perm=[0, 2, 1, 3])
    return y, (shape[0], 2, shape[1], shape[2] // 2)


def _fixed_axis(g: RandomGraph, shape: tuple[Size, ...]) -> tuple[int, int] | None:
    """An axis of known size of at least 2, and the size."""
    axes = [(d, size) for d, size in enumerate(shape) if isinstance(size, int) and size > 1]
    return g.choose.choice(axes) if axes else None


@_step
def _concat(g: RandomGraph, value: Value) -> Value | None:
    found = _fixed_axis(g, value[1])
    if found is None:
        return None
    axis, size = found
    y = g.node("Concat", value[0], g.like(value), axis=axis)
    return y, (*value[1][:axis], 2 * size, *value[1][axis + 1 :])


@_step
def _slice(g: RandomGraph, value: Value) -> Value | None:
    found = _fixed_axis(g, value[1])
    if found is None:
        return None
    axis, size = found
    begin, end, step = g.choose.choice([(1, size, 1), (0, size, 2), (size - 1, -size - 1, -1)])
    left = size - 1 if (step, begin) == (1, 1) else (size + 1) // 2 if step == 2 else size
    operands = [g.sizes(number) for number in (begin, end, axis, step)]
    return g.node("Slice", value[0], *operands), (*value[1][:axis], left, *value[1][axis + 1 :])


@_step
def _gather(g: RandomGraph, value: Value) -> Value | None:
    found = _fixed_axis(g, value[1])
    if found is None:
        return None
    axis, size = found
    places = g.sizes(*g.numbers.integers(-size, size, 3).tolist())
    return g.node("Gather", value[0], places, axis=axis), (
        *value[1][:axis],
        3,
        *value[1][axis + 1 :],
    )


@_step
def _pad(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if not isinstance(shape[-1], int) or shape[-1] < 3:
        return None
    pads = [0] * (len(shape) - 1)
    mode = g.choose.choice(["constant", "edge", "reflect"])
    y = g.node("Pad", name, g.sizes(*pads, 1, *pads, 2), mode=mode)
    return y, (*shape[:-1], shape[-1] + 3)


@_step
def _resize(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if len(shape) != 4:
        return None
    height, width = shape[2:]
    if not (isinstance(height, int) and isinstance(width, int) and height < 20):
        return None
    scales = g.constant(np.array([1, 1, 2, 2], "float32"))
    places = g.choose.choice(["asymmetric", "half_pixel", "align_corners"])
    y = g.node("Resize", name, "", scales, mode="linear", coordinate_transformation_mode=places)
    return y, (*shape[:2], 2 * height, 2 * width)


@_step
def _cumulative(g: RandomGraph, value: Value) -> Value:
    axis = g.constant(np.int64(g.choose.randrange(len(value[1]))))
    flags = {name: g.choose.randrange(2) for name in ("exclusive", "reverse")}
    return g.node("CumSum", value[0], axis, **flags), value[1]


@_step
def _recurrent(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if len(shape) != 3 or not isinstance(shape[2], int):
        return None
    op, gates = g.choose.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = g.choose.choice(["forward", "reverse", "bidirectional"])
    hidden, count = 3, 2 if direction == "bidirectional" else 1
    shapes = [(gates * hidden, shape[2]), (gates * hidden, hidden), (2 * gates * hidden,)]
    weights = [g.weight(count, *each) for each in shapes]
    y = g.node(op, name, *weights, hidden_size=hidden, direction=direction)
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    return g.node("Reshape", y, g.sizes(0, 0, -1)), (*shape[:2], count * hidden)


@_step
def _new_axis(g: RandomGraph, value: Value) -> Value | None:
    name, shape = value
    if len(shape) > 4:
        return None
    axis = g.choose.randint(0, len(shape))
    return g.node("Unsqueeze", name, g.sizes(axis)), (*shape[:axis], 1, *shape[axis:])
