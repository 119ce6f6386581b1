// BatchNormInternal and its gradient through torch's out-variants, alone and with a Relu behind it.
// torch updates running statistics in place: the new ones are first filled with the old.
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/threshold_backward.h>

#include <array>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

// The result takes over the memory format of x, as in torch.
std::vector<Sizes> batch_norm_strides(const StepFacts& facts) {
  return {strides_like(facts.outputs[0].layout.sizes, facts.inputs[0].layout)};
}

std::vector<Sizes> batch_norm_grad_strides(const StepFacts& facts) {
  return {strides_like(facts.outputs[0].layout.sizes, facts.inputs[1].layout)};
}

std::optional<at::Tensor> moved(const KernelArgs& args, size_t in, size_t out) {
  const std::optional<at::Tensor> old = optional_operand(args, in);
  if (!old) return std::nullopt;
  at::Tensor fresh = as_tensor(args.out[out]);
  fresh.copy_(*old);
  return fresh;
}

void batch_norm(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  at::Tensor y = as_tensor(args.out[0]);
  at::Tensor mean = as_tensor(args.out[3]);
  at::Tensor inv_std = as_tensor(args.out[4]);
  at::native_batch_norm_out(y, mean, inv_std, as_tensor(args.in[0]), optional_operand(args, 1),
                            optional_operand(args, 2), moved(args, 3, 1), moved(args, 4, 2),
                            /*training=*/true, attrs.number("momentum"), attrs.number("epsilon"));
}

/// The results for the norm's gradient dy; `mean`: which operand is the mean, in front of the
/// reciprocal deviation.
void give_gradients(const KernelArgs& args, const at::Tensor& dy, size_t mean) {
  const std::vector<bool>& used = args.facts.node().output_used;
  give_used(args, at::native_batch_norm_backward(
                      dy, as_tensor(args.in[1]), optional_operand(args, 2), std::nullopt,
                      std::nullopt, as_tensor(args.in[mean]), as_tensor(args.in[mean + 1]),
                      /*train=*/true, /*eps=*/0.0, {used[0], used[1], used[2]}));
}

void batch_norm_grad(const KernelArgs& args) { give_gradients(args, as_tensor(args.in[0]), 3); }

void batch_norm_relu(const KernelArgs& args) {
  batch_norm(args);
  as_tensor(args.out[0]).relu_();
}

void batch_norm_add_relu(const KernelArgs& args) {
  batch_norm(args);
  as_tensor(args.out[0]).add_(as_tensor(args.in[5])).relu_();
}

/// What the norm gave, of which backward needs the sign.
at::Tensor normalized(const KernelArgs& args) {
  const at::Tensor x = as_tensor(args.in[1]);
  std::vector<int64_t> channels(static_cast<size_t>(x.dim()), 1);
  channels[1] = x.size(1);
  const auto spread = [&](const at::Tensor& value) { return value.view(channels); };
  at::Tensor factor = as_tensor(args.in[5]);
  if (const auto scale = optional_operand(args, 2)) factor = at::mul(factor, *scale);
  at::Tensor y = at::mul(at::sub(x, spread(as_tensor(args.in[4]))), spread(factor));
  if (const auto bias = optional_operand(args, 3)) y = at::add(y, spread(*bias));
  return y.to(x.scalar_type());
}

void batch_norm_relu_grad(const KernelArgs& args) {
  const at::Tensor dz = at::threshold_backward(as_tensor(args.in[0]), normalized(args), 0);
  give_gradients(args, dz, 4);
}

void batch_norm_add_relu_grad(const KernelArgs& args) {
  const at::Tensor sum = at::add(as_tensor(args.in[0]), as_tensor(args.in[1]));
  at::Tensor dz = at::threshold_backward(sum, as_tensor(args.in[2]), 0);
  const std::vector<bool>& used = args.facts.node().output_used;
  auto [dx, dscale, dbias] = at::native_batch_norm_backward(
      dz, as_tensor(args.in[3]), optional_operand(args, 4), std::nullopt, std::nullopt,
      as_tensor(args.in[5]), as_tensor(args.in[6]), /*train=*/true, /*eps=*/0.0,
      {used[1], used[2], used[3]});
  const std::array<at::Tensor*, 4> results{&dz, &dx, &dscale, &dbias};
  for (size_t i = 0; i < results.size(); ++i)
    if (used[i]) args.results[i] = give(*results[i], args.out[i]);
}

std::vector<Sizes> summed_strides(const StepFacts& facts) {
  return std::vector<Sizes>(2, strides_like(facts.outputs[0].layout.sizes, facts.inputs[3].layout));
}

template <void (*kRun)(const KernelArgs&)>
KernelDef forward(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = kAllFloats,
          .run = kRun,
          .library_bytes = probed_bytes<kRun>,
          .output_strides = batch_norm_strides,
          .input_rules = {LayoutRule::MemoryFormat}};
}

template <void (*kRun)(const KernelArgs&)>
KernelDef backward(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = kAllFloats,
          .run = kRun,
          .library_bytes = probed_bytes<kRun, true>,
          .output_strides = batch_norm_grad_strides,
          .input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat},
          .allocates_outputs = true};
}

REGISTER_ATEN_KERNEL(forward<batch_norm>("BatchNormInternal", "batch_norm_aten"));
REGISTER_ATEN_KERNEL(forward<batch_norm_relu>("BatchNormRelu", "batch_norm_relu_aten"));
REGISTER_ATEN_KERNEL(forward<batch_norm_add_relu>("BatchNormAddRelu", "batch_norm_add_relu_aten"));
REGISTER_ATEN_KERNEL(backward<batch_norm_grad>("BatchNormInternalGrad", "batch_norm_grad_aten"));
REGISTER_ATEN_KERNEL(backward<batch_norm_relu_grad>("BatchNormReluGrad",
                                                    "batch_norm_relu_grad_aten"));
REGISTER_ATEN_KERNEL({.op = "BatchNormAddReluGrad",
                      .name = "batch_norm_add_relu_grad_aten",
                      .dtypes = kAllFloats,
                      .run = batch_norm_add_relu_grad,
                      .library_bytes = probed_bytes<batch_norm_add_relu_grad, true>,
                      .output_strides = summed_strides,
                      .input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat,
                                      LayoutRule::MemoryFormat, LayoutRule::MemoryFormat},
                      .allocates_outputs = true});

}  // namespace
}  // namespace ortmodule
