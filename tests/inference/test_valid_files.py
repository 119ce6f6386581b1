"""Which files a session refuses when it opens them: those that onnxruntime refuses, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession
from ortmodule_py.inference import Fail
from tests.inference.test_session import ONE_THREAD

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = np.linspace(-2, 3, 6, dtype="float32").reshape(2, 3)
MICROSOFT = "com.microsoft"

node, value = helper.make_node, helper.make_tensor_value_info


def file_of(
    *nodes: onnx.NodeProto,
    inputs: tuple[onnx.ValueInfoProto, ...] = (value("x", FLOAT, [2, 3]),),
    values: tuple[onnx.ValueInfoProto, ...] = (),
    output: int = FLOAT,
    opsets: dict[str, int] | None = None,
    functions: tuple[onnx.FunctionProto, ...] = (),
    **weights: Any,
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs),
        [value("y", output, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
        value_info=list(values),
    )
    imported = {"": 17} | (opsets or {})
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*each) for each in imported.items() if each[1]],
        ir_version=8,
        functions=functions,
    )
    return bytes(model.SerializeToString())


def function(*nodes: onnx.NodeProto, domain: str = "my", name: str = "F", **opsets: int) -> Any:
    imports = [helper.make_opsetid("", opsets.pop("standard", 17))]
    imports += [helper.make_opsetid(*each) for each in opsets.items()]
    imports = [each for each in imports if each.version]
    return helper.make_function(domain, name, ["a"], ["b"], list(nodes), imports)


def call(*nodes: onnx.NodeProto, **opsets: int) -> bytes:
    """A model that calls a function of these nodes."""
    made = function(*nodes, **opsets)
    return file_of(node("F", ["x"], ["y"], domain="my"), functions=(made,), opsets={"my": 1})


def branch(*nodes: onnx.NodeProto, output: str = "r", kind: int = FLOAT, **weights: Any) -> bytes:
    """A model whose first branch has these nodes, behind a value q."""
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    result = value(output, kind, None)
    then = helper.make_graph(list(nodes), "then", [], [result], initializers)
    other = [node("Cast", ["x"], ["o"], to=kind)]
    otherwise = helper.make_graph(other, "otherwise", [], [value("o", kind, None)])
    chosen = node("If", ["flag"], ["z"], then_branch=then, else_branch=otherwise)
    flag = value("flag", BOOL, [])
    return file_of(
        node("Abs", ["x"], ["q"]),
        chosen,
        node("Add", ["z", "q"], ["y"]),
        inputs=(value("x", FLOAT, [2, 3]), flag),
        w=X,
    )


def without(field: str) -> bytes:
    model = onnx.load_from_string(file_of(node("Relu", ["x"], ["y"])))
    if field == "element type":
        model.graph.input[0].type.tensor_type.elem_type = 0
    else:
        model.graph.input[0].ClearField("type")
    return bytes(model.SerializeToString())


RELU = node("Relu", ["x"], ["y"])
INVALID = {
    "an unknown attribute": (file_of(node("Relu", ["x"], ["y"], alpha=1.0)), "found 'alpha'"),
    "an attribute of an earlier set": (
        file_of(node("ReduceSum", ["x"], ["y"], axes=[0])),
        "of the operator .keepdims, noop_with_empty_axes.*'axes'",
    ),
    "an attribute of contrib": (
        file_of(node("Gelu", ["x"], ["y"], domain=MICROSOFT, alpha=1.0)),
        "found 'alpha'",
    ),
    "an attribute in a function": (call(node("Relu", ["a"], ["b"], alpha=1.0)), "found 'alpha'"),
    "an attribute in a branch": (branch(node("Neg", ["x"], ["r"], alpha=1.0)), "found 'alpha'"),
    "a missing attribute": (file_of(node("Concat", ["x", "x"], ["y"])), "'axis' must be given"),
    "too many operands": (file_of(node("Relu", ["x", "x"], ["y"])), "at most 1 operands"),
    "an absent operand too many": (file_of(node("Relu", ["x", ""], ["y"])), "some of them absent"),
    "too many outputs": (file_of(node("Relu", ["x"], ["y", "z"])), "at most 1 outputs"),
    "no output": (file_of(node("Relu", ["x"], []), RELU), "output 0 must be given"),
    "too many operands of a call": (
        file_of(
            node("F", ["x", "x"], ["y"], domain="my"),
            functions=(function(node("Relu", ["a"], ["b"])),),
            opsets={"my": 1},
        ),
        "at most 1 operands",
    ),
    "a removed operator": (
        file_of(node("Scatter", ["x", "i", "x"], ["y"]), i=np.zeros((2, 3), "int64")),
        "operator set 11 has removed it",
    ),
    "nodes of one name": (
        file_of(node("Abs", ["x"], ["q"], name="n"), node("Relu", ["q"], ["y"], name="n")),
        "each node must have a name of its own",
    ),
    "a name of the graph around": (
        branch(node("Relu", ["x"], ["q"]), node("Neg", ["q"], ["r"])),
        "found another 'q'",
    ),
    "an output of the graph around": (branch(node("Neg", ["x"], ["r"]), output="q"), "Identity"),
    "an unknown operator in a branch": (branch(node("Nonsense", ["x"], ["r"])), "no such operator"),
    "a domain that is not imported": (
        file_of(
            node("F", ["x"], ["y"], domain="my"), functions=(function(node("Relu", ["a"], ["b"])),)
        ),
        "must import the operator set of its domain 'my'",
    ),
    "a function without operator sets": (
        call(node("Relu", ["a"], ["b"]), standard=0),
        "the function must import",
    ),
    "a value of another type": (
        file_of(
            node("Abs", ["x"], ["q"]),
            node("Relu", ["q"], ["y"]),
            values=(value("q", INT64, [2, 3]),),
        ),
        "the type that the file declares, int64, but is float",
    ),
    "an input without a type": (without("type"), "an input must have a type"),
    "an input without an element type": (without("element type"), "element type must be one"),
}


@pytest.mark.parametrize("what", INVALID)
def test_what_onnxruntime_refuses(what: str) -> None:
    model, message = INVALID[what]
    with pytest.raises(Exception):  # noqa: B017 of one class or another
        onnxruntime.InferenceSession(model)
    with pytest.raises(Fail, match=message):
        InferenceSession(model, ONE_THREAD)


def test_an_attribute_that_is_given_twice() -> None:
    model = onnx.load_from_string(file_of(node("Flatten", ["x"], ["y"], axis=1)))
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    with pytest.raises(Fail, match="'axis' must be given once"):
        InferenceSession(model.SerializeToString(), ONE_THREAD)


ONLY_ML = {"": 0, "ai.onnx.ml": 3}
UNUSED = function(node("Nonsense", ["a"], ["b"], alpha=1.0))
VALID = {
    "a note of a tool": file_of(node("Relu", ["x"], ["y"], __note=1)),
    "constants of one name": file_of(
        node("Constant", [], ["k"], name="n", value_float=2.0),
        node("Constant", [], ["l"], name="n", value_float=3.0),
        node("Sum", ["x", "k", "l"], ["y"]),
    ),
    "a constant of another declared type": file_of(
        node("Constant", [], ["k"], value_float=2.0),
        node("Mul", ["x", "k"], ["y"]),
        values=(value("k", INT64, []),),
    ),
    "a weight that hides a value": branch(node("Add", ["x", "q"], ["r"]), q=X),
    "a function that is not called": file_of(RELU, functions=(UNUSED,), opsets={"my": 1}),
    "a function beside an operator of its name": file_of(
        node("Gelu", ["x"], ["y"], domain=MICROSOFT),
        functions=(function(node("Neg", ["a"], ["b"]), domain=MICROSOFT, name="Gelu"),),
        opsets={MICROSOFT: 1},
    ),
    "no standard operator set": file_of(
        node("Binarizer", ["x"], ["b"], domain="ai.onnx.ml"),
        node("ReduceSum", ["b", "axes"], ["y"]),
        opsets=ONLY_ML,
        axes=np.array([1]),
    ),
}


def results(session: Any) -> np.ndarray:
    feeds = {"x": X, "flag": np.array(True)}
    names = {each.name for each in session.get_inputs()}
    (y,) = session.run(None, {name: feeds[name] for name in names})
    return np.asarray(y)


@pytest.mark.parametrize("what", VALID)
def test_what_onnxruntime_takes(what: str) -> None:
    theirs = results(onnxruntime.InferenceSession(VALID[what]))
    np.testing.assert_allclose(results(InferenceSession(VALID[what], ONE_THREAD)), theirs, 1e-6)


def test_a_model_in_memory_finds_its_data_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load_from_string(file_of(node("MatMul", ["x", "w"], ["y"]), w=X.T @ X))
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
        convert_attribute=False,
    )
    content = (tmp_path / "m.onnx").read_bytes()
    with pytest.raises(Fail, match=r"'w\.bin' cannot be read"):
        InferenceSession(content, ONE_THREAD)
    monkeypatch.chdir(tmp_path)
    theirs = results(onnxruntime.InferenceSession(content))
    np.testing.assert_allclose(results(InferenceSession(content, ONE_THREAD)), theirs, 1e-5)


@pytest.mark.parametrize("count", [0, 2])
def test_a_loop_that_may_not_run_with_a_body_without_types(count: int) -> None:
    names = ["i", "again", "v"], ["more", "sum", "sums"]
    kinds = {"i": INT64, "again": BOOL, "v": FLOAT}
    body = helper.make_graph(
        [
            node("Identity", ["again"], ["more"]),
            node("Add", ["v", "v"], ["sum"]),
            node("Identity", ["sum"], ["sums"]),
        ],
        "body",
        [value(name, kinds[name], [2, 3] if name == "v" else []) for name in names[0]],
        [onnx.ValueInfoProto(name=name) for name in names[1]],
    )
    content = file_of(
        node("Loop", ["n", "", "x"], ["last", "y"], body=body),
        inputs=(value("x", FLOAT, [2, 3]), value("n", INT64, [])),
    )
    feeds = {"x": X, "n": np.array(count)}
    (theirs,) = onnxruntime.InferenceSession(content).run(None, feeds)
    (ours,) = InferenceSession(content, ONE_THREAD).run(None, feeds)
    np.testing.assert_array_equal(ours, theirs)
