#include "plan/step_cost.h"

#include <algorithm>

#include "ops/op_def.h"
#include "plan/host_copies.h"

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
  if (is_host_copy(step) || is_await(step)) return rates.step_us;  // the rest runs beside the steps
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
  const bool narrow = !step.facts->inputs.empty() && size_of(step.facts->inputs[0].dtype) == 2;
  const double rate =
      narrow && rates.flops16_per_us > 0 ? rates.flops16_per_us : rates.flops_per_us;
  return flops / rate + bytes / rates.bytes_per_us + rates.step_us;
}

double estimated_us(const Plan& plan, const MachineRates& rates) {
  double clock_us = 0;
  HostLink link(plan, rates);
  for (const PlannedStep& step : plan.steps) {
    clock_us += estimated_us(step, rates);
    if (is_host_copy(step)) link.begin(step, clock_us);
    if (is_await(step)) clock_us = std::max(clock_us, link.end_of(step));
  }
  return clock_us;
}

}  // namespace ortmodule
