// Convolutions of oneDNN, batch norms and pools of torch, and the convolutions that programs
// without torch have (conv_pixels.cpp), are faster in channels-last layout. The layout propagates
// from operands to results, so one ChannelsLast copy is enough for a whole ConvNet up to an op that
// requires row-major operands. The pass weighs the number of such copies against the number of
// convolutions, since one convolution gains less than a copy costs. cuDNN's deterministic kernels
// for row-major images of 16 bits are so slow (a ResNet-50 takes 340 ms a step on an H200, and 15
// with channels last) that on CUDA each of those convolutions gets the layout.
#include "optimizer/layout/prefer_channels_last.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ops/emit.h"
#include "optimizer/layout/layout_flow.h"

namespace ortmodule {
namespace {

/// Each copy must serve at least this many convolutions.
size_t convolutions_per_copy(Device device) {
  switch (device) {
    case Device::CPU: return 4;  // oneDNN copies row-major operands itself
    case Device::Host: return 2;
    case Device::CUDA: return 0;
  }
  return 0;
}

/// Numbers of elements that convolutions read in the first call.
struct ConvReads {
  double weights = 0;  // with several pixels: others lie in both ways
  double images = 0;
};

/// What batch is assumed where that of the first call is not known.
constexpr int64_t kAssumedImages = 32;

/// Of all convolutions together; nothing if a size is not known.
std::optional<ConvReads> reads_of(const std::vector<Node*>& convolutions,
                                  const PassContext& context) {
  const auto count = [&](const Dims& dims, std::optional<int64_t> first) {
    double product = 1;
    for (const DimExpr& dim : dims) {
      const std::optional<int64_t> size = context.first_size(dim);
      product *= static_cast<double>(size ? *size : first.value_or(0));
      first.reset();
    }
    return product;
  };
  ConvReads sum;
  for (const Node* node : convolutions) {
    const double image = count(node->input(0)->dims, kAssumedImages);
    const double weights = count(node->input(1)->dims, {});
    if (image == 0 || weights == 0) return std::nullopt;
    sum.images += image;
    if (!lies_both_ways(*node->input(1))) sum.weights += weights;
  }
  return sum;
}

/// Row-major weights are copied to channels-last ones in forward and in backward, and their
/// gradients back: it pays where images have two thirds of their elements. On one thread of a Zen 4
/// and 128 pixels, 4 images take 1.09 of their row-major time with a ResNet-18, 1.02 with a DLA-34,
/// 0.95 with a RepVGG-A0 and a ResNet-50; they have 0.26, 0.54, 0.70 and 1.23 times the elements.
constexpr double kImagesWorthWeights = 2.0 / 3.0;

Reason weights_outweigh(const std::vector<Node*>& convolutions, const PassContext& context) {
  const std::optional<ConvReads> reads = reads_of(convolutions, context);
  if (!reads || kImagesWorthWeights * reads->weights <= reads->images) return {};
  return str("weights of ", static_cast<int64_t>(reads->weights),
             " elements would be copied for images of ", static_cast<int64_t>(reads->images));
}

}  // namespace

bool prefer_channels_last(Graph& graph, PassContext& context) {
  if (!context.channels_last()) return false;
  const bool ours = context.device() == Device::Host;
  const LayoutFlow flow(graph, context.device());
  const auto& convolutions = flow.convolutions();
  if (convolutions.empty()) return false;
  if (flow.copies() * convolutions_per_copy(context.device()) > convolutions.size()) {
    context.reject("prefer_channels_last",
                   str("too many copies between layouts: ", flow.copies(), " for ",
                       convolutions.size(), " convolutions"),
                   *convolutions.front(), true);
    return false;
  }
  if (context.device() == Device::CPU) {
    if (const Reason reason = weights_outweigh(convolutions, context)) {
      context.reject("prefer_channels_last", *reason, *convolutions.front(), true);
      return false;
    }
  }
  std::map<Value*, Value*> made;
  bool changed = false;
  const auto lay_out = [&](Node* node, size_t operand) {
    Value* x = node->input(operand);
    if (flow.reads(*node, operand)) return true;
    Value*& there = made[x];
    if (!there) {
      if (!context.take()) return false;
      Graph::Inserting here(graph, node);
      there = emit(graph, "ChannelsLast", {x});
    }
    graph.set_input(node, operand, there);
    changed = true;
    return true;
  };
  for (Node* node : convolutions) {
    for (size_t operand : image_operands(*node))
      if (!lay_out(node, operand)) return changed;
    // oneDNN's caller would copy the weights itself, slower and in memory that no plan reuses.
    if (!ours && !lay_out(node, 1)) return changed;
    if (!ours || node->attrs.has("channels_last")) continue;
    node->attrs.set("channels_last", 1);  // chooses the kernel
    changed = true;
  }
  return changed;
}

bool copy_channels_last_again(Graph& graph, PassContext& context) {
  // Only for copies of graph inputs, which stay alive anyway.
  const auto is_copy_of_argument = [](const Value* x) {
    const Node* node = x ? x->producer() : nullptr;
    return node && node->op == "ChannelsLast" && node->region == Region::Forward &&
           !node->input(0)->producer();
  };
  std::map<Value*, Value*> again;
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (node->region != Region::Backward) continue;
    for (size_t i = 0; i < node->inputs().size(); ++i) {
      Value* x = node->input(i);
      if (!is_copy_of_argument(x)) continue;
      Value*& there = again[x];
      if (!there) {
        if (!context.take()) return changed;
        Graph::Inserting here(graph, node);
        there = emit(graph, "ChannelsLast", {x->producer()->input(0)});
      }
      graph.set_input(node, i, there);
      changed = true;
    }
  }
  return changed;
}

bool lay_out_conv_gradients(Graph& graph, PassContext& context) {
  if (!context.channels_last() || context.device() != Device::CUDA) return false;
  const LayoutFlow flow(graph, context.device());
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (node->op != "ConvGrad" || !is_image(*node->input(0))) continue;
    Value *dy = node->input(0), *x = node->input(1), *w = node->input(2);
    if (!gains_by_channels_last(dy->dtype, context.device()) || flow.is_known_last(*dy) ||
        !flow.is_known_last(*x) || !flow.is_known_last(*w))
      continue;
    if (!context.take()) return changed;
    Graph::Inserting here(graph, node);
    graph.set_input(node, 0, emit(graph, "ChannelsLast", {dy}));
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
