#include "kernels/cuda/reduce_axes.cuh"

namespace ortmodule::cuda {

namespace {

// Least positions of a part: below that a block has more to set up than to add.
constexpr int64_t kLeastRowPart = 8192;
constexpr int64_t kLeastColumnPart = 256;
constexpr int64_t kMostParts = 1024;   // over all outputs: a few per multiprocessor
constexpr int64_t kPartMultiple = 16;  // so that parts begin at whole vectors

}  // namespace

ReducePlan make_reduce_plan(const StepFacts& facts) {
  const std::vector<DimGroup> groups = reduced_dims(facts);
  ReducePlan plan;
  plan.inner_reduced = groups.back().reduced;
  int64_t stride = element_count(facts.inputs[0].layout.sizes);
  for (const auto& [size, reduced] : groups) {
    stride /= std::max<int64_t>(size, 1);
    (reduced ? plan.per_output : plan.outputs) *= size;
    const bool is_inner = &size == &groups.back().size;
    if (is_inner && !reduced) {
      plan.inner = size;
    } else {
      (reduced ? plan.reduced : plan.kept).push(size, stride);
    }
  }
  plan.consecutive = plan.inner_reduced && plan.reduced.rank == 1;
  plan.divisor = facts.node().op == "ReduceMean" ? static_cast<double>(plan.per_output) : 1.0;
  const int64_t tasks =
      plan.inner_reduced ? plan.outputs : plan.kept.count * blocks_for(plan.inner, kBlockColumns);
  const int64_t least = plan.inner_reduced ? kLeastRowPart : kLeastColumnPart;
  const int64_t most = std::max<int64_t>(1, kMostParts / std::max<int64_t>(tasks, 1));
  const int64_t wanted = std::clamp<int64_t>(plan.per_output / least, 1, most);
  plan.part = blocks_for(blocks_for(plan.per_output, wanted), kPartMultiple) * kPartMultiple;
  plan.splits = std::max<int64_t>(1, blocks_for(plan.per_output, std::max<int64_t>(plan.part, 1)));
  return plan;
}

std::shared_ptr<const void> prepare_reduce(const StepFacts& facts) {
  return std::make_shared<const ReducePlan>(make_reduce_plan(facts));
}

size_t reduce_workspace(const StepFacts& facts) {
  const ReducePlan plan = make_reduce_plan(facts);
  return plan.splits == 1 ? 0 : static_cast<size_t>(plan.outputs * plan.splits) * 8;
}

}  // namespace ortmodule::cuda
