#include "plan/step_cost.h"

#include "ops/op_def.h"

namespace ortmodule {
namespace {

double moved_bytes(const OperandFacts& operand) {
  // A broadcast operand is read once per distinct element.
  double elements = 1;
  for (size_t d = 0; d < operand.layout.sizes.size(); ++d)
    if (operand.layout.strides.empty() || operand.layout.strides[d] != 0)
      elements *= static_cast<double>(operand.layout.sizes[d]);
  return operand.dtype == DType::Undefined ? 0
                                           : elements * static_cast<double>(size_of(operand.dtype));
}

}  // namespace

double estimated_us(const PlannedStep& step, const MachineRates& rates) {
  double bytes = 0, flops = 0;
  for (const OperandFacts& operand : step.facts->inputs) bytes += moved_bytes(operand);
  for (const OperandFacts& operand : step.facts->outputs) bytes += moved_bytes(operand);
  std::vector<Sizes> in, out;
  for (const OperandFacts& operand : step.facts->inputs) in.push_back(operand.layout.sizes);
  for (const OperandFacts& operand : step.facts->outputs) out.push_back(operand.layout.sizes);
  for (const Node* node : step.nodes) {
    const OpDef& def = op_def(node->op);
    if (def.flops && step.nodes.size() == 1) {
      flops += def.flops(step.facts->node().attrs, in, out);
    } else if (!step.facts->outputs.empty()) {
      // Pointwise ops and row-wise norms take a few operations per element.
      flops += 4.0 * static_cast<double>(element_count(step.facts->outputs[0].layout.sizes));
    }
  }
  return flops / rates.flops_per_us + bytes / rates.bytes_per_us + rates.step_us;
}

double estimated_us(const Plan& plan, const MachineRates& rates) {
  double total = 0;
  for (const PlannedStep& step : plan.steps) total += estimated_us(step, rates);
  return total;
}

}  // namespace ortmodule
