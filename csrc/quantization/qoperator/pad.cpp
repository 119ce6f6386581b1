// Integers padded with the integer of the padding value.
#include <string>
#include <utility>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

constexpr int64_t kPadInputs = 11;

bool pads_with_value(const OnnxNode& node) {
  const OnnxAttr* attr = find_attr(node, "mode");
  const auto* mode = attr ? std::get_if<std::string>(attr) : nullptr;
  return !mode || *mode == "constant";
}

// The padding value as an integer with the scale of x.
std::string padding(QOperatorQuantizer& g, const std::string& value, const QuantizedValue& x) {
  const std::string name = g.fresh(value + "_quantized");
  const OnnxTensor* tensor = g.initializer(value);
  const auto constant = tensor ? weight_of(*tensor) : nullptr;
  if (!constant) {
    g.keep(value);
    g.emit(make_node("QuantizeLinear", {value, x.scale, x.zero_point}, {name},
                     value + "_QuantizeLinear"));
    return name;
  }
  const QuantizedWeight how{g.options().activation_type, {g.scale_by_name(x.scale)}, {}};
  g.add_initializer(name, quantized_tensor(constant, how, std::make_shared<WeightReport>()));
  return name;
}

bool pad(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const QuantizedValue* known = g.known(node.inputs[0]);
  if (!known || known->axis >= 0) return refuse(report, "its operand is not quantized");
  if (g.opset() < kPadInputs) return refuse(report, "its operator set has no integers");
  const QuantizedValue x = *known;
  OnnxNode padded = node;
  padded.inputs[0] = x.data;
  if (pads_with_value(node)) {
    const std::string value = input_of(node, 2);
    if (padded.inputs.size() < 3) padded.inputs.resize(3);
    padded.inputs[2] = value.empty() ? x.zero_point : padding(g, value, x);
  }
  padded.outputs[0] = g.result_like(node, x).data;
  g.emit(std::move(padded));
  return true;
}

REGISTER_QOPERATOR(pad, "Pad");

}  // namespace
}  // namespace ortmodule
