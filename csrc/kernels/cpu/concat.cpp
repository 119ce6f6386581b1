// Concat along `axis`: each operand is copied to its part of y (strided_copy.cpp), so operands may
// have any layout. Bytes moved: each operand and y once.
#include "kernels/copy_geometry.h"
#include "kernels/cpu/strided_copy.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using Parts = std::vector<PlacedCopy<StridedCopy>>;

std::shared_ptr<const void> prepare_concat(const StepFacts& facts) {
  auto parts = std::make_shared<Parts>();
  for (const CopyGeometry& geometry : concat_geometry(facts))
    parts->emplace_back(geometry, facts.outputs[0].dtype, make_copy);
  return parts;
}

void run_concat(const KernelArgs& args) {
  const Parts& parts = *static_cast<const Parts*>(args.prepared);
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i].run(run_copy, args.out[0], args.in[i], args.context);
}

REGISTER_CPU_KERNEL({.op = "Concat",
                     .name = "concat_cpu",
                     .dtypes = kMovedTypes,
                     .run = run_concat,
                     .unsupported = copy_unsupported,
                     .output_strides = concat_strides,
                     .prepare = prepare_concat,
                     .layout = LayoutRule::Any});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
