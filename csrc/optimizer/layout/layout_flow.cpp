#include "optimizer/layout/layout_flow.h"

#include <algorithm>

namespace ortmodule {
namespace {

/// Copies of images with at most this many channels are not counted: they are cheap.
constexpr int64_t kFewChannels = 4;

bool is_constant(const DimExpr& dim, int64_t most) {
  return dim.is_constant() && dim.value() <= most;
}

/// Row-major pixels [N, H, W, C], as TensorFlow and onnxruntime's quantized ConvNets have them,
/// seen as [N, C, H, W].
bool is_view_of_pixels(const Node& node) {
  return node.op == "Transpose" && node.output()->rank() == 4 &&
         node.attrs.integers("perm") == std::vector<int64_t>{0, 3, 1, 2};
}

/// Slices and transposes are views in any layout; views that merge or split dims are not.
bool demands_row_major(const Node& node, const OpDef& def) {
  return def.kind != OpKind::View || node.op == "Contiguous" || node.op == "Reshape" ||
         node.op == "Squeeze" || node.op == "Unsqueeze";
}

}  // namespace

bool is_image(const Value& value) { return value.rank() == 4 || value.rank() == 5; }

bool lies_both_ways(const Value& value) {
  const bool one_pixel = std::all_of(value.dims.begin() + 2, value.dims.end(),
                                     [](const DimExpr& dim) { return is_constant(dim, 1); });
  return one_pixel || is_constant(value.dims[1], 1);
}

bool gains_by_channels_last(DType dtype, Device device) {
  switch (device) {
    case Device::Host: return dtype == DType::Float32;
    case Device::CPU: return dtype != DType::Float64;
    case Device::CUDA: return dtype == DType::Float16 || dtype == DType::BFloat16;
  }
  return false;
}

std::vector<size_t> image_operands(const Node& node) {
  std::vector<size_t> operands = {0};
  if (node.op == "FusedConv" && node.input(3)) operands.push_back(3);
  return operands;
}

namespace {

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

bool is_convolution(const Node& node, Device device) {
  if (device == Device::Host && is_integer_convolution(node)) return true;
  const bool convolves = node.op == "Conv" || node.op == "ConvTranspose" || node.op == "FusedConv";
  if (!convolves || !is_image(*node.input(0))) return false;
  // Those of volumes are cuDNN's alone.
  const bool on_gpu = device == Device::CUDA;
  return (on_gpu || node.input(0)->rank() == 4) &&
         gains_by_channels_last(node.input(0)->dtype, device);
}

}  // namespace

LayoutFlow::LayoutFlow(const Graph& graph, Device device)
    : device_(device), ours_(device == Device::Host) {
  for (const auto& node : graph.nodes()) visit(*node);
  for (const GraphOutput& output : graph.outputs())
    if (output.value && differs(*output.value)) copied_.insert(output.value);
}

bool LayoutFlow::reads(const Node& convolution, size_t operand) const {
  const Value& value = *convolution.input(operand);
  // What a result is added to has to be dense.
  if (operand > 0 && slices_.contains(&value)) return false;
  return is_known_last(value);
}

bool LayoutFlow::is_known_last(const Value& value) const {
  return last_.contains(&value) || lies_both_ways(value);
}

/// Channels-last and not also row-major, and not cheap to copy.
bool LayoutFlow::differs(const Value& value) const {
  return last_.contains(&value) && !lies_both_ways(value) &&
         !is_constant(value.dims[1], kFewChannels);
}

void LayoutFlow::visit(Node& node) {
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
  const bool is_of_pixels = device_ != Device::CUDA && is_view_of_pixels(node);
  if (node.op == "ChannelsLast" || is_slice || is_of_pixels) return add_results(node);
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

bool LayoutFlow::result_is_channels_last(const Node& node, const OpDef& def) const {
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

void LayoutFlow::add_results(const Node& node) {
  for (const Value* result : node.outputs())
    if (is_image(*result)) last_.insert(result);
}

}  // namespace ortmodule
