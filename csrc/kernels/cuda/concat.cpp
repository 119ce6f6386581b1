// Concat along `axis`: each operand is copied to its part of y (strided_copy.cu), so operands may
// have any layout. Bytes moved: each operand and y once.
#include "kernels/axis.h"
#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

struct Part {
  StridedCopy copy;
  int64_t byte_offset = 0;  // in y
};

std::shared_ptr<const void> prepare_concat(const StepFacts& facts) {
  const Layout& y = facts.outputs[0].layout;
  const size_t bytes = size_of(facts.outputs[0].dtype);
  const auto axis =
      static_cast<size_t>(normalized_axis(facts.node().attrs.integer("axis"), y.sizes.size()));
  auto parts = std::make_shared<std::vector<Part>>();
  int64_t at = 0;
  for (const OperandFacts& x : facts.inputs) {
    parts->push_back({make_copy(x.layout.sizes, y.strides, x.layout.strides, bytes),
                      at * y.strides[axis] * static_cast<int64_t>(bytes)});
    at += x.layout.sizes[axis];
  }
  return parts;
}

void run_concat(const KernelArgs& args) {
  const auto& parts = *static_cast<const std::vector<Part>*>(args.prepared);
  for (size_t i = 0; i < parts.size(); ++i)
    run_copy(parts[i].copy, args.out[0].as<std::byte>() + parts[i].byte_offset, args.in[i].data,
             args.context);
}

Reason concat_unsupported(const StepFacts& facts) {
  if (real_rank(facts.outputs[0].layout.sizes) > kMaxRank)
    return str("it takes at most ", kMaxRank, " dimensions");
  return {};
}

REGISTER_KERNEL({.op = "Concat",
                 .name = "concat_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_concat,
                 .unsupported = concat_unsupported,
                 .prepare = prepare_concat,
                 .layout = LayoutRule::Any});

}  // namespace
}  // namespace ortmodule::cuda
