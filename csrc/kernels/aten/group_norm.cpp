// GroupNormalization and its gradient through torch, which keeps the statistics in the type of x.
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>

#include <array>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

struct GroupSizes {
  int64_t images, channels, pixels, groups;

  GroupSizes(const TensorView& x, const Attrs& attrs)
      : images(x.sizes[0]), channels(x.sizes[1]), pixels(1), groups(attrs.integer("num_groups")) {
    for (int d = 2; d < x.rank; ++d) pixels *= x.sizes[d];
  }
};

void group_norm(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const GroupSizes s(args.in[0], attrs);
  give_used(args, at::native_group_norm(as_tensor(args.in[0]), optional_operand(args, 1),
                                        optional_operand(args, 2), s.images, s.channels, s.pixels,
                                        s.groups, attrs.number("epsilon")));
}

void group_norm_grad(const KernelArgs& args) {
  const GroupSizes s(args.in[1], args.facts.node().attrs);
  const at::Tensor x = as_tensor(args.in[1]);
  const std::vector<bool>& used = args.facts.node().output_used;
  give_used(args, at::native_group_norm_backward(
                      as_tensor(args.in[0]), x, as_tensor(args.in[3]).to(x.scalar_type()),
                      as_tensor(args.in[4]).to(x.scalar_type()), optional_operand(args, 2),
                      s.images, s.channels, s.pixels, s.groups, {used[0], used[1], used[2]}));
}

REGISTER_ATEN_KERNEL({.op = "GroupNormalization",
                      .name = "group_norm_aten",
                      .dtypes = kAllFloats,
                      .run = group_norm,
                      .library_bytes = probed_bytes<group_norm, true>,
                      .allocates_outputs = true});
REGISTER_ATEN_KERNEL({.op = "GroupNormalizationGrad",
                      .name = "group_norm_grad_aten",
                      .dtypes = kAllFloats,
                      .run = group_norm_grad,
                      .library_bytes = probed_bytes<group_norm_grad, true>,
                      .allocates_outputs = true});

}  // namespace
}  // namespace ortmodule
