// Contiguous: y = x in another layout: any rank, strides (0 too) and element size on the side of x,
// any dense layout on the side of y (row-major, or the strides that eager gives an output).
// Method: strided_copy.cpp. Bytes moved: x once, y once.
#include "kernels/copy_geometry.h"
#include "kernels/cpu/strided_copy.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using Placed = PlacedCopy<StridedCopy>;

std::shared_ptr<const void> prepare_contiguous(const StepFacts& facts) {
  return std::make_shared<const Placed>(contiguous_geometry(facts), facts.inputs[0].dtype,
                                        make_copy);
}

void run_contiguous(const KernelArgs& args) {
  static_cast<const Placed*>(args.prepared)->run(run_copy, args.out[0], args.in[0], args.context);
}

REGISTER_CPU_KERNEL({
    .op = "Contiguous",
    .name = "contiguous_cpu",
    .dtypes = kMovedTypes,
    .run = run_contiguous,
    .unsupported = contiguous_unsupported,
    .prepare = prepare_contiguous,
    .layout = LayoutRule::Any,
});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
