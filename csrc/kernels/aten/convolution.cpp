// Conv and ConvGrad through torch's convolution (oneDNN where it is built in), which allocates the
// results itself: they are taken over.
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <algorithm>

#include "kernels/aten/aten_views.h"

namespace ortmodule {
namespace {

struct Window {
  std::vector<int64_t> strides, padding, dilations;
  int64_t group = 1;
};

Window window_of(const Attrs& attrs) {
  Window window;
  window.strides = attrs.integers("strides");
  window.dilations = attrs.integers("dilations");
  const std::vector<int64_t> pads = attrs.integers("pads");  // begins, then ends
  window.padding.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(pads.size() / 2));
  window.group = attrs.integer("group");
  return window;
}

std::shared_ptr<const void> prepare_window(const StepFacts& facts) {
  return std::make_shared<Window>(window_of(facts.node().attrs));
}

Reason asymmetric(const StepFacts& facts) {
  const std::vector<int64_t> pads = facts.node().attrs.integers("pads");
  for (size_t i = 0; i < pads.size() / 2; ++i)
    if (pads[i] != pads[i + pads.size() / 2]) return "padding must be equal on both sides";
  return {};
}

// A channels_last operand gives a channels_last result, as in torch.
std::vector<Sizes> conv_strides(const StepFacts& facts) {
  const Layout& x = facts.inputs[0].layout;
  const Layout& y = facts.outputs[0].layout;
  return {is_dense(x) ? strides_like(y.sizes, x) : y.strides};
}

std::vector<Sizes> conv_grad_strides(const StepFacts& facts) {
  std::vector<Sizes> strides;
  for (size_t i = 0; i < 2; ++i) {
    const Layout& like = facts.inputs[i + 1].layout;
    const Sizes& sizes = facts.outputs[i].layout.sizes;
    strides.push_back(is_dense(like) ? strides_like(sizes, like) : contiguous_strides(sizes));
  }
  return strides;
}

size_t bytes_of(const OperandFacts& operand) {
  return static_cast<size_t>(element_count(operand.layout.sizes)) * size_of(operand.dtype);
}

/// torch without oneDNN unfolds the windows of the whole batch: every weight's operand per result.
size_t unfolded_bytes(const OperandFacts& weight, const OperandFacts& y) {
  const Sizes& w = weight.layout.sizes;
  size_t per_result = size_of(weight.dtype);
  for (size_t i = 1; i < w.size(); ++i) per_result *= static_cast<size_t>(w[i]);
  const Sizes& sizes = y.layout.sizes;
  size_t results = static_cast<size_t>(sizes[0]);
  for (size_t i = 2; i < sizes.size(); ++i) results *= static_cast<size_t>(sizes[i]);
  return per_result * results;
}

bool is_channels_last(const Layout& layout) {
  return layout.sizes.size() > 2 && !is_contiguous(layout) && is_dense(layout);
}

// What oneDNN takes for blocked copies, measured on torch 2.13 (AVX-512): forward copies the
// operand and the weight, or the result where there are few channels; the gradient copies the
// operand and the larger of the two gradients. Channels-last operands are used as they lie. float64
// has no oneDNN.
size_t conv_library_bytes(const StepFacts& facts) {
  const OperandFacts &x = facts.inputs[0], &w = facts.inputs[1], &y = facts.outputs[0];
  if (x.dtype == DType::Float64) return unfolded_bytes(w, y);
  if (is_channels_last(x.layout)) return 2 * bytes_of(w);
  constexpr int64_t kFewChannels = 4;
  const bool few = x.layout.sizes.size() > 1 && x.layout.sizes[1] < kFewChannels;
  return bytes_of(few ? y : x) + bytes_of(w);
}

size_t conv_grad_library_bytes(const StepFacts& facts) {
  const OperandFacts &dy = facts.inputs[0], &x = facts.inputs[1], &w = facts.inputs[2];
  if (x.dtype == DType::Float64) return unfolded_bytes(w, dy);
  if (is_channels_last(x.layout)) return 3 * bytes_of(w);
  const std::vector<bool>& used = facts.node().output_used;
  const size_t larger = std::max(bytes_of(dy), bytes_of(x));
  return used[0] ? bytes_of(x) + larger : larger;
}

void conv(const KernelArgs& args) {
  const Window& w = *static_cast<const Window*>(args.prepared);
  std::optional<at::Tensor> bias;
  if (args.in.size() > 2 && args.in[2].data) bias = as_tensor(args.in[2]);
  const std::vector<int64_t> no_output_padding(w.strides.size(), 0);
  const at::Tensor y =
      at::convolution(as_tensor(args.in[0]), as_tensor(args.in[1]), bias, w.strides, w.padding,
                      w.dilations, /*transposed=*/false, no_output_padding, w.group);
  args.results[0] = give(y, args.out[0]);
}

void conv_grad(const KernelArgs& args) {
  const Window& w = *static_cast<const Window*>(args.prepared);
  const std::vector<bool>& used = args.facts.node().output_used;
  const at::Tensor weight = as_tensor(args.in[2]);
  const std::vector<int64_t> bias_sizes{weight.size(0)};
  const std::vector<int64_t> no_output_padding(w.strides.size(), 0);
  const auto [dx, dw, dbias] = at::convolution_backward(
      as_tensor(args.in[0]), as_tensor(args.in[1]), weight, bias_sizes, w.strides, w.padding,
      w.dilations, /*transposed=*/false, no_output_padding, w.group, {used[0], used[1], used[2]});
  const at::Tensor results[] = {dx, dw, dbias};
  for (size_t i = 0; i < 3; ++i)
    if (used[i]) args.results[i] = give(results[i], args.out[i]);
}

REGISTER_KERNEL({.op = "Conv",
                 .name = "conv_aten",
                 .dtypes = kAllFloats,
                 .run = conv,
                 .unsupported = asymmetric,
                 .library_bytes = conv_library_bytes,
                 .output_strides = conv_strides,
                 .prepare = prepare_window,
                 .layout = LayoutRule::Any,
                 .gives_results = true,
                 .inexact = true});
REGISTER_KERNEL({.op = "ConvGrad",
                 .name = "conv_grad_aten",
                 .dtypes = kAllFloats,
                 .run = conv_grad,
                 .unsupported = asymmetric,
                 .library_bytes = conv_grad_library_bytes,
                 .output_strides = conv_grad_strides,
                 .prepare = prepare_window,
                 .layout = LayoutRule::Any,
                 .gives_results = true,
                 .inexact = true});

}  // namespace
}  // namespace ortmodule
