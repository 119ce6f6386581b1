#include "kernels/step_part.h"

#include <algorithm>

namespace ortmodule {
namespace {

OperandRef operand_ref(const OperandFacts& operand, size_t position) {
  if (operand.dtype == DType::Undefined) return {};
  return {OperandRef::Kind::Input, static_cast<int>(position), 0.0};
}

/// Kernels that want more have `unsupported` say so, or get a copy from the plan, which only whole
/// steps have.
bool lies_as_wanted(const KernelDef& kernel, const StepFacts& facts) {
  for (size_t i = 0; i < facts.inputs.size(); ++i) {
    const LayoutRule rule = i < kernel.input_rules.size() ? kernel.input_rules[i] : kernel.layout;
    const Layout& layout = facts.inputs[i].layout;
    const bool matrix = rule == LayoutRule::Matrix && is_matrix(layout);
    if (facts.inputs[i].dtype != DType::Undefined && rule != LayoutRule::Any && !matrix &&
        !is_contiguous(layout))
      return false;
  }
  return true;
}

}  // namespace

StepFacts facts_of_node(std::string_view op, Attrs attrs, std::vector<OperandFacts> inputs,
                        std::vector<OperandFacts> outputs) {
  StepFacts facts;
  NodeFacts& node = facts.nodes.emplace_back();
  node.op = op;
  node.attrs = std::move(attrs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    node.inputs.push_back(operand_ref(inputs[i], i));
    node.input_dtypes.push_back(inputs[i].dtype);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    node.outputs.push_back(static_cast<int>(i));
    node.output_dtypes.push_back(outputs[i].dtype);
    node.output_sizes.push_back(outputs[i].layout.sizes);
    node.output_used.push_back(true);
  }
  facts.inputs = std::move(inputs);
  facts.outputs = std::move(outputs);
  return facts;
}

StepPart::StepPart(std::string_view kernel_op, Device device, StepFacts facts)
    : facts_(std::move(facts)) {
  std::string why;
  kernel_ = select_kernel(kernel_op, device, facts_, &why);
  ORTM_ASSERT(kernel_, "a part of a step has no kernel: ", why);
  ORTM_ASSERT(!kernel_->allocates_outputs && !kernel_->output_strides, kernel_->name,
              " places its results itself");
  ORTM_ASSERT(lies_as_wanted(*kernel_, facts_), kernel_->name, " wants an operand copied");
  if (kernel_->prepare) prepared_ = kernel_->prepare(facts_);
}

size_t StepPart::workspace_bytes() const {
  return kernel_->workspace_bytes ? kernel_->workspace_bytes(facts_) : 0;
}

size_t StepPart::library_bytes() const {
  return kernel_->library_bytes ? kernel_->library_bytes(facts_) : 0;
}

void StepPart::run(std::span<const TensorView> in, std::span<const TensorView> out, void* workspace,
                   KernelContext& context) const {
  kernel_->run({.facts = facts_,
                .in = in,
                .out = out,
                .workspace = workspace,
                .prepared = prepared_.get(),
                .context = context});
}

}  // namespace ortmodule
