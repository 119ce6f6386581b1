// Pad: y = `value` with x at `pads` from its beginning; `pads` lists all beginnings, then all ends.
// Bytes moved: x once, y twice (filled, then written).
#include "kernels/copy_geometry.h"
#include "kernels/cpu/fill.h"
#include "kernels/cpu/strided_copy.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using Placed = PlacedCopy<StridedCopy>;

std::shared_ptr<const void> prepare_pad(const StepFacts& facts) {
  return std::make_shared<const Placed>(pad_geometry(facts), facts.inputs[0].dtype, make_copy);
}

void run_pad(const KernelArgs& args) {
  fill_all(args.context, args.out[0], args.facts.node().attrs.number("value", 0.0));
  static_cast<const Placed*>(args.prepared)->run(run_copy, args.out[0], args.in[0], args.context);
}

REGISTER_CPU_KERNEL({.op = "Pad",
                     .name = "pad_cpu",
                     .dtypes = kMovedTypes,
                     .run = run_pad,
                     .unsupported = pad_unsupported,
                     .prepare = prepare_pad,
                     .input_rules = {LayoutRule::Any}});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
