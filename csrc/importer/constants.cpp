// Import of constants.
#include "base/error.h"
#include "importer/importer.h"
#include "onnx/onnx_types.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

ImportedRef of_texts(const ControlCall& c, std::vector<std::string> texts, bool scalar) {
  OnnxTensor tensor;
  tensor.element_type = kOnnxString;
  if (!scalar) tensor.dims = {static_cast<int64_t>(texts.size())};
  tensor.strings = std::move(texts);
  return c.importer.of_constant(tensor);
}

template <class T>
ImportedRef of_numbers(const std::vector<T>& numbers, DType dtype, bool scalar) {
  KnownValue known{dtype, {}, {}};
  if (!scalar) known.dims = {static_cast<int64_t>(numbers.size())};
  for (const T& number : numbers) {
    if constexpr (std::is_floating_point_v<T>)
      known.elements.push_back(KnownNumber::real(number));
    else
      known.elements.emplace_back(number);
  }
  return Importer::of_known(std::move(known));
}

std::vector<ImportedRef> import_constant(const ControlCall& c) {
  for (const auto& [name, value] : c.node.attrs) {
    if (const auto* tensor = std::get_if<OnnxTensor>(&value))
      return {c.importer.of_constant(*tensor)};
    if (const auto* text = std::get_if<std::string>(&value)) return {of_texts(c, {*text}, true)};
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value))
      return {of_texts(c, *texts, false)};
    if (const auto* integer = std::get_if<int64_t>(&value))
      return {of_numbers(std::vector{*integer}, DType::Int64, true)};
    if (const auto* number = std::get_if<double>(&value))
      return {of_numbers(std::vector{*number}, DType::Float32, true)};
    if (const auto* integers = std::get_if<std::vector<int64_t>>(&value))
      return {of_numbers(*integers, DType::Int64, false)};
    if (const auto* numbers = std::get_if<std::vector<double>>(&value))
      return {of_numbers(*numbers, DType::Float32, false)};
  }
  c.refuse("it must have a value that is a tensor, numbers or texts");
}

const ControlRegistrar kRows({{"Constant", import_constant}});

}  // namespace
}  // namespace ortmodule
