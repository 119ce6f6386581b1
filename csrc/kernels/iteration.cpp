#include "kernels/iteration.h"

#include <algorithm>
#include <numeric>

namespace ortmodule {

int64_t IterationSpace::count() const {
  int64_t total = 1;
  for (int d = 0; d < rank; ++d) total *= sizes[d];
  return total;
}

Coords IterationSpace::unravel(int64_t position) const {
  Coords coords{};
  for (int d = rank - 1; d > 0; --d) {
    coords[d] = position % sizes[d];
    position /= sizes[d];
  }
  coords[0] = position;
  return coords;
}

int64_t IterationSpace::offset(size_t operand, const Coords& coords) const {
  int64_t total = 0;
  for (int d = 0; d < rank; ++d) total += coords[d] * strides[operand][d];
  return total;
}

bool IterationSpace::is_linear(size_t operand) const {
  int64_t expected = 1;
  for (int d = rank - 1; d >= 0; --d) {
    if (sizes[d] != 1 && strides[operand][d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

Sizes broadcast_strides(const Layout& layout, const Sizes& sizes) {
  Sizes strides(sizes.size(), 0);
  const size_t missing = sizes.size() - layout.sizes.size();
  for (size_t d = missing; d < sizes.size(); ++d)
    if (layout.sizes[d - missing] != 1) strides[d] = layout.strides[d - missing];
  return strides;
}

IterationSpace iteration_space(const Sizes& sizes, const std::vector<Sizes>& strides,
                               size_t leader) {
  std::vector<size_t> order;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1) order.push_back(d);
  if (!strides.empty()) {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return strides[leader][a] > strides[leader][b]; });
  }
  IterationSpace space;
  space.strides.assign(strides.size(), Coords{});
  for (size_t d : order) {
    const int last = space.rank - 1;
    const bool merges = last >= 0 && [&] {
      for (size_t i = 0; i < strides.size(); ++i)
        if (space.strides[i][last] != strides[i][d] * sizes[d]) return false;
      return true;
    }();
    const int target = merges ? last : space.rank++;
    space.sizes[target] = merges ? space.sizes[last] * sizes[d] : sizes[d];
    for (size_t i = 0; i < strides.size(); ++i) space.strides[i][target] = strides[i][d];
  }
  if (space.rank == 0) {
    space.rank = 1;
    space.sizes[0] = 1;
  }
  return space;
}

int real_rank(const Sizes& sizes) {
  return static_cast<int>(
      std::count_if(sizes.begin(), sizes.end(), [](int64_t size) { return size != 1; }));
}

}  // namespace ortmodule
