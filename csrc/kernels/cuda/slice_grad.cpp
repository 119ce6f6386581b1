// SliceGrad: dx = zeros of `shape` with dy at start, start + step, ... along `axis`.
// Bytes moved: dy once, dx twice (cleared, then written).
#include "kernels/copy_geometry.h"
#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

using Placed = PlacedCopy<StridedCopy>;

std::shared_ptr<const void> prepare_slice_grad(const StepFacts& facts) {
  return std::make_shared<const Placed>(slice_grad_geometry(facts), facts.inputs[0].dtype,
                                        make_copy);
}

void run_slice_grad(const KernelArgs& args) {
  fill(args.out[0], 0.0, args.context);
  static_cast<const Placed*>(args.prepared)->run(run_copy, args.out[0], args.in[0], args.context);
}

REGISTER_KERNEL({.op = "SliceGrad",
                 .name = "slice_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_slice_grad,
                 .unsupported = copy_unsupported,
                 .prepare = prepare_slice_grad,
                 .input_rules = {LayoutRule::Any}});

}  // namespace
}  // namespace ortmodule::cuda
