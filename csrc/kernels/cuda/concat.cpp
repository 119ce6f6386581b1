// Concat along `axis`: each operand is copied to its part of y (strided_copy.cu), so operands may
// have any layout; neighbours whose copies are alike share launches. Bytes moved: each operand and
// y once.
#include "kernels/copy_geometry.h"
#include "kernels/cuda/strided_copy.h"

namespace ortmodule::cuda {
namespace {

/// Operands that lie alike.
struct Run {
  StridedCopy copy;
  std::vector<CopyGeometry> places;  // by operand
};

struct Prepared {
  int64_t element_bytes;
  std::vector<Run> runs;
};

bool lie_alike(const CopyGeometry& a, const CopyGeometry& b) {
  return a.sizes == b.sizes && a.to == b.to && a.from == b.from;
}

std::shared_ptr<const void> prepare_concat(const StepFacts& facts) {
  auto prepared = std::make_shared<Prepared>();
  const size_t width = size_of(facts.outputs[0].dtype);
  prepared->element_bytes = static_cast<int64_t>(width);
  for (const CopyGeometry& g : concat_geometry(facts)) {
    if (prepared->runs.empty() || !lie_alike(prepared->runs.back().places[0], g))
      prepared->runs.push_back({make_copy(g.sizes, g.to, g.from, width), {}});
    prepared->runs.back().places.push_back(g);
  }
  return prepared;
}

void run_concat(const KernelArgs& args) {
  const auto& prepared = *static_cast<const Prepared*>(args.prepared);
  size_t operand = 0;
  std::vector<CopyAddresses> at;
  for (const Run& run : prepared.runs) {
    at.clear();
    for (const CopyGeometry& place : run.places) {
      const auto* from = args.in[operand++].as<std::byte>();
      at.push_back({args.out[0].as<std::byte>() + place.to_offset * prepared.element_bytes,
                    from + place.from_offset * prepared.element_bytes});
    }
    run_copies(run.copy, at, args.context);
  }
}

REGISTER_KERNEL({.op = "Concat",
                 .name = "concat_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_concat,
                 .unsupported = copy_unsupported,
                 .output_strides = concat_strides,
                 .prepare = prepare_concat,
                 .layout = LayoutRule::Any});

}  // namespace
}  // namespace ortmodule::cuda
