// Convolutions of integers, whose sums are quantized again.
#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool conv(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const std::string &x = node.inputs[0], &w = node.inputs[1], &b = input_of(node, 2);
  ConstantRule rule = g.weight_rule(0, true);
  if (rule.axis >= 0) rule.type = QuantizedType::Int8;  // zero points of channels must be equal
  if (!g.has_scale(x) || !g.has_scale(node.outputs[0]) || !g.has_scales(w, rule))
    return refuse(report, "its values have no ranges");
  if (!b.empty() && !g.initializer(b)) return refuse(report, "its bias is no constant");
  if (!b.empty() && !g.fits_bias(b, w, rule))
    return refuse(report, "its bias is not a finite number for each channel");
  const QuantizedValue image = g.activation(x), weight = g.weight(w, rule);
  const std::string bias = b.empty() ? "" : g.bias(b, image, weight);
  const QuantizedValue y = g.result(node);
  OnnxNode made = make_node("QLinearConv",
                            {image.data, image.scale, image.zero_point, weight.data, weight.scale,
                             weight.zero_point, y.scale, y.zero_point},
                            {y.data}, node.name.empty() ? "" : node.name + "_quant", node.attrs);
  if (!bias.empty()) made.inputs.push_back(bias);
  g.emit(std::move(made));
  return true;
}

REGISTER_QOPERATOR(conv, "Conv");

}  // namespace
}  // namespace ortmodule
