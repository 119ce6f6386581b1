// What the reader of .onnx files finds, as Python values: for tests.

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/casts/sizes.h"
#include "bindings/topics.h"
#include "onnx/onnx_reader.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

py::dict to_python(const OnnxGraph& graph);

py::object to_python(const OnnxDim& dim) {
  if (const auto* size = std::get_if<int64_t>(&dim)) return py::cast(*size);
  if (const auto* name = std::get_if<std::string>(&dim)) return py::cast(*name);
  return py::none();
}

// (element type, sizes, bytes or strings)
py::tuple to_python(const OnnxTensor& tensor) {
  py::object elements = py::bytes(tensor.bytes.data(), tensor.bytes.size());
  if (tensor.bytes.size() == 0 && !tensor.strings.empty()) {
    py::list strings;
    for (const std::string& text : tensor.strings) strings.append(py::bytes(text));
    elements = std::move(strings);
  }
  return py::make_tuple(tensor.element_type, tensor.dims, elements);
}

// (kind, element type, sizes or None, type of elements or None)
py::tuple to_python(const OnnxType& type) {
  static constexpr const char* kKinds[] = {"",         "tensor",   "sparse_tensor",
                                           "sequence", "optional", "map"};
  py::object dims = py::none();
  if (type.dims) {
    py::list sizes;
    for (const OnnxDim& dim : *type.dims) sizes.append(to_python(dim));
    dims = std::move(sizes);
  }
  py::object element = type.element ? py::object(to_python(*type.element)) : py::none();
  return py::make_tuple(kKinds[static_cast<int>(type.kind)], type.element_type, dims, element);
}

struct AttrValue {
  py::object operator()(int64_t value) const { return py::cast(value); }
  py::object operator()(double value) const { return py::cast(value); }
  py::object operator()(const std::string& value) const { return py::bytes(value); }
  py::object operator()(DType value) const { return py::cast(std::string(name_of(value))); }
  py::object operator()(const OnnxTensor& value) const { return to_python(value); }
  py::object operator()(const OnnxType& value) const { return to_python(value); }
  py::object operator()(const std::shared_ptr<const OnnxGraph>& value) const {
    return to_python(*value);
  }
  py::object operator()(const OnnxAttrReference& value) const {
    return py::make_tuple("reference", value.name, value.type);
  }
  template <class T>
  py::object operator()(const std::vector<T>& values) const {
    py::list list;
    for (const T& value : values) list.append((*this)(value));
    return list;
  }
};

py::dict to_python(const OnnxAttrs& attrs) {
  py::dict values;
  for (const auto& [name, attr] : attrs) values[py::str(name)] = std::visit(AttrValue{}, attr);
  return values;
}

py::list to_python(const std::vector<OnnxNode>& nodes) {
  py::list all;
  for (const OnnxNode& node : nodes)
    all.append(py::make_tuple(node.op, node.domain, node.overload, node.name, node.inputs,
                              node.outputs, to_python(node.attrs)));
  return all;
}

py::list to_python(const std::vector<OnnxValue>& values) {
  py::list all;
  for (const OnnxValue& value : values)
    all.append(py::make_tuple(value.name, to_python(value.type)));
  return all;
}

py::list to_python(const std::vector<OnnxOpset>& opsets) {
  py::list all;
  for (const OnnxOpset& opset : opsets) all.append(py::make_tuple(opset.domain, opset.version));
  return all;
}

py::dict to_python(const OnnxGraph& graph) {
  py::list initializers;
  for (const OnnxInitializer& initializer : graph.initializers)
    initializers.append(py::make_tuple(initializer.name, to_python(initializer.tensor)));
  py::dict all;
  all["name"] = graph.name;
  all["nodes"] = to_python(graph.nodes);
  all["inputs"] = to_python(graph.inputs);
  all["outputs"] = to_python(graph.outputs);
  all["values"] = to_python(graph.values);
  all["initializers"] = initializers;
  return all;
}

py::dict to_python(const OnnxModel& model) {
  py::list functions;
  for (const OnnxFunction& function : model.functions)
    functions.append(py::make_tuple(function.name, function.domain, function.overload,
                                    function.inputs, function.outputs, function.attrs,
                                    to_python(function.defaults), to_python(function.nodes),
                                    to_python(function.opsets)));
  py::dict all;
  all["ir_version"] = model.ir_version;
  all["producer"] = model.producer;
  all["opsets"] = to_python(model.opsets);
  all["metadata"] = model.metadata;
  all["functions"] = functions;
  all["graph"] = to_python(model.graph);
  return all;
}

}  // namespace

void init_onnx(py::module_& m) {
  py::class_<OnnxModel, std::shared_ptr<OnnxModel>>(m, "OnnxModel", "A model as its file holds it.")
      .def(
          "contents", [](const OnnxModel& model) { return to_python(model); },
          "The model as dicts, lists and tuples; tensors are copied.");
  m.def(
      "read_onnx_model",
      [](const std::filesystem::path& path) {
        return std::make_shared<OnnxModel>(read_onnx_model(path.string()));
      },
      py::arg("path"), "Reads an .onnx file of any tool; its tensors stay in the mapped file.");
}

}  // namespace ortmodule::bindings
