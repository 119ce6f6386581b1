"""Our reader finds in files of others what onnx's own Python package finds."""

import gc
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto
from onnx.backend.test.case.node import collect_testcases

from ortmodule_py import _C, ORTModuleError

BACKEND_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
MODEL_PACKAGES = ("rapidocr_onnxruntime", "silero_vad", "magika")
# The field of elements that are not raw, and the bytes of its numbers.
TYPED = {
    TensorProto.FLOAT: ("float_data", "f4"),
    TensorProto.COMPLEX64: ("float_data", "f4"),
    TensorProto.DOUBLE: ("double_data", "f8"),
    TensorProto.COMPLEX128: ("double_data", "f8"),
    TensorProto.INT64: ("int64_data", "i8"),
    TensorProto.UINT64: ("uint64_data", "u8"),
    TensorProto.UINT32: ("uint64_data", "u4"),
    TensorProto.INT32: ("int32_data", "u4"),
    TensorProto.INT16: ("int32_data", "u2"),
    TensorProto.UINT16: ("int32_data", "u2"),
    TensorProto.FLOAT16: ("int32_data", "u2"),
    TensorProto.BFLOAT16: ("int32_data", "u2"),
}


def models_of(package):
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} must be installed: make build"
    return sorted(Path(spec.submodule_search_locations[0]).rglob("*.onnx"))


# ---- a model that onnx parsed, in the form of `OnnxModel.contents()` -----------------------------


def domain_of(name):
    return "" if name == "ai.onnx" else name


def typed_bytes(tensor):
    field, width = TYPED.get(tensor.data_type, ("int32_data", "u1"))
    numbers = np.array(getattr(tensor, field))
    return numbers.astype(width).tobytes()


def tensor_of(tensor):
    elements = tensor.raw_data
    if tensor.data_type == TensorProto.STRING:
        elements = list(tensor.string_data) or b""
    elif not elements:
        elements = typed_bytes(tensor)
    return (tensor.data_type, list(tensor.dims), elements)


def dense_of(sparse):
    values, dims = tensor_of(sparse.values), list(sparse.dims)
    indices = np.frombuffer(tensor_of(sparse.indices)[2], "i8").reshape(len(sparse.values.dims), -1)
    indices = indices.reshape(sparse.indices.dims)
    width = len(values[2]) // max(1, sparse.values.dims[0])
    dense = np.zeros((*dims, width), "u1")
    places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
    dense.reshape(-1, width)[places] = np.frombuffer(values[2], "u1").reshape(-1, width)
    return (values[0], dims, dense.tobytes())


def dim_of(dim):
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def type_of(kind, proto):
    if kind in ("tensor", "sparse_tensor"):
        dims = [dim_of(dim) for dim in proto.shape.dim] if proto.HasField("shape") else None
        return (kind, proto.elem_type, dims, None)
    key = proto.key_type if kind == "map" else 0
    inner = proto.value_type if kind == "map" else proto.elem_type
    return (kind, key, None, any_type_of(inner))


def any_type_of(proto):
    which = proto.WhichOneof("value")
    if which is None or which == "opaque_type":
        return ("", 0, None, None)
    return type_of(which.removesuffix("_type"), getattr(proto, which))


READ_ATTRIBUTE = {
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.STRING: lambda a: a.s,
    AttributeProto.TENSOR: lambda a: tensor_of(a.t),
    AttributeProto.GRAPH: lambda a: graph_of(a.g),
    AttributeProto.FLOATS: lambda a: list(a.floats),
    AttributeProto.INTS: lambda a: list(a.ints),
    AttributeProto.STRINGS: lambda a: list(a.strings),
    AttributeProto.TENSORS: lambda a: [tensor_of(t) for t in a.tensors],
    AttributeProto.GRAPHS: lambda a: [graph_of(g) for g in a.graphs],
    AttributeProto.SPARSE_TENSOR: lambda a: dense_of(a.sparse_tensor),
    AttributeProto.TYPE_PROTO: lambda a: any_type_of(a.tp),
    AttributeProto.TYPE_PROTOS: lambda a: [any_type_of(t) for t in a.type_protos],
}


def attribute_of(attribute):
    if attribute.ref_attr_name:
        return ("reference", attribute.ref_attr_name, attribute.type)
    return READ_ATTRIBUTE[attribute.type](attribute)


def attributes_of(attributes):
    return {a.name: attribute_of(a) for a in attributes}


def nodes_of(nodes):
    return [
        (
            node.op_type,
            domain_of(node.domain),
            node.overload,
            node.name,
            list(node.input),
            list(node.output),
            attributes_of(node.attribute),
        )
        for node in nodes
    ]


def values_of(values):
    return [(value.name, any_type_of(value.type)) for value in values]


def opsets_of(opsets):
    return [(domain_of(opset.domain), opset.version) for opset in opsets]


def graph_of(graph):
    initializers = [(tensor.name, tensor_of(tensor)) for tensor in graph.initializer]
    initializers += [(s.values.name, dense_of(s)) for s in graph.sparse_initializer]
    return {
        "name": graph.name,
        "nodes": nodes_of(graph.node),
        "inputs": values_of(graph.input),
        "outputs": values_of(graph.output),
        "values": values_of(graph.value_info),
        "initializers": initializers,
    }


def function_of(function):
    return (
        function.name,
        domain_of(function.domain),
        function.overload,
        list(function.input),
        list(function.output),
        list(function.attribute),
        attributes_of(function.attribute_proto),
        nodes_of(function.node),
        opsets_of(function.opset_import),
    )


def contents_of(model):
    return {
        "ir_version": model.ir_version,
        "producer": model.producer_name,
        "opsets": opsets_of(model.opset_import),
        "metadata": [(entry.key, entry.value) for entry in model.metadata_props],
        "functions": [function_of(function) for function in model.functions],
        "graph": graph_of(model.graph),
    }


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.slow  # onnx computes the cases when it makes them, which takes five seconds
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_node_test_of_onnx_reads_the_same(tmp_path):
    path = tmp_path / "model.onnx"
    cases = collect_testcases(None)
    assert len(cases) > 1500
    for case in cases:
        path.write_bytes(case.model.SerializeToString())
        assert _C.read_onnx_model(str(path)).contents() == contents_of(case.model), case.name


def test_every_file_of_onnx_reads_the_same():
    paths = sorted(BACKEND_DATA.rglob("*.onnx"))
    assert len(paths) > 100
    for path in paths:
        assert _C.read_onnx_model(str(path)).contents() == contents_of(onnx.load(path)), path


@pytest.mark.parametrize("package", MODEL_PACKAGES)
def test_models_of_others_read_the_same(package):
    paths = models_of(package)
    assert paths
    for path in paths:
        assert _C.read_onnx_model(str(path)).contents() == contents_of(onnx.load(path)), path


def anonymous_bytes():
    """Memory of this process that is no file's."""
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def tensors_of(graph):
    yield from graph.initializer
    for node in graph.node:
        for a in node.attribute:
            yield from a.tensors
            if a.HasField("t"):
                yield a.t
            for inner in (*a.graphs, *([a.g] if a.HasField("g") else [])):
                yield from tensors_of(inner)


def test_raw_data_stays_in_the_file():
    paths = [path for package in MODEL_PACKAGES for path in models_of(package)]
    total = sum(path.stat().st_size for path in paths)
    raw = sum(len(t.raw_data) for path in paths for t in tensors_of(onnx.load(path).graph))
    assert raw > 0.9 * total
    before = anonymous_bytes()
    held = [_C.read_onnx_model(str(path)) for path in paths]
    # Nodes take more memory than in the file.
    assert anonymous_bytes() - before < 2 * (total - raw) + 0.05 * total
    assert len(held) == len(paths)


def test_errors_are_ours_and_name_the_file(tmp_path):
    path = tmp_path / "no_model.onnx"
    path.write_text("no model")
    with pytest.raises(
        ORTModuleError, match=r"\[onnx\] .*no_model.onnx: must be an ONNX model: field 13"
    ):
        _C.read_onnx_model(str(path))
    with pytest.raises(ORTModuleError, match=r"missing.onnx: cannot be read: No such file"):
        _C.read_onnx_model(str(tmp_path / "missing.onnx"))
