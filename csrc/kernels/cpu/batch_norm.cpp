// BatchNormInternal over channels-last float32, where pixels are rows of channels:
//   mean, var = over rows of x,  inv = 1 / sqrt(var + epsilon),  y = (x - mean) inv scale + bias
// BatchNormInternalGrad, with the sums over all rows:
//   dbias = sum dy,  dscale = inv sum dy (x - mean),
//   dx = inv scale (dy - dbias / rows - (x - mean) inv dscale / rows)
// Bytes moved: x three times forward; dy and x twice backward.
#include <cmath>

#include "kernels/cpu/column_sums.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// All pixels of the batch are rows of one image.
PixelRows pixel_rows(const Layout& x) {
  const int64_t channels = x.sizes[1];
  return {1, channels == 0 ? 0 : element_count(x.sizes) / channels, channels};
}

void move_running(const KernelArgs& args, size_t i, const double* batch, double factor) {
  const float* old = data_or_null<float>(args.in, i + 2);
  if (!old) return;
  float* fresh = args.out[i].as<float>();
  const double momentum = args.facts.node().attrs.number("momentum");
  for (int64_t c = 0; c < args.in[i + 2].sizes[0]; ++c)
    fresh[c] = static_cast<float>((1 - momentum) * static_cast<double>(old[c]) +
                                  momentum * batch[c] * factor);
}

void batch_norm(const KernelArgs& args) {
  const PixelRows shape = pixel_rows(args.facts.inputs[0].layout);
  auto* sums = static_cast<double*>(args.workspace);
  const int64_t n = shape.channels;
  const float* x = args.in[0].as<float>();
  const float *scale = data_or_null<float>(args.in, 1), *bias = data_or_null<float>(args.in, 2);
  float *y = args.out[0].as<float>(), *mean = args.out[3].as<float>();
  float* inv = args.out[4].as<float>();
  const auto rows = static_cast<double>(shape.rows);
  column_sums<1>(args.context, shape, sums, [&](int64_t) {
    return [&](int64_t row, int64_t c) { return std::array{x[row * n + c]}; };
  });
  for (int64_t c = 0; c < n; ++c) mean[c] = static_cast<float>(sums[c] / rows);
  move_running(args, 1, sums, 1 / rows);
  column_sums<1>(args.context, shape, sums, [&](int64_t) {
    return [&](int64_t row, int64_t c) {
      const float deviation = x[row * n + c] - mean[c];
      return std::array{deviation * deviation};
    };
  });
  const double epsilon = args.facts.node().attrs.number("epsilon");
  for (int64_t c = 0; c < n; ++c)
    inv[c] = static_cast<float>(1 / std::sqrt(sums[c] / rows + epsilon));
  move_running(args, 2, sums, 1 / (rows - 1));
  parallel_ranges(args.context, shape.rows, grain_for(n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* from = x + row * n;
      float* to = y + row * n;
      ORTM_SIMD
      for (int64_t c = 0; c < n; ++c) {
        const float h = normalized(from[c], mean[c], inv[c]);
        to[c] = (scale ? h * scale[c] : h) + (bias ? bias[c] : 0.0F);
      }
    }
  });
}

void batch_norm_grad(const KernelArgs& args) {
  const PixelRows shape = pixel_rows(args.facts.inputs[1].layout);
  auto* sums = static_cast<double*>(args.workspace);
  const int64_t n = shape.channels;
  const float *dy = args.in[0].as<float>(), *x = args.in[1].as<float>();
  const float* scale = data_or_null<float>(args.in, 2);
  const float *mean = args.in[3].as<float>(), *inv = args.in[4].as<float>();
  column_sums<2>(args.context, shape, sums, [&](int64_t) {
    return [&](int64_t row, int64_t c) {
      const float g = dy[row * n + c];
      return std::array{g, g * (x[row * n + c] - mean[c])};
    };
  });
  const std::vector<bool>& used = args.facts.node().output_used;
  for (int64_t c = 0; c < n; ++c) {
    if (used[1])
      args.out[1].as<float>()[c] = static_cast<float>(sums[n + c] * static_cast<double>(inv[c]));
    if (used[2]) args.out[2].as<float>()[c] = static_cast<float>(sums[c]);
  }
  if (!used[0]) return;
  // What is left per channel, in front of the sums of later blocks, which are no longer needed.
  auto* mean_dy = static_cast<float*>(args.workspace) + 4 * n;
  float *slope = mean_dy + n, *factor = slope + n;
  const auto rows = static_cast<double>(shape.rows);
  for (int64_t c = 0; c < n; ++c) {
    const auto own_inv = static_cast<double>(inv[c]);
    mean_dy[c] = static_cast<float>(sums[c] / rows);
    slope[c] = static_cast<float>(sums[n + c] * own_inv * own_inv / rows);
    factor[c] = scale ? inv[c] * scale[c] : inv[c];
  }
  float* dx = args.out[0].as<float>();
  parallel_ranges(args.context, shape.rows, grain_for(2 * n), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * n; at < end * n; at += n) {
      ORTM_SIMD
      for (int64_t c = 0; c < n; ++c)
        dx[at + c] = factor[c] * (dy[at + c] - mean_dy[c] - (x[at + c] - mean[c]) * slope[c]);
    }
  });
}

size_t workspace(const StepFacts& facts) {
  return column_sums_bytes<1>(pixel_rows(facts.inputs[0].layout));
}

size_t grad_workspace(const StepFacts& facts) {
  const Layout& x = facts.inputs[1].layout;
  return column_sums_bytes<2>(pixel_rows(x)) + 3 * static_cast<size_t>(x.sizes[1]) * sizeof(float);
}

/// In channels-last order, and not as well in row-major order.
bool is_rows_of_channels(const OperandFacts& x) {
  return is_channels_last(x.layout) && !is_contiguous(x.layout);
}

Reason unsupported(const StepFacts& facts, size_t tensors) {
  for (size_t i = 0; i < tensors; ++i)
    if (!is_rows_of_channels(facts.inputs[i])) return "the operands are not channels-last";
  for (const auto& operands : {facts.inputs, facts.outputs})
    for (const OperandFacts& operand : operands)
      if (operand.dtype != DType::Float32 && operand.dtype != DType::Undefined)
        return "only float32 is computed here";
  return {};
}

std::vector<Sizes> like_input(const StepFacts& facts) { return {facts.inputs[0].layout.strides}; }

REGISTER_CPU_KERNEL({.op = "BatchNormInternal",
                     .name = "batch_norm_channels_last_cpu",
                     .dtypes = {DType::Float32},
                     .run = batch_norm,
                     .unsupported = [](const StepFacts& facts) { return unsupported(facts, 1); },
                     .workspace_bytes = workspace,
                     .output_strides = like_input,
                     .input_rules = {LayoutRule::MemoryFormat},
                     .priority = 1});
REGISTER_CPU_KERNEL({.op = "BatchNormInternalGrad",
                     .name = "batch_norm_grad_channels_last_cpu",
                     .dtypes = {DType::Float32},
                     .run = batch_norm_grad,
                     .unsupported = [](const StepFacts& facts) { return unsupported(facts, 2); },
                     .workspace_bytes = grad_workspace,
                     .output_strides = like_input,
                     .input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat},
                     .leaves_out_unused = true,
                     .priority = 1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
