// Pixels of channels-last images are rows of channels, so that a convolution of single pixels is
// one product, of which images, results and gradients are views in planned memory. On one thread
// torch gives such convolutions of fewer than 16 images to a product for each image. With this pass
// a step of a ResNet-50 on 8 images of 96 pixels takes 0.88 of the time (Zen 4).
#include "optimizer/layout/pixels_as_rows.h"

#include <algorithm>

#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/layout/layout_flow.h"

namespace ortmodule {
namespace {

bool are_all(const Node& node, std::string_view name, int64_t wanted) {
  const std::vector<int64_t> numbers = node.attrs.integers(name);
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n == wanted; });
}

bool convolves_pixels(const Node& node) {
  if (node.op != "Conv" || node.input(0)->rank() != 4) return false;
  const Dims& w = node.input(1)->dims;
  const DimExpr one(1), group = node.attrs.dim("group");
  return node.input(0)->dtype == DType::Float32 && w[2] == one && w[3] == one && group == one &&
         are_all(node, "strides", 1) && are_all(node, "pads", 0);
}

void rewrite(Graph& graph, Node* node) {
  Graph::Inserting here(graph, node);
  graph.current_tag = node->tag;
  const Dims x = node->input(0)->dims, w = node->input(1)->dims;
  const auto reshaped = [&](Value* value, Dims shape) {
    return emit(graph, "Reshape", {value}, {{"shape", std::move(shape)}});
  };
  Value* pixels = emit(graph, "Transpose", {node->input(0)}, {{"perm", Dims{0, 2, 3, 1}}});
  Value* rows = reshaped(pixels, {x[0] * x[2] * x[3], x[1]});
  Value* bias = node->inputs().size() > 2 ? node->input(2) : nullptr;
  Value* product =
      emit(graph, "Gemm", {rows, reshaped(node->input(1), {w[0], w[1]}), bias}, {{"transB", 1}});
  Value* y = reshaped(product, {x[0], x[2], x[3], w[0]});
  y = emit(graph, "Transpose", {y}, {{"perm", Dims{0, 3, 1, 2}}});
  graph.current_tag.clear();
  supersede(graph, node->output(), y);
}

}  // namespace

bool pixels_as_rows(Graph& graph, PassContext& context) {
  if (!context.channels_last() || context.device() != Device::CPU) return false;
  const LayoutFlow flow(graph, context.device());
  const auto& convolutions = flow.convolutions();
  // Else prefer_channels_last left them row-major.
  if (!std::all_of(convolutions.begin(), convolutions.end(),
                   [&](const Node* node) { return flow.reads(*node, 0); }))
    return false;
  bool changed = false;
  for (Node* node : convolutions) {
    if (!convolves_pixels(*node)) continue;
    if (!context.take()) return changed;
    rewrite(graph, node);
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
