// Conv, ConvTranspose and their gradients through torch's convolution (oneDNN on the CPU, cuDNN on
// CUDA, as torch.backends says), which allocates the results itself: they are taken over. cuDNN's
// plans are chosen anew by every thread, so by rules alone and among those that do not sum with
// atomics.
#include <ATen/Context.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/slice.h>

#include <algorithm>
#include <mutex>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

/// While one lives, torch chooses cuDNN's algorithms as torch.backends.cudnn.deterministic = True
/// and benchmark = False say. Both flags are the process's, so the first of several threads sets
/// them and the last sets them back.
class SameBits {
 public:
  explicit SameBits(bool on_cuda) : on_cuda_(on_cuda) {
    if (!on_cuda_) return;
    const std::lock_guard lock(flags().mutex);
    if (flags().users++ > 0) return;
    at::Context& torch = at::globalContext();
    flags().deterministic = torch.deterministicCuDNN();
    flags().benchmark = torch.benchmarkCuDNN();
    torch.setDeterministicCuDNN(true);
    torch.setBenchmarkCuDNN(false);
  }
  SameBits(const SameBits&) = delete;
  SameBits& operator=(const SameBits&) = delete;
  ~SameBits() {
    if (!on_cuda_) return;
    const std::lock_guard lock(flags().mutex);
    if (--flags().users > 0) return;
    at::globalContext().setDeterministicCuDNN(flags().deterministic);
    at::globalContext().setBenchmarkCuDNN(flags().benchmark);
  }

 private:
  struct Flags {
    std::mutex mutex;
    int users = 0;
    bool deterministic = false, benchmark = false;
  };
  static Flags& flags() {
    static Flags all;
    return all;
  }

  const bool on_cuda_;
};

struct Window {
  std::vector<int64_t> strides, padding, dilations, output_padding;
  int64_t group = 1;
  bool transposed = false;
};

Window window_of(const NodeFacts& node) {
  const Attrs& attrs = node.attrs;
  Window window;
  window.transposed = node.op.starts_with("ConvTranspose");
  window.strides = attrs.integers("strides");
  window.dilations = attrs.integers("dilations");
  const std::vector<int64_t> pads = attrs.integers("pads");  // begins, then ends
  window.padding.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(pads.size() / 2));
  window.output_padding.assign(window.strides.size(), 0);
  if (window.transposed) window.output_padding = attrs.integers("output_padding");
  window.group = attrs.integer("group");
  return window;
}

std::shared_ptr<const void> prepare_window(const StepFacts& facts) {
  return std::make_shared<Window>(window_of(facts.node()));
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

void conv(const KernelArgs& args) {
  const Window& w = *static_cast<const Window*>(args.prepared);
  const SameBits same_bits(engine_device().is_cuda());
  std::optional<at::Tensor> bias;
  if (args.in.size() > 2 && args.in[2].data) bias = as_tensor(args.in[2]);
  const at::Tensor y =
      at::convolution(as_tensor(args.in[0]), as_tensor(args.in[1]), bias, w.strides, w.padding,
                      w.dilations, w.transposed, w.output_padding, w.group);
  args.results[0] = give(y, args.out[0]);
}

// oneDNN 3.12, which torch 2.13 has, writes beyond its workspace for the weights' gradient of a
// strided 1x1 convolution of channels-last images (8 to 16 channels, odd batch, two threads; eager
// crashes as well). A convolution of the pixels that it reads is the same, and has no stride.
bool reads_single_pixels(const Window& w, const at::Tensor& x, const at::Tensor& weight) {
  const auto is_one = [](int64_t n) { return n == 1; };
  const auto is_zero = [](int64_t n) { return n == 0; };
  const auto kernel = weight.sizes().slice(2);
  return x.device().is_cpu() && !w.transposed && !x.is_contiguous() &&
         std::all_of(kernel.begin(), kernel.end(), is_one) &&
         std::all_of(w.padding.begin(), w.padding.end(), is_zero) &&
         !std::all_of(w.strides.begin(), w.strides.end(), is_one);
}

at::Tensor pixels_read(const Window& w, const at::Tensor& x) {
  at::Tensor pixels = x;
  for (size_t d = 0; d < w.strides.size(); ++d)
    pixels =
        at::slice(pixels, static_cast<int64_t>(d) + 2, std::nullopt, std::nullopt, w.strides[d]);
  return pixels.contiguous(x.suggest_memory_format());
}

using ConvGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ConvGradients conv_gradients(const Window& w, const at::Tensor& dy, const at::Tensor& x,
                             const at::Tensor& weight, at::IntArrayRef bias_sizes,
                             std::array<bool, 3> wanted) {
  if (!wanted[1] || !reads_single_pixels(w, x, weight))
    return at::convolution_backward(dy, x, weight, bias_sizes, w.strides, w.padding, w.dilations,
                                    w.transposed, w.output_padding, w.group, wanted);
  const std::vector<int64_t> ones(w.strides.size(), 1);
  auto [none, dw, dbias] = at::convolution_backward(dy, pixels_read(w, x), weight, bias_sizes, ones,
                                                    w.padding, w.dilations, false, w.output_padding,
                                                    w.group, {false, true, wanted[2]});
  at::Tensor dx;
  if (wanted[0])
    dx = std::get<0>(at::convolution_backward(dy, x, weight, bias_sizes, w.strides, w.padding,
                                              w.dilations, false, w.output_padding, w.group,
                                              {true, false, false}));
  return {dx, dw, dbias};
}

void conv_grad(const KernelArgs& args) {
  const Window& w = *static_cast<const Window*>(args.prepared);
  const SameBits same_bits(engine_device().is_cuda());
  const std::vector<bool>& used = args.facts.node().output_used;
  const at::Tensor weight = as_tensor(args.in[2]);
  const std::vector<int64_t> bias_sizes{args.facts.outputs[2].layout.sizes[0]};
  give_used(args, conv_gradients(w, as_tensor(args.in[0]), as_tensor(args.in[1]), weight,
                                 bias_sizes, {used[0], used[1], used[2]}));
}

KernelDef convolution(std::string_view op, std::string_view name) {
  KernelDef def{.op = op,
                .name = name,
                .dtypes = kAllFloats,
                .run = conv,
                .unsupported = asymmetric,
                .library_bytes = probed_bytes<conv, prepare_window, true>,
                .output_strides = conv_strides,
                .prepare = prepare_window,
                .layout = LayoutRule::Any,
                .allocates_outputs = true};
  if (op.ends_with("Grad")) {
    def.run = conv_grad;
    def.library_bytes = probed_bytes<conv_grad, prepare_window, true>;
    def.output_strides = conv_grad_strides;
  }
  return def;
}

constexpr OnCuda kOnCuda{.inexact = true};
const AtenKernelRegistrar conv_aten(convolution("Conv", "conv_aten"), kOnCuda);
const AtenKernelRegistrar conv_grad_aten(convolution("ConvGrad", "conv_grad_aten"), kOnCuda);
const AtenKernelRegistrar conv_transpose_aten(convolution("ConvTranspose", "conv_transpose_aten"),
                                              kOnCuda);
const AtenKernelRegistrar conv_transpose_grad_aten(convolution("ConvTransposeGrad",
                                                               "conv_transpose_grad_aten"),
                                                   kOnCuda);

}  // namespace
}  // namespace ortmodule
