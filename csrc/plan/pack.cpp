#include "plan/pack.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ortmodule {
namespace {

bool overlap(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

Packing pack_in_order(const std::vector<Block>& blocks, const std::vector<size_t>& order) {
  Packing result;
  result.offsets.assign(blocks.size(), 0);
  std::vector<size_t> placed;  // sorted by offset
  for (size_t index : order) {
    const Block& block = blocks[index];
    const int64_t wanted = align_up(block.bytes);
    int64_t best = -1;
    int64_t best_gap = std::numeric_limits<int64_t>::max();
    int64_t cursor = 0;
    for (size_t other : placed) {
      if (!overlap(block, blocks[other])) continue;
      const int64_t gap = result.offsets[other] - cursor;
      if (gap >= wanted && gap < best_gap) {
        best = cursor;
        best_gap = gap;
      }
      cursor = std::max(cursor, result.offsets[other] + align_up(blocks[other].bytes));
    }
    if (best < 0) best = cursor;
    result.offsets[index] = best;
    result.bytes = std::max(result.bytes, best + wanted);
    auto at = std::upper_bound(placed.begin(), placed.end(), index, [&](size_t a, size_t b) {
      return result.offsets[a] < result.offsets[b];
    });
    placed.insert(at, index);
  }
  return result;
}

}  // namespace

Packing pack(const std::vector<Block>& blocks) {
  std::vector<size_t> by_size(blocks.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::vector<size_t> by_birth = by_size;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](size_t a, size_t b) { return blocks[a].first < blocks[b].first; });
  Packing greedy = pack_in_order(blocks, by_size);
  Packing chronological = pack_in_order(blocks, by_birth);
  return chronological.bytes < greedy.bytes ? chronological : greedy;
}

int64_t peak_of(const std::vector<Block>& blocks) {
  int64_t peak = 0;
  for (const Block& at : blocks) {
    int64_t alive = 0;
    for (const Block& block : blocks)
      if (block.first <= at.first && at.first <= block.last) alive += align_up(block.bytes);
    peak = std::max(peak, alive);
  }
  return peak;
}

}  // namespace ortmodule
