// Pad: y = `value` with x at `pads` from its beginning; `pads` lists all beginnings, then all ends.
// Bytes moved: x once, y twice (filled, then written).
#include <algorithm>

#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

struct PadPlan {
  StridedCopy copy;
  int64_t from = 0, to = 0;  // offsets in elements
};

// Negative pads cut: what remains of x is copied.
std::shared_ptr<const void> prepare_pad(const StepFacts& facts) {
  const Layout &x = facts.inputs[0].layout, &y = facts.outputs[0].layout;
  const std::vector<int64_t> pads = facts.node().attrs.integers("pads");
  const size_t rank = x.sizes.size();
  const Sizes to_strides = contiguous_strides(y.sizes);
  auto plan = std::make_shared<PadPlan>();
  Sizes sizes(rank);
  for (size_t d = 0; d < rank; ++d) {
    const int64_t before = pads[d], after = pads[rank + d];
    const int64_t cut_before = std::max<int64_t>(-before, 0);
    const int64_t cut_after = std::max<int64_t>(-after, 0);
    sizes[d] = std::max<int64_t>(0, x.sizes[d] - cut_before - cut_after);
    plan->from += cut_before * x.strides[d];
    plan->to += std::max<int64_t>(before, 0) * to_strides[d];
  }
  plan->copy = make_copy(sizes, to_strides, x.strides, size_of(facts.inputs[0].dtype));
  return plan;
}

void run_pad(const KernelArgs& args) {
  const PadPlan& plan = *static_cast<const PadPlan*>(args.prepared);
  const int64_t bytes = plan.copy.element_bytes;
  fill(args.out[0], args.facts.node().attrs.number("value", 0.0), args.context);
  run_copy(plan.copy, args.out[0].as<std::byte>() + plan.to * bytes,
           args.in[0].as<std::byte>() + plan.from * bytes, args.context);
}

Reason pad_unsupported(const StepFacts& facts) {
  if (real_rank(facts.outputs[0].layout.sizes) > kMaxRank)
    return str("it takes at most ", kMaxRank, " dimensions");
  if (is_complex(facts.inputs[0].dtype) && facts.node().attrs.number("value", 0.0) != 0)
    return "a complex padding is not zero";
  return {};
}

REGISTER_KERNEL({.op = "Pad",
                 .name = "pad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_pad,
                 .unsupported = pad_unsupported,
                 .prepare = prepare_pad,
                 .input_rules = {LayoutRule::Any}});

}  // namespace
}  // namespace ortmodule::cuda
