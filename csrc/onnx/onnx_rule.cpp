#include "onnx/onnx_rule.h"

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"

namespace ortmodule {
namespace {

bool all_constant(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](const DimExpr& d) { return d.is_constant(); });
}

bool has_rounded_literal(const Node& node) {
  return std::any_of(node.inputs().begin(), node.inputs().end(), [](const Value* input) {
    if (!input || !input->is_literal()) return false;
    const auto* number = std::get_if<double>(&input->literal());
    return compute_dtype(input->dtype) != input->dtype &&
           !(number && is_exact_in(*number, input->dtype));
  });
}

// The type in which to compute `op`: int32 where ONNX does not support bool or uint8.
DType arithmetic_dtype(std::string_view op, DType dtype) {
  static constexpr std::string_view kLogic[] = {"And", "Or", "Xor", "Not", "Equal", "Where"};
  const bool logic = std::find(std::begin(kLogic), std::end(kLogic), op) != std::end(kLogic);
  if (dtype == DType::Bool && !logic) return DType::Int32;
  if (dtype == DType::UInt8 && (op == "Neg" || op == "Relu")) return DType::Int32;
  return dtype;
}

}  // namespace

std::string onnx_tensor(OnnxBuilder& builder, const Value* value,
                        const std::unordered_map<const Value*, std::string>& names) {
  if (!value) return "";
  if (!value->is_literal()) return names.at(value);
  if (const auto* number = std::get_if<double>(&value->literal()))
    return builder.scalar(*number, value->dtype);
  const DimExpr& dim = std::get<DimExpr>(value->literal());
  if (dim.is_constant() && value->dtype != DType::Int64)
    return builder.scalar(static_cast<double>(dim.value()), value->dtype);
  const std::string size = builder.size_scalar(dim);
  return value->dtype == DType::Int64 ? size : builder.add("Cast", {size}, {{"to", value->dtype}});
}

std::vector<std::string> OnnxRuleContext::ins() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < node.inputs().size(); ++i) names.push_back(in(i));
  return names;
}

bool OnnxRuleContext::wanted(size_t i) const {
  if (i >= node.outputs().size()) return false;
  const Value* output = node.output(i);
  return !output->uses().empty() || output->is_graph_output();
}

OnnxAttrs OnnxRuleContext::pick(const std::vector<std::string_view>& names) const {
  OnnxAttrs picked;
  for (std::string_view name : names)
    if (const Attr* attr = attrs().find(name)) picked.emplace_back(name, to_onnx_attr(*attr));
  return picked;
}

int64_t OnnxRuleContext::axis(std::string_view name, size_t rank) const {
  const int64_t value = attrs().integer(name);
  return value < 0 ? value + static_cast<int64_t>(rank) : value;
}

OnnxAttr to_onnx_attr(const Attr& attr) {
  if (const auto* dim = std::get_if<DimExpr>(&attr)) {
    if (dim->is_constant()) return dim->value();
    return dim->text();
  }
  if (const auto* dims = std::get_if<Dims>(&attr)) {
    if (!all_constant(*dims)) return attr_text(attr);
    std::vector<int64_t> values;
    for (const DimExpr& dim : *dims) values.push_back(dim.value());
    return values;
  }
  if (const auto* number = std::get_if<double>(&attr)) return *number;
  if (const auto* numbers = std::get_if<std::vector<double>>(&attr)) return *numbers;
  if (const auto* text = std::get_if<std::string>(&attr)) return *text;
  if (const auto* dtype = std::get_if<DType>(&attr)) return *dtype;
  return attr_text(attr);
}

void export_directly(const OnnxRuleContext& c) {
  std::vector<std::string> outputs;
  for (size_t i = 0; i < c.node.outputs().size(); ++i)
    outputs.push_back(i == 0 || c.wanted(i) ? c.out(i) : "");
  while (outputs.size() > 1 && outputs.back().empty()) outputs.pop_back();
  c.b.add(c.node.op, c.ins(), c.shared_attrs(), std::move(outputs));
}

void export_pointwise(const OnnxRuleContext& c) {
  const std::string_view op = c.node.op;
  const size_t first = op == "Where" ? 1 : 0;  // the condition is not cast
  const DType dtype = c.dtype(first);
  DType inside = arithmetic_dtype(op, dtype);
  if (has_rounded_literal(c.node)) inside = compute_dtype(dtype);
  if (inside == dtype) return export_directly(c);
  std::vector<std::string> inputs;
  for (size_t i = 0; i < c.node.inputs().size(); ++i) {
    const Value* input = c.node.input(i);
    const auto* number =
        input && input->is_literal() ? std::get_if<double>(&input->literal()) : nullptr;
    if (i < first || !input)
      inputs.push_back(c.in(i));
    else
      inputs.push_back(number ? c.number(*number, inside) : c.cast(c.in(i), inside));
  }
  const OnnxAttrs attrs = c.shared_attrs();
  if (c.node.output()->dtype != dtype) return c.set(0, op, inputs, attrs);  // a comparison
  c.set(0, "Cast", {c.op(op, inputs, attrs)}, {{"to", dtype}});
}

void export_custom(const OnnxRuleContext& c, std::string_view domain) {
  OnnxAttrs attrs;
  for (const auto& [name, attr] : c.attrs().entries()) attrs.emplace_back(name, to_onnx_attr(attr));
  std::vector<std::string> outputs;
  for (size_t i = 0; i < c.node.outputs().size(); ++i) outputs.push_back(c.out(i));
  c.b.add(c.node.op, c.ins(), std::move(attrs), std::move(outputs)).domain = domain;
}

void export_identity(const OnnxRuleContext& c) { c.set(0, "Identity", {c.in(0)}); }

}  // namespace ortmodule
