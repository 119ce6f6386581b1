// Parts of a value have its scale.
#include <utility>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool split(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (!g.has_scale(node.inputs[0])) return refuse(report, "its operand has no range");
  const QuantizedValue x = g.activation(node.inputs[0]);
  OnnxNode parts = node;
  if (!parts.name.empty()) parts.name += "_quant";
  parts.inputs[0] = x.data;
  for (size_t i = 0; i < node.outputs.size(); ++i)
    parts.outputs[i] = g.result_like(node, x, i, "quantized").data;
  g.emit(std::move(parts));
  return true;
}

REGISTER_QOPERATOR(split, "Split");

}  // namespace
}  // namespace ortmodule
