#include "quantization/quantize_dynamic.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "quantization/graph_quantizer.h"
#include "quantization/raise_opset.h"

namespace ortmodule {
namespace {

constexpr int64_t kDynamicOpset = 11;       // DynamicQuantizeLinear
constexpr int64_t kFreeInitializersIr = 4;  // initializers that are no inputs

bool uses_microsoft(const OnnxGraph& graph) {
  bool found = false;
  for (const OnnxNode& node : graph.nodes) {
    found = found || node.domain == "com.microsoft";
    for (const auto& [name, value] : node.attrs)
      if (const auto* inner = std::get_if<std::shared_ptr<const OnnxGraph>>(&value))
        found = found || uses_microsoft(**inner);
  }
  return found;
}

}  // namespace

QuantizationReport quantize_dynamic(OnnxModel& model, const DynamicQuantization& options) {
  if (size_of(options.weight_type) != 1)
    throw Error(
        "[quantization] weights of dynamic quantization must be of 8 bits: use QInt8 or QUInt8");
  QuantizationReport report;
  if (const int64_t opset = standard_opset(model); opset < kDynamicOpset) {
    raise_opset(model);
    report.notes.push_back(str("raised the operator set from ", opset, " to ", kDynamicOpset,
                               ", the first with dynamic quantization"));
  }
  QuantizationState state{options, TakenNames(model), standard_opset(model)};
  GraphQuantizer(state, model.graph, nullptr).run();
  remove_unread(model, state.origins);
  const bool has_domain =
      std::any_of(model.opsets.begin(), model.opsets.end(),
                  [](const OnnxOpset& opset) { return opset.domain == "com.microsoft"; });
  if (!has_domain && uses_microsoft(model.graph)) model.opsets.push_back({"com.microsoft", 1});
  model.ir_version = std::max(model.ir_version, kFreeInitializersIr);
  report.nodes = std::move(state.report.nodes);
  return report;
}

}  // namespace ortmodule
