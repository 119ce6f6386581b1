#include "kernels/reduced_dims.h"

#include <algorithm>

#include "kernels/axis.h"
#include "kernels/iteration.h"
#include "kernels/memory_format.h"

namespace ortmodule {
namespace {

std::vector<bool> find_reduced(const StepFacts& facts) {
  const size_t rank = facts.inputs[0].layout.sizes.size();
  const std::vector<int64_t> axes = facts.node().attrs.integers("axes");
  std::vector<bool> reduced(rank, axes.empty());
  for (int64_t axis : axes) reduced[static_cast<size_t>(normalized_axis(axis, rank))] = true;
  return reduced;
}

/// Operands of other layouts are copied to be row-major.
std::vector<size_t> memory_order(const Layout& x) {
  std::vector<size_t> order(x.sizes.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = d;
  if (is_pixel_major(x)) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  return order;
}

/// Why results found in the order of x's memory would not be row-major, or nothing.
Reason results_out_of_order(const StepFacts& facts) {
  const Layout& x = facts.inputs[0].layout;
  const std::vector<bool> reduced = find_reduced(facts);
  std::vector<size_t> kept = memory_order(x);
  std::erase_if(kept, [&](size_t d) { return reduced[d] || x.sizes[d] == 1; });
  if (std::ranges::is_sorted(kept)) return {};
  return "channels and pixels are kept, but lie in another order in memory";
}

}  // namespace

std::vector<DimGroup> reduced_dims(const StepFacts& facts) {
  const Layout& x = facts.inputs[0].layout;
  const std::vector<bool> reduced = find_reduced(facts);
  std::vector<DimGroup> groups;
  for (size_t d : memory_order(x)) {
    if (x.sizes[d] == 1) continue;
    if (!groups.empty() && groups.back().reduced == reduced[d]) {
      groups.back().size *= x.sizes[d];
    } else {
      groups.push_back({x.sizes[d], reduced[d]});
    }
  }
  if (groups.empty()) groups.emplace_back();
  return groups;
}

Reason reduce_unsupported(const StepFacts& facts) {
  if (real_rank(facts.inputs[0].layout.sizes) > kMaxRank)
    return str("it takes at most ", kMaxRank, " dimensions");
  if (facts.node().op == "ReduceMean" && !is_floating(facts.inputs[0].dtype))
    return "a mean of integers is not a float here";
  if (!kRealTypes.contains(facts.outputs[0].dtype)) return "the result is not of a real type";
  return {};
}

Reason in_order_unsupported(const StepFacts& facts) {
  const Reason out_of_order = results_out_of_order(facts);
  return out_of_order ? out_of_order : reduce_unsupported(facts);
}

}  // namespace ortmodule
