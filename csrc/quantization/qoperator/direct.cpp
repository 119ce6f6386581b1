// Operators that move elements, or compare them, take integers as they are.
#include <utility>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

constexpr int64_t kIntegerResize = 11, kIntegerMaxPool = 12;

bool direct(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const std::string& name = node.inputs[0];
  const bool forced = g.options().force_direct && g.initializer(name) && g.has_scale(name);
  if (!forced && !g.known(name)) return refuse(report, "its operand is not quantized");
  const QuantizedValue x = g.activation(name);
  if (x.axis >= 0) return refuse(report, "its data have a scale for each channel");
  OnnxNode moved = node;
  moved.inputs[0] = x.data;
  moved.outputs[0] = g.result_like(node, x).data;
  g.emit(std::move(moved));
  return true;
}

bool resize(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (g.opset() < kIntegerResize) return refuse(report, "its operator set has no integers");
  return direct(g, node, report);
}

// The places of the greatest elements are no values.
bool max_pool(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (g.opset() < kIntegerMaxPool) return refuse(report, "its operator set has no integers");
  return direct(g, node, report);
}

// The place of the greatest integer is that of the greatest number.
bool arg_max(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const QuantizedValue* x = g.known(node.inputs[0]);
  if (!x || x->axis >= 0) return refuse(report, "its operand is not quantized");
  OnnxNode of_integers = node;
  of_integers.inputs[0] = x->data;
  g.emit(std::move(of_integers));
  return true;
}

REGISTER_QOPERATOR(direct, "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten");
REGISTER_QOPERATOR(resize, "Resize");
REGISTER_QOPERATOR(max_pool, "MaxPool");
REGISTER_QOPERATOR(arg_max, "ArgMax");

}  // namespace
}  // namespace ortmodule
