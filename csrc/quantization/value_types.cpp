#include "quantization/value_types.h"

#include <algorithm>
#include <set>

#include "onnx/onnx_types.h"
#include "quantization/graph_edit.h"

namespace ortmodule {
namespace {

constexpr int kFloat = 1, kUInt8 = 2, kInt32 = 6, kInt64 = 7, kBool = 9;

int number_of(const OnnxTensor& tensor) {
  return tensor.dtype == DType::Undefined ? tensor.element_type : onnx_number(tensor.dtype);
}

int number_of(const OnnxType& type) {
  if (type.kind != OnnxType::Kind::Tensor) return 0;
  return type.dtype == DType::Undefined ? type.element_type : onnx_number(type.dtype);
}

int type_of_constant(const OnnxNode& node) {
  for (const auto& [name, value] : node.attrs) {
    if (const auto* tensor = std::get_if<OnnxTensor>(&value)) return number_of(*tensor);
    if (name == "value_float" || name == "value_floats") return kFloat;
    if (name == "value_int" || name == "value_ints") return kInt64;
  }
  return node.op == "ConstantOfShape" ? kFloat : 0;
}

}  // namespace

ValueTypes::ValueTypes(const OnnxGraph& graph, const ValueTypes* outer) : outer_(outer) {
  const auto declare = [&](const std::vector<OnnxValue>& values) {
    for (const OnnxValue& value : values)
      if (const int type = number_of(value.type)) types_.emplace(value.name, type);
  };
  declare(graph.inputs);
  declare(graph.values);
  declare(graph.outputs);
  for (const OnnxInitializer& initializer : graph.initializers)
    types_[initializer.name] = number_of(initializer.tensor);
  for (const OnnxNode& node : graph.nodes)
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (types_.count(node.outputs[i]) == 0)
        types_.emplace(node.outputs[i], type_of_output(node, i));
}

int ValueTypes::of(const std::string& name) const {
  const auto found = types_.find(name);
  if (found != types_.end()) return found->second;
  return outer_ ? outer_->of(name) : 0;
}

// A Loop's body has a condition before its results.
int ValueTypes::type_of_result(const OnnxNode& node, const OnnxGraph& body, size_t index) const {
  const size_t at = index + (node.op == "Loop" ? 1 : 0);
  if (at >= body.outputs.size()) return 0;
  if (const int type = number_of(body.outputs[at].type)) return type;
  return ValueTypes(body, this).of(body.outputs[at].name);
}

int ValueTypes::type_of_output(const OnnxNode& node, size_t index) const {
  static const std::set<std::string> booleans = {
      "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And",
      "Or",    "Xor",     "IsNaN",          "IsInf"};
  static const std::set<std::string> indices = {"Shape",  "Size",    "ArgMax",
                                                "ArgMin", "NonZero", "NonMaxSuppression"};
  static const std::set<std::string> sums = {"MatMulInteger", "ConvInteger"};
  // The type is that of the first input in these, and in other operators of the standard domain.
  if (!node.domain.empty() && node.domain != "com.microsoft") return 0;
  if (booleans.count(node.op) > 0) return kBool;
  if (indices.count(node.op) > 0) return kInt64;
  if (sums.count(node.op) > 0) return kInt32;
  if (node.op == "Cast") return static_cast<int>(integer_attr(node, "to", 0));
  if (node.op == "Constant" || node.op == "ConstantOfShape") return type_of_constant(node);
  if (node.op == "Where" || node.op == "DequantizeLinear" || node.op == "CastLike")
    return of(input_of(node, 1));
  if (node.op == "OneHot") return of(input_of(node, 2));
  if (const int64_t type = integer_attr(node, "dtype", 0)) return static_cast<int>(type);
  if (node.op == "DynamicQuantizeLinear") return index == 1 ? kFloat : kUInt8;
  if (node.op == "QuantizeLinear")
    return input_of(node, 2).empty() ? kUInt8 : of(input_of(node, 2));
  if (index > 0 && (node.op == "TopK" || node.op == "MaxPool")) return kInt64;
  if (index > 0 && node.op == "Unique") return kInt64;
  if (index > 0 && node.op == "Dropout") return kBool;
  if (node.op == "If" || node.op == "Loop" || node.op == "Scan") {
    for (const auto& [name, value] : node.attrs)
      if (const auto* body = std::get_if<std::shared_ptr<const OnnxGraph>>(&value))
        if (const int type = type_of_result(node, **body, index)) return type;
    return 0;
  }
  if (node.inputs.empty()) return 0;
  return of(node.inputs[0]);
}

}  // namespace ortmodule
