// Add and Mul of two quantized values.
#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool binary(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (node.inputs.size() != 2 || !g.has_scale(node.inputs[0]) || !g.has_scale(node.inputs[1]) ||
      !g.has_scale(node.outputs[0]))
    return refuse(report, "its values have no ranges");
  const QuantizedValue a = g.activation(node.inputs[0]), b = g.activation(node.inputs[1]);
  const QuantizedValue y = g.result(node);
  g.emit_linear(
      node, "QLinear" + node.op,
      {a.data, a.scale, a.zero_point, b.data, b.scale, b.zero_point, y.scale, y.zero_point}, y);
  return true;
}

REGISTER_QOPERATOR(binary, "Add", "Mul");

}  // namespace
}  // namespace ortmodule
