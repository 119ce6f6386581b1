#include "plan/pack.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace ortmodule {
namespace {

bool overlap(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

/// The placed blocks by time: most live for a few of thousands of steps, so a block is compared
/// with few others.
class PlacedBlocks {
 public:
  PlacedBlocks(const std::vector<Block>& blocks, const std::vector<int64_t>& offsets)
      : blocks_(blocks), offsets_(offsets) {
    for (const Block& block : blocks) begin_ = std::min(begin_, block.first);
  }

  void add(size_t index) {
    const auto [first, last] = buckets_of(blocks_[index]);
    if (by_time_.size() <= last) by_time_.resize(last + 1);
    for (size_t bucket = first; bucket <= last; ++bucket) by_time_[bucket].push_back(index);
  }

  /// Placed blocks that live at the same time as this one, by ascending offset.
  std::vector<size_t> beside(const Block& block) const {
    const auto [first, last] = buckets_of(block);
    std::vector<size_t> found;
    for (size_t bucket = first; bucket <= last && bucket < by_time_.size(); ++bucket)
      for (size_t other : by_time_[bucket])
        if (overlap(block, blocks_[other]) && is_first_bucket(bucket, block, blocks_[other]))
          found.push_back(other);
    std::sort(found.begin(), found.end(),
              [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
    return found;
  }

 private:
  static constexpr int kStepsPerBucket = 16;

  size_t bucket_of(int step) const {
    return static_cast<size_t>((step - begin_) / kStepsPerBucket);
  }
  std::pair<size_t, size_t> buckets_of(const Block& block) const {
    return {bucket_of(block.first), bucket_of(block.last)};
  }
  /// A block that is in several buckets counts in the first that the two share.
  bool is_first_bucket(size_t bucket, const Block& a, const Block& b) const {
    return bucket == bucket_of(std::max(a.first, b.first));
  }

  const std::vector<Block>& blocks_;
  const std::vector<int64_t>& offsets_;
  int begin_ = std::numeric_limits<int>::max();
  std::vector<std::vector<size_t>> by_time_;
};

Packing pack_in_order(const std::vector<Block>& blocks, const std::vector<size_t>& order) {
  Packing result;
  result.offsets.assign(blocks.size(), 0);
  PlacedBlocks placed(blocks, result.offsets);
  for (size_t index : order) {
    const Block& block = blocks[index];
    const int64_t wanted = align_up(block.bytes);
    int64_t best = -1;
    int64_t best_gap = std::numeric_limits<int64_t>::max();
    int64_t cursor = 0;
    for (size_t other : placed.beside(block)) {
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
    placed.add(index);
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
