// Rows of a table of integers.
#include <utility>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool gather(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  const std::string& name = node.inputs[0];
  if (!g.initializer(name) || !g.has_scale(name))
    return refuse(report, "its data are no constant of float32");
  const QuantizedValue table = g.activation(name);
  OnnxNode of_integers = node;
  of_integers.inputs[0] = table.data;
  g.keep(node.inputs[1]);
  of_integers.outputs[0] = g.result_like(node, table).data;
  g.emit(std::move(of_integers));
  return true;
}

REGISTER_QOPERATOR(gather, "Gather");

}  // namespace
}  // namespace ortmodule
