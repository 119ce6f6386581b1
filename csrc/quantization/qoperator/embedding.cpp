// EmbedLayerNormalization with tables of integers.
#include <utility>

#include "quantization/qoperator_quantizer.h"

namespace ortmodule {
namespace {

bool embedding(QOperatorQuantizer& g, const OnnxNode& node, NodeReport& report) {
  if (node.outputs.size() > 2)
    return refuse(report, "QEmbedLayerNormalization has no third output");
  if (!input_of(node, 8).empty())
    return refuse(report, "QEmbedLayerNormalization has no position_ids");
  // word, position and segment embeddings, gamma and beta
  for (size_t i = 2; i < 7; ++i)
    if (!input_of(node, i).empty() && !g.has_scale(node.inputs[i]))
      return refuse(report, "its tables are no constants of float32");
  std::vector<QuantizedValue> tables;
  for (size_t i = 2; i < 7; ++i)
    tables.push_back(input_of(node, i).empty() ? QuantizedValue() : g.activation(node.inputs[i]));
  OnnxNode made = node;
  made.op = "QEmbedLayerNormalization";
  if (!made.name.empty()) made.name += "_quant";
  made.inputs = {node.inputs[0], node.inputs[1]};
  for (const QuantizedValue& table : tables) made.inputs.push_back(table.data);
  made.inputs.push_back(input_of(node, 7));
  for (const QuantizedValue& table : tables) made.inputs.push_back(table.scale);
  for (const QuantizedValue& table : tables) made.inputs.push_back(table.zero_point);
  g.emit(std::move(made));
  return true;
}

REGISTER_QOPERATOR(embedding, "EmbedLayerNormalization");

}  // namespace
}  // namespace ortmodule
