// SliceGrad: dx = zeros of `shape` with dy at start, start + step, ... along `axis`.
// Bytes moved: dy once, dx twice (cleared, then written).
#include "kernels/axis.h"
#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

struct SliceGradPlan {
  StridedCopy copy;
  int64_t to = 0;  // offset in elements
};

std::shared_ptr<const void> prepare_slice_grad(const StepFacts& facts) {
  const Layout &dy = facts.inputs[0].layout, &dx = facts.outputs[0].layout;
  const Attrs& attrs = facts.node().attrs;
  const auto axis = static_cast<size_t>(normalized_axis(attrs.integer("axis"), dx.sizes.size()));
  Sizes strides = contiguous_strides(dx.sizes);
  auto plan = std::make_shared<SliceGradPlan>();
  plan->to = attrs.integer("start") * strides[axis];
  strides[axis] *= attrs.integer("step", 1);
  plan->copy = make_copy(dy.sizes, strides, dy.strides, size_of(facts.inputs[0].dtype));
  return plan;
}

void run_slice_grad(const KernelArgs& args) {
  const SliceGradPlan& plan = *static_cast<const SliceGradPlan*>(args.prepared);
  fill(args.out[0], 0.0, args.context);
  run_copy(plan.copy, args.out[0].as<std::byte>() + plan.to * plan.copy.element_bytes,
           args.in[0].data, args.context);
}

Reason slice_grad_unsupported(const StepFacts& facts) {
  if (real_rank(facts.outputs[0].layout.sizes) > kMaxRank)
    return str("it takes at most ", kMaxRank, " dimensions");
  return {};
}

REGISTER_KERNEL({.op = "SliceGrad",
                 .name = "slice_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_slice_grad,
                 .unsupported = slice_grad_unsupported,
                 .prepare = prepare_slice_grad,
                 .input_rules = {LayoutRule::Any}});

}  // namespace
}  // namespace ortmodule::cuda
