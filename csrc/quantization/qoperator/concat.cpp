// Values with scales of their own, one after another.
#include <algorithm>
#include <utility>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool concat(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const bool have_scales =
      std::all_of(node.inputs.begin(), node.inputs.end(),
                  [&](const std::string& input) { return g.has_scale(input); });
  if (!have_scales || !g.has_scale(node.outputs[0]))
    return refuse(report, "its values have no ranges");
  std::vector<QuantizedValue> parts;
  for (const std::string& input : node.inputs) parts.push_back(g.activation(input));
  const QuantizedValue y = g.result(node);
  std::vector<std::string> operands = {y.scale, y.zero_point};
  for (const QuantizedValue& part : parts)
    for (const std::string& name : {part.data, part.scale, part.zero_point})
      operands.push_back(name);
  g.emit_linear(node, "QLinearConcat", std::move(operands), y);
  return true;
}

REGISTER_QOPERATOR(concat, "Concat");

}  // namespace
}  // namespace ortmodule
