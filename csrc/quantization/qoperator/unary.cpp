// Operators of one value with a scale of their own: activations, pools, Softmax.
#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool linear(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report, OnnxAttrs more = {},
            std::optional<QuantizedScale> fixed = {}) {
  if (!g.has_scale(node.inputs[0]) || (!fixed && !g.has_scale(node.outputs[0])))
    return refuse(report, "its values have no ranges");
  const QuantizedValue x = g.activation(node.inputs[0]), y = g.result(node, 0, fixed);
  g.emit_linear(node, "QLinear" + node.op, {x.data, x.scale, x.zero_point, y.scale, y.zero_point},
                y, std::move(more));
  return true;
}

bool activation(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  return linear(g, node, report);
}

// QLinearAveragePool knows no dilations.
bool average_pool(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (find_attr(node, "dilations")) return refuse(report, "QLinearAveragePool has no dilations");
  return linear(g, node, report);
}

bool global_average_pool(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (!g.known(node.inputs[0])) return refuse(report, "its operand is not quantized");
  return linear(g, node, report, {{"channels_last", int64_t{0}}});
}

// Results are from 0 to 1, whatever was calibrated.
bool softmax(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const bool with_sign = is_signed(g.options().activation_type);
  return linear(g, node, report, {{"opset", g.opset()}},
                QuantizedScale{1.0F / 256.0F, with_sign ? -128 : 0});
}

REGISTER_QOPERATOR(activation, "Sigmoid", "LeakyRelu");
REGISTER_QOPERATOR(average_pool, "AveragePool");
REGISTER_QOPERATOR(global_average_pool, "GlobalAveragePool");
REGISTER_QOPERATOR(softmax, "Softmax");

}  // namespace
}  // namespace ortmodule
