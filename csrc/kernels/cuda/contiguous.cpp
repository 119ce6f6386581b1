// Contiguous: y = x in another layout: any rank, strides (0 too) and element size on the side of x,
// any dense layout on the side of y. Method: strided_copy.cu. Bytes moved: x once, y once.
#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

std::shared_ptr<const void> prepare_contiguous(const StepFacts& facts) {
  const Layout& from = facts.inputs.at(0).layout;
  const Layout& to = facts.outputs.at(0).layout;
  return std::make_shared<const StridedCopy>(make_copy(
      to.sizes, to.strides, broadcast_strides(from, to.sizes), size_of(facts.inputs[0].dtype)));
}

void run_contiguous(const KernelArgs& args) {
  run_copy(*static_cast<const StridedCopy*>(args.prepared), args.out[0].data, args.in[0].data,
           args.context);
}

Reason contiguous_unsupported(const StepFacts& facts) {
  if (facts.inputs.at(0).dtype != facts.outputs.at(0).dtype) return "it does not convert types";
  if (real_rank(facts.outputs[0].layout.sizes) > kMaxRank)
    return str("it takes at most ", kMaxRank, " dimensions");
  return {};
}

REGISTER_KERNEL({.op = "Contiguous",
                 .name = "contiguous_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_contiguous,
                 .unsupported = contiguous_unsupported,
                 .prepare = prepare_contiguous,
                 .layout = LayoutRule::Any});

}  // namespace
}  // namespace ortmodule::cuda
