// Matrix products of integers, whose sums are quantized again.
#include <utility>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool has_operands(const QOperatorQuantizer& g, const OnnxNode& node, const ConstantRule& rule,
                  NodeReport& report) {
  const std::string& w = node.inputs[1];
  if (!g.has_scale(node.inputs[0]) || !g.has_scale(node.outputs[0]) || !g.has_scales(w, rule))
    return refuse(report, "its values have no ranges");
  if (g.options().constant_weights && !g.initializer(w))
    return refuse(report, "its second factor is no constant");
  return true;
}

bool matmul(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const OnnxTensor* tensor = g.initializer(node.inputs[1]);
  // Of a vector, and of several matrices, onnxruntime takes one scale only.
  const ConstantRule rule = g.weight_rule(tensor && tensor->dims.size() == 2 ? 1 : -1, true);
  if (!has_operands(g, node, rule, report)) return false;
  const QuantizedValue a = g.activation(node.inputs[0]);
  const QuantizedValue b = g.weight(node.inputs[1], rule);
  const QuantizedValue y = g.result(node);
  g.emit(make_node(
      "QLinearMatMul",
      {a.data, a.scale, a.zero_point, b.data, b.scale, b.zero_point, y.scale, y.zero_point},
      {y.data}, node.name.empty() ? "" : node.name + "_quant"));
  return true;
}

// QGemm adds the bias before it multiplies by alpha, and has no beta: both are in the bias' scale.
// (onnxruntime's tool takes beta for its reciprocal, and forgets alpha.)
bool gemm(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const ConstantRule rule = g.weight_rule(integer_attr(node, "transB", 0) > 0 ? 0 : 1, true);
  if (!has_operands(g, node, rule, report)) return false;
  const std::string& c = input_of(node, 2);
  if (!c.empty() && !g.initializer(c)) return refuse(report, "its bias is no constant");
  if (!c.empty() && !g.fits_bias(c, node.inputs[1], rule))
    return refuse(report, "its bias is not a finite number for each channel");
  const double alpha = number_attr(node, "alpha", 1.0), beta = number_attr(node, "beta", 1.0);
  if (alpha <= 0 || beta < 0) return refuse(report, "its factors are not positive");
  const QuantizedValue a = g.activation(node.inputs[0]);
  const QuantizedValue b = g.weight(node.inputs[1], rule);
  const std::string bias = c.empty() ? "" : g.bias(c, a, b, beta > 0 ? alpha / beta : 0.0);
  const QuantizedValue y = g.result(node);
  OnnxNode plain = node;
  std::erase_if(plain.attrs, [](const auto& attr) { return attr.first == "beta"; });
  g.emit_linear(
      plain, "QGemm",
      {a.data, a.scale, a.zero_point, b.data, b.scale, b.zero_point, bias, y.scale, y.zero_point},
      y);
  return true;
}

REGISTER_QOPERATOR(matmul, "MatMul");
REGISTER_QOPERATOR(gemm, "Gemm");

}  // namespace
}  // namespace ortmodule
