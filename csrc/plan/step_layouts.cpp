#include "plan/step_layouts.h"

#include <utility>

namespace ortmodule {

bool takes_layout(const KernelDef& kernel, size_t i, const Layout& layout) {
  switch (i < kernel.input_rules.size() ? kernel.input_rules[i] : kernel.layout) {
    case LayoutRule::Any: return true;
    case LayoutRule::InnerContiguous: return is_inner_contiguous(layout) || is_contiguous(layout);
    case LayoutRule::Matrix: return is_matrix(layout) || is_contiguous(layout);
    case LayoutRule::MemoryFormat: return is_contiguous(layout) || is_channels_last(layout);
    case LayoutRule::Contiguous: return is_contiguous(layout);
  }
  return false;
}

std::vector<Layout> choose_output_layouts(bool pointwise, const KernelDef& kernel,
                                          const std::vector<Sizes>& wanted, StepFacts& facts) {
  std::vector<Layout> results;
  if (!pointwise) {
    if (!kernel.output_strides) return results;
    const std::vector<Sizes> strides = kernel.output_strides(facts);
    for (size_t i = 0; i < strides.size() && i < facts.outputs.size(); ++i)
      facts.outputs[i].layout.strides = strides[i];
    return results;
  }
  // Like TensorIterator: a result has the dimension order of its first operand of full size. Each
  // node of a group is treated alone, so that a recomputed value has its original layout in any
  // group.
  for (const NodeFacts& node : facts.nodes) {
    Layout result{node.output_sizes[0], contiguous_strides(node.output_sizes[0]), 0};
    for (const OperandRef& ref : node.inputs) {
      if (ref.kind != OperandRef::Kind::Input && ref.kind != OperandRef::Kind::Register) continue;
      const auto at = static_cast<size_t>(ref.index);
      const Layout& operand =
          ref.kind == OperandRef::Kind::Input ? facts.inputs[at].layout : results[at];
      if (operand.sizes != result.sizes) continue;
      if (!is_dense(operand) && !is_channels_last_slice(operand)) continue;
      result.strides = strides_like(result.sizes, operand);
      break;
    }
    if (node.outputs[0] >= 0) {
      const auto at = static_cast<size_t>(node.outputs[0]);
      if (at < wanted.size() && !wanted[at].empty()) result.strides = wanted[at];
      facts.outputs[at].layout.strides = result.strides;
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace ortmodule
