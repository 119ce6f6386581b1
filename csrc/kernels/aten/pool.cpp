// Two-dimensional means through torch's out-variants, into planned memory.
#include "kernels/pool.h"

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

struct Pooling {
  std::vector<int64_t> kernel, strides, padding;
  bool ceil_mode = false;
  bool count_include_pad = true;
};

Reason other_windows(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  const std::vector<int64_t> pads = attrs.integers("pads");
  if (pads.size() != 4) return "the windows do not have two dimensions";
  if (pads[0] != pads[2] || pads[1] != pads[3]) return "padding must be equal on both sides";
  if (attrs.has("dilations") && attrs.integers("dilations") != std::vector<int64_t>{1, 1})
    return "the windows are dilated";
  return {};
}

std::shared_ptr<const void> prepare_pooling(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  auto pooling = std::make_shared<Pooling>();
  pooling->kernel = attrs.integers("kernel_shape");
  pooling->strides = attrs.integers("strides");
  const std::vector<int64_t> pads = attrs.integers("pads");
  pooling->padding = {pads.at(0), pads.at(1)};
  pooling->ceil_mode = attrs.flag("ceil_mode");
  pooling->count_include_pad = attrs.integer("count_include_pad", 1) != 0;
  return pooling;
}

void average_pool(const KernelArgs& args) {
  const Pooling& p = *static_cast<const Pooling*>(args.prepared);
  at::Tensor y = as_tensor(args.out[0]);
  at::avg_pool2d_out(y, as_tensor(args.in[0]), p.kernel, p.strides, p.padding, p.ceil_mode,
                     p.count_include_pad);
}

// Only the shape of x matters for the gradient of a mean: dx stands for it.
void average_pool_grad(const KernelArgs& args) {
  const Pooling& p = *static_cast<const Pooling*>(args.prepared);
  at::Tensor dx = as_tensor(args.out[0]);
  at::avg_pool2d_backward_out(dx, as_tensor(args.in[0]), dx, p.kernel, p.strides, p.padding,
                              p.ceil_mode, p.count_include_pad, std::nullopt);
}

REGISTER_ATEN_KERNEL({.op = "AveragePool",
                      .name = "average_pool_aten",
                      .dtypes = kAllFloats,
                      .run = average_pool,
                      .unsupported = other_windows,
                      .library_bytes = probed_bytes<average_pool, prepare_pooling>,
                      .output_strides = pooled_strides,
                      .prepare = prepare_pooling,
                      .layout = LayoutRule::MemoryFormat});
REGISTER_ATEN_KERNEL({.op = "AveragePoolGrad",
                      .name = "average_pool_grad_aten",
                      .dtypes = kAllFloats,
                      .run = average_pool_grad,
                      .unsupported = other_windows,
                      .library_bytes = probed_bytes<average_pool_grad, prepare_pooling>,
                      .output_strides = pooled_strides,
                      .prepare = prepare_pooling,
                      .layout = LayoutRule::MemoryFormat});

}  // namespace
}  // namespace ortmodule
