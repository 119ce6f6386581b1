// BatchNormInternal and its gradient through torch's out-variants. torch updates running statistics
// in place: the new ones are first filled with the old.
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

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

void batch_norm_grad(const KernelArgs& args) {
  const std::vector<bool>& used = args.facts.node().output_used;
  const auto [dx, dscale, dbias] = at::native_batch_norm_backward(
      as_tensor(args.in[0]), as_tensor(args.in[1]), optional_operand(args, 2), std::nullopt,
      std::nullopt, as_tensor(args.in[3]), as_tensor(args.in[4]), /*train=*/true, /*eps=*/0.0,
      {used[0], used[1], used[2]});
  const at::Tensor results[] = {dx, dscale, dbias};
  for (size_t i = 0; i < 3; ++i)
    if (used[i]) args.results[i] = give(results[i], args.out[i]);
}

REGISTER_ATEN_KERNEL({.op = "BatchNormInternal",
                      .name = "batch_norm_aten",
                      .dtypes = kAllFloats,
                      .run = batch_norm,
                      .library_bytes = probed_bytes<batch_norm>,
                      .output_strides = batch_norm_strides,
                      .input_rules = {LayoutRule::MemoryFormat}});
REGISTER_ATEN_KERNEL({.op = "BatchNormInternalGrad",
                      .name = "batch_norm_grad_aten",
                      .dtypes = kAllFloats,
                      .run = batch_norm_grad,
                      .library_bytes = probed_bytes<batch_norm_grad, true>,
                      .output_strides = batch_norm_grad_strides,
                      .input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat},
                      .allocates_outputs = true});

}  // namespace
}  // namespace ortmodule
