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
#include <set>

#include "ops/emit.h"
#include "ops/op_def.h"

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

/// Copies of images with at most this many channels are not counted: they are cheap.
constexpr int64_t kFewChannels = 4;

bool is_constant(const DimExpr& dim, int64_t most) {
  return dim.is_constant() && dim.value() <= most;
}

/// Of images [N, C, H, W], or of volumes [N, C, D, H, W].
bool is_image(const Value& value) { return value.rank() == 4 || value.rank() == 5; }

/// Both row-major and channels-last: one pixel, or one channel.
bool lies_both_ways(const Value& value) {
  const bool one_pixel = std::all_of(value.dims.begin() + 2, value.dims.end(),
                                     [](const DimExpr& dim) { return is_constant(dim, 1); });
  return one_pixel || is_constant(value.dims[1], 1);
}

/// Of integers, with as many outputs for each channel as the kernels are made for.
bool is_integer_convolution(const Node& node) {
  if (node.op != "ConvInteger" && node.op != "ConvIntegerToFloat") return false;
  constexpr int64_t kFewOutputs = 8;
  const Dims& w = node.input(1)->dims;
  const DimExpr group = node.attrs.dim("group");
  if (w.size() != 4 || !w[0].is_constant() || !w[1].is_constant() || !group.is_constant())
    return false;
  const int64_t outputs = w[0].value() / std::max<int64_t>(group.value(), 1);
  const bool by_channel = outputs == 1 && w[1].value() == 1;
  return by_channel || outputs >= kFewOutputs;
}

/// Whether the device's convolutions of this type gain by channels-last images. Our own take bytes,
/// too.
bool gains(DType dtype, Device device) {
  switch (device) {
    case Device::Host: return dtype == DType::Float32;
    case Device::CPU: return dtype != DType::Float64;
    case Device::CUDA: return dtype == DType::Float16 || dtype == DType::BFloat16;
  }
  return false;
}

bool is_convolution(const Node& node, Device device) {
  if (device == Device::Host && is_integer_convolution(node)) return true;
  const bool convolves = node.op == "Conv" || node.op == "ConvTranspose" || node.op == "FusedConv";
  if (!convolves || !is_image(*node.input(0))) return false;
  // Those of volumes are cuDNN's alone.
  const bool on_gpu = device == Device::CUDA;
  return (on_gpu || node.input(0)->rank() == 4) && gains(node.input(0)->dtype, device);
}

/// Operands of a convolution that are images: x, and what a FusedConv adds.
std::vector<size_t> image_operands(const Node& node) {
  std::vector<size_t> operands = {0};
  if (node.op == "FusedConv" && node.input(3)) operands.push_back(3);
  return operands;
}

/// Propagates the channels-last layout from the convolutions and counts the copies between layouts.
class LayoutFlow {
 public:
  LayoutFlow(const Graph& graph, Device device) : device_(device), ours_(device == Device::Host) {
    for (const auto& node : graph.nodes()) visit(*node);
    for (const GraphOutput& output : graph.outputs())
      if (output.value && differs(*output.value)) copied_.insert(output.value);
  }

  const std::vector<Node*>& convolutions() const { return convolutions_; }
  /// Whether a convolution can read this operand as channels-last without a copy.
  bool reads(const Node& convolution, size_t operand) const {
    const Value& value = *convolution.input(operand);
    // What a result is added to has to be dense.
    if (operand > 0 && slices_.contains(&value)) return false;
    return is_known_last(value);
  }
  /// Channels-last, as far as operands and ops say; the caller's own tensors may be, too.
  bool is_known_last(const Value& value) const {
    return last_.contains(&value) || lies_both_ways(value);
  }
  /// Number of tensors copied between the layouts, without images of few channels.
  size_t copies() const { return copied_.size(); }

 private:
  /// Channels-last and not also row-major, and not cheap to copy.
  bool differs(const Value& value) const {
    return last_.contains(&value) && !lies_both_ways(value) &&
           !is_constant(value.dims[1], kFewChannels);
  }

  void visit(Node& node) {
    if (is_convolution(node, device_)) {
      convolutions_.push_back(&node);
      for (size_t i : image_operands(node)) {
        const Value& x = *node.input(i);
        if (!reads(node, i) && !is_constant(x.dims[1], kFewChannels)) copied_.insert(&x);
      }
      last_.insert(node.output());
      return;
    }
    // Our convolutions read slices as they lie.
    const bool is_slice =
        (node.op == "Slice" || node.op == "Split") && ours_ && last_.contains(node.input(0));
    if (is_slice) slices_.insert(node.outputs().begin(), node.outputs().end());
    if (node.op == "ChannelsLast" || is_slice || (ours_ && is_view_of_pixels(node)))
      return add_results(node);
    const OpDef& def = op_def(node.op);
    const bool keeps =
        def.kind == OpKind::Pointwise || (def.keeps_channels_last && def.keeps_channels_last(node));
    if (keeps) {
      if (result_is_channels_last(node, def)) add_results(node);
    } else if (demands_row_major(node, def)) {
      for (const Value* x : node.inputs())
        if (x && differs(*x)) copied_.insert(x);
    }
  }

  /// Row-major pixels [N, H, W, C], as TensorFlow and onnxruntime's quantized ConvNets have them,
  /// seen as [N, C, H, W].
  static bool is_view_of_pixels(const Node& node) {
    return node.op == "Transpose" && node.output()->rank() == 4 &&
           node.attrs.integers("perm") == std::vector<int64_t>{0, 3, 1, 2};
  }

  /// Slices and transposes are views in any layout; views that merge or split dims are not.
  static bool demands_row_major(const Node& node, const OpDef& def) {
    return def.kind != OpKind::View || node.op == "Contiguous" || node.op == "Reshape" ||
           node.op == "Squeeze" || node.op == "Unsqueeze";
  }

  bool result_is_channels_last(const Node& node, const OpDef& def) const {
    const auto is_last = [&](const Value* x) { return x && is_image(*x) && last_.contains(x); };
    const auto& in = node.inputs();
    if (def.kind == OpKind::Data)  // a concatenation of mixed layouts is row-major
      return std::all_of(in.begin(), in.end(), is_last);
    if (def.kind != OpKind::Pointwise) return !in.empty() && is_last(in[0]);
    // A pointwise result has the layout of its first operand that is not broadcast.
    const auto full = std::find_if(in.begin(), in.end(), [&](const Value* x) {
      return x && !x->is_literal() && x->dims == node.output()->dims;
    });
    return full != in.end() && is_last(*full);
  }

  void add_results(const Node& node) {
    for (const Value* result : node.outputs())
      if (is_image(*result)) last_.insert(result);
  }

  const Device device_;
  const bool ours_;  // the convolutions are by kernels of our own
  std::set<const Value*> last_, slices_, copied_;
  std::vector<Node*> convolutions_;
};

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
    if (!gains(dy->dtype, context.device()) || flow.is_known_last(*dy) || !flow.is_known_last(*x) ||
        !flow.is_known_last(*w))
      continue;
    if (!context.take()) return changed;
    Graph::Inserting here(graph, node);
    graph.set_input(node, 0, emit(graph, "ChannelsLast", {dy}));
    changed = true;
  }
  return changed;
}

}  // namespace ortmodule
