// Equal shares of all elements of many tensors, so that thousands of small tensors cost one
// parallel region and a large one does not wait for a single thread.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {

class TensorShares {
 public:
  /// `memory` holds count + 1 numbers; count_of(i) gives the elements of tensor i.
  template <class CountOf>
  TensorShares(int64_t* memory, size_t count, const CountOf& count_of) : begin_(memory, count + 1) {
    memory[0] = 0;
    for (size_t i = 0; i < count; ++i) memory[i + 1] = memory[i] + count_of(i) + kTensorUnits;
  }

  /// body(tensor, first, last) for ranges of elements that cover every tensor once. Where a tensor
  /// is cut depends on the number of threads.
  template <class Body>
  void run(const KernelContext& context, const Body& body) const {
    parallel_ranges(context, begin_.back(), kGrain,
                    [&](int64_t begin, int64_t end) { run_share(begin, end, body); });
  }

 private:
  /// What a tensor costs beyond its elements, in elements.
  static constexpr int64_t kTensorUnits = 64;
  /// Tensors are cut at multiples of this, so that threads share no cache line.
  static constexpr int64_t kCutElements = 64;
  static constexpr int64_t kGrain = 32768;

  template <class Body>
  void run_share(int64_t begin, int64_t end, const Body& body) const {
    const auto after = std::upper_bound(begin_.begin(), begin_.end(), begin);
    for (auto i = static_cast<size_t>(after - begin_.begin()) - 1;
         i + 1 < begin_.size() && begin_[i] < end; ++i) {
      const int64_t count = begin_[i + 1] - begin_[i] - kTensorUnits;
      const auto element_at = [&](int64_t unit) {
        const int64_t element = std::max<int64_t>(unit - begin_[i], 0);
        return std::min(ceil_div(element, kCutElements) * kCutElements, count);
      };
      const int64_t first = element_at(begin);
      const int64_t last = end >= begin_[i + 1] ? count : element_at(end);
      if (first < last) body(i, first, last);
    }
  }

  std::span<const int64_t> begin_;  // in units, of each tensor and of the end
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
