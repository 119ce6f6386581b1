#include "optimizer/layout/lines_as_images.h"

#include <utility>

#include "ops/emit.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

constexpr int64_t kLine = 2;  // the dimension that is added

bool convolves_lines(const Node& node) {
  const DType dtype = node.op == "Conv" ? node.input(0)->dtype : DType::Undefined;
  return (dtype == DType::Float16 || dtype == DType::BFloat16) && node.input(0)->rank() == 3;
}

/// One number of the line, behind those of the dimension that is added.
Dims of_image(const Node& node, std::string_view name, int64_t added) {
  Dims numbers;
  for (const int64_t number : node.attrs.integers(name)) {
    numbers.emplace_back(added);
    numbers.emplace_back(number);
  }
  return numbers;
}

void rewrite(Graph& graph, Node* node) {
  Graph::Inserting here(graph, node);
  graph.current_tag = node->tag;
  Values operands = node->inputs();
  for (size_t i : {0, 1})
    operands[i] = emit(graph, "Unsqueeze", {operands[i]}, {{"axes", Dims{kLine}}});
  Attrs attrs = node->attrs;
  attrs.set("strides", of_image(*node, "strides", 1));
  attrs.set("dilations", of_image(*node, "dilations", 1));
  attrs.set("pads", of_image(*node, "pads", 0));
  Value* image = emit(graph, node->op, std::move(operands), std::move(attrs));
  Value* y = emit(graph, "Squeeze", {image}, {{"axes", Dims{kLine}}});
  graph.current_tag.clear();
  supersede(graph, node->output(), y);
}

}  // namespace

bool lines_as_images(Graph& graph, PassContext& context) {
  if (!context.channels_last() || context.device() != Device::CUDA) return false;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (!convolves_lines(*node)) continue;
    if (!context.take()) return changed;
    rewrite(graph, node);
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
