// DynamicTimeWarping: the cheapest way through a matrix of costs from its first element to its
// last, by steps down, right or both.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

void run_dynamic_time_warping(const SizedCall& call) {
  const Sizes& sizes = call.operand(0).sizes;
  const int64_t columns = sizes.back(), rows = sizes[sizes.size() - 2], width = columns + 1;
  ORTM_CHECK(rows > 0 && columns > 0 && element_count(sizes) == rows * columns,
             "[run] there must be one matrix of costs");
  const auto* cost = call.data<float>(0);
  constexpr float kFar = std::numeric_limits<float>::infinity();
  std::vector<float> sums(static_cast<size_t>((rows + 1) * width), kFar);
  std::vector<int8_t> steps(sums.size(), -1);
  sums[0] = 0;
  for (int64_t j = 1; j <= columns; ++j)
    for (int64_t i = 1; i <= rows; ++i) {
      const auto at = static_cast<size_t>(i * width + j), above = at - static_cast<size_t>(width);
      const float both = sums[above - 1], down = sums[above], right = sums[at - 1];
      const int8_t step = both < down && both < right ? 0 : down < both && down < right ? 1 : 2;
      steps[at] = step;
      sums[at] = cost[(i - 1) * columns + j - 1] + (step == 0 ? both : step == 1 ? down : right);
    }
  std::fill_n(steps.begin(), width, int8_t{2});
  for (int64_t i = 0; i <= rows; ++i) steps[static_cast<size_t>(i * width)] = 1;
  std::vector<int32_t> down, right;
  for (int64_t i = rows, j = columns; i > 0 || j > 0;) {
    down.push_back(static_cast<int32_t>(i - 1));
    right.push_back(static_cast<int32_t>(j - 1));
    const int8_t step = steps[static_cast<size_t>(i * width + j)];
    if (step != 2) --i;
    if (step != 1) --j;
  }
  auto* to = call.result<int32_t>(DType::Int32, {2, std::ssize(down)});
  to = std::copy(down.rbegin(), down.rend(), to);
  std::copy(right.rbegin(), right.rend(), to);
}

std::vector<SizedResult> most_dynamic_time_warping(const SizedCall& call) {
  const Sizes& sizes = call.operand(0).sizes;
  return {{DType::Int32, {2, sizes.back() + sizes[sizes.size() - 2]}}};
}

const SizedRegistrar kDynamicTimeWarping({"DynamicTimeWarping", run_dynamic_time_warping,
                                          most_dynamic_time_warping});

}  // namespace
}  // namespace ortmodule
