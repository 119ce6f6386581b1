#include "kernels/aten/attention_strides.h"

#include <array>
#include <charconv>
#include <string>
#include <string_view>

namespace ortmodule {
namespace {

constexpr std::string_view kPrefix = "aten._scaled_dot_product_";
constexpr std::array<std::string_view, 3> kOperands = {"arg_query", "arg_key", "arg_value"};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The layout of the tensor argument of that name, or null.
const Layout* layout_of(const StepFacts& facts, std::string_view argument) {
  constexpr std::string_view kTensor = "tensor:";
  const std::string text = facts.node().attrs.string(std::string(argument), "");
  if (!text.starts_with(kTensor)) return nullptr;
  size_t index = facts.inputs.size();
  std::from_chars(text.data() + kTensor.size(), text.data() + text.size(), index);
  return index < facts.inputs.size() ? &facts.inputs[index].layout : nullptr;
}

/// Strides in memory of [batch, length, heads, width].
Sizes heads_innermost(const Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[3], sizes[1] * sizes[3], 1};
}

}  // namespace

std::optional<std::vector<Sizes>> attention_strides(const StepFacts& facts) {
  const std::string name = facts.node().attrs.string("operator", "");
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const bool backward = contains(name, "_backward");
  const bool always = contains(name, "_efficient_") || contains(name, "_for_cpu_backward");
  std::vector<Sizes> strides;
  for (size_t i = 0; i < facts.outputs.size(); ++i) {
    const Layout& output = facts.outputs[i].layout;
    strides.push_back(output.strides);
    if (i >= (backward ? kOperands.size() : 1) || output.sizes.size() != 4) continue;
    const Layout* operand = layout_of(facts, kOperands[i]);
    if (!operand || operand->sizes.size() != 4) continue;
    strides.back() = always ? heads_innermost(output.sizes) : strides_like(output.sizes, *operand);
  }
  return strides;
}

}  // namespace ortmodule
