// Where with two quantized values.
#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool where(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (!g.options().force_direct) return refuse(report, "needs ForceQuantizeNoInputCheck");
  if (!g.has_scale(node.inputs[1]) || !g.has_scale(node.inputs[2]) || !g.has_scale(node.outputs[0]))
    return refuse(report, "its values have no ranges");
  const QuantizedValue a = g.activation(node.inputs[1]), b = g.activation(node.inputs[2]);
  const QuantizedValue y = g.result(node);
  g.emit_linear(node, "QLinearWhere",
                {node.inputs[0], a.data, a.scale, a.zero_point, b.data, b.scale, b.zero_point,
                 y.scale, y.zero_point},
                y);
  return true;
}

REGISTER_QOPERATOR(where, "Where");

}  // namespace
}  // namespace ortmodule
