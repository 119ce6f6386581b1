// A step within a step: a kernel of several ops that has no better way runs the kernels of each.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// The facts of a step of one node that reads `inputs` (an absent one has dtype Undefined) and
/// writes `outputs`, all of them.
StepFacts facts_of_node(std::string_view op, Attrs attrs, std::vector<OperandFacts> inputs,
                        std::vector<OperandFacts> outputs);

/// One of the steps that make up another: the best kernel for it that neither allocates its
/// results nor wants its operands copied, found when the plan is made.
class StepPart {
 public:
  /// `kernel_op` is the operator's name, or "PointwiseGroup". InternalError if no kernel fits: who
  /// makes parts knows which there are.
  StepPart(std::string_view kernel_op, Device device, StepFacts facts);

  /// Scratch that `run` needs, as KernelDef::workspace_bytes.
  size_t workspace_bytes() const;
  /// As KernelDef::library_bytes.
  size_t library_bytes() const;
  void run(std::span<const TensorView> in, std::span<const TensorView> out, void* workspace,
           KernelContext& context) const;

 private:
  StepFacts facts_;
  const KernelDef* kernel_ = nullptr;
  std::shared_ptr<const void> prepared_;
};

}  // namespace ortmodule
