#include "importer/found_node.h"

#include <string_view>
#include <variant>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "ops/infer_rules.h"

namespace ortmodule {
namespace {

constexpr size_t kMostShown = 8;  // facts, and numbers of a list

template <class Number>
std::string list_text(const std::vector<Number>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size() && i < kMostShown; ++i)
    text += str(i ? "," : "", numbers[i]);
  return str("[", text, numbers.size() > kMostShown ? ",...]" : "]");
}

// "" for what is not shown, such as tensors.
std::string attr_text(const OnnxAttr& attr) {
  if (const auto* number = std::get_if<int64_t>(&attr)) return str(*number);
  if (const auto* number = std::get_if<double>(&attr)) return str(*number);
  if (const auto* text = std::get_if<std::string>(&attr)) return str("'", *text, "'");
  if (const auto* list = std::get_if<std::vector<int64_t>>(&attr)) return list_text(*list);
  if (const auto* list = std::get_if<std::vector<double>>(&attr)) return list_text(*list);
  return {};
}

std::string operand_text(const std::string& name, const Imported& operand) {
  if (operand.sequence || operand.dtype == DType::Undefined) return str("'", name, "'");
  return str("'", name, "' ", onnx_type_name(onnx_number(operand.dtype)), dims_text(operand.dims));
}

}  // namespace

std::string with_found(std::string why, const OnnxNode& node,
                       const std::vector<ImportedRef>& operands) {
  if (why.find(" but ") != std::string::npos) return why;
  std::vector<std::string> facts;
  for (size_t i = 0; i < operands.size() && i < node.inputs.size(); ++i)
    if (operands[i]) facts.push_back(operand_text(node.inputs[i], *operands[i]));
  for (const auto& [name, attr] : node.attrs)
    if (const std::string text = attr_text(attr); !text.empty())
      facts.push_back(str(name, "=", text));
  for (size_t i = 0; i < facts.size() && i < kMostShown; ++i)
    why += str(i == 0 ? ", but found " : ", ", facts[i]);
  return facts.size() > kMostShown ? why + ", ..." : why;
}

}  // namespace ortmodule
