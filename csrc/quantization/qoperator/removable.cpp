// Relu and Clip, which the integers of their operand do by saturating.
#include <vector>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

// The operand's integers end where the results do. They do not where it has other readers, or the
// scale of another value, as behind a Reshape: onnxruntime's tool drops the node all the same.
bool saturates(const QOperatorQuantizer& g, const std::string& operand, const std::string& result) {
  if (!g.has_own_scale(operand) || !g.has_scale(result)) return false;
  const ValueScale one = g.scale_of(operand), other = g.scale_of(result);
  return one.type == other.type && one.scale.scale == other.scale.scale &&
         one.scale.zero_point == other.scale.zero_point;
}

bool removable(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const QuantizedValue* x = g.known(node.inputs[0]);
  if (!x) return refuse(report, "its operand is not quantized");
  if (g.options().activation_symmetric)
    return refuse(report, "a symmetric range keeps what it takes away");
  if (!saturates(g, node.inputs[0], node.outputs[0]) || !g.quantizing_limits(node))
    return refuse(report, "its operand has integers beyond its results");
  g.alias(node.outputs[0], *x);
  return true;
}

REGISTER_QOPERATOR(removable, "Relu", "Clip");

}  // namespace
}  // namespace ortmodule
