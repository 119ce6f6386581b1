#include "plan/pack.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

namespace ortmodule {
namespace {

bool overlap(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

/// The placed blocks by time: most live for a few of thousands of steps, so a block is compared
/// with few others. In one array for all of them, as small ones would take most of the time.
class PlacedBlocks {
 public:
  PlacedBlocks(const std::vector<Block>& blocks, const std::vector<int64_t>& offsets)
      : blocks_(blocks), offsets_(offsets) {
    for (const Block& block : blocks) begin_ = std::min(begin_, block.first);
    for (const Block& block : blocks) {
      const auto [first, last] = buckets_of(block);
      if (ends_.size() <= last) ends_.resize(last + 1);
      for (size_t bucket = first; bucket <= last; ++bucket) ++ends_[bucket];
    }
    starts_.reserve(ends_.size());
    size_t count = 0;
    for (size_t& end : ends_) {
      starts_.push_back(count);
      count += std::exchange(end, count);
    }
    by_time_.resize(count);
  }

  void add(size_t index) {
    const auto [first, last] = buckets_of(blocks_[index]);
    for (size_t bucket = first; bucket <= last; ++bucket) by_time_[ends_[bucket]++] = index;
    placed_.push_back(index);
  }

  /// Placed blocks that live at the same time as this one, by ascending offset; until the next
  /// call.
  const std::vector<size_t>& beside(const Block& block) {
    const auto [first, last] = buckets_of(block);
    size_t in_buckets = 0;
    for (size_t bucket = first; bucket <= last; ++bucket)
      in_buckets += ends_[bucket] - starts_[bucket];
    found_.clear();
    // Blocks that live long are in many buckets.
    if (in_buckets > placed_.size())
      std::ranges::copy_if(placed_, std::back_inserter(found_),
                           [&](size_t other) { return overlap(block, blocks_[other]); });
    else
      find_in_buckets(block, first, last);
    std::sort(found_.begin(), found_.end(),
              [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
    return found_;
  }

 private:
  static constexpr int kStepsPerBucket = 16;

  size_t bucket_of(int step) const {
    return static_cast<size_t>((step - begin_) / kStepsPerBucket);
  }
  std::pair<size_t, size_t> buckets_of(const Block& block) const {
    return {bucket_of(block.first), bucket_of(block.last)};
  }
  void find_in_buckets(const Block& block, size_t first, size_t last) {
    for (size_t bucket = first; bucket <= last; ++bucket)
      for (size_t i = starts_[bucket]; i < ends_[bucket]; ++i) {
        const Block& other = blocks_[by_time_[i]];
        if (overlap(block, other) && is_first_bucket(bucket, block, other))
          found_.push_back(by_time_[i]);
      }
  }
  /// A block that is in several buckets counts in the first that the two share.
  bool is_first_bucket(size_t bucket, const Block& a, const Block& b) const {
    return bucket == bucket_of(std::max(a.first, b.first));
  }

  const std::vector<Block>& blocks_;
  const std::vector<int64_t>& offsets_;
  int begin_ = std::numeric_limits<int>::max();
  std::vector<size_t> starts_, ends_;  // by bucket, in by_time_; the end is that of those placed
  std::vector<size_t> by_time_;
  std::vector<size_t> placed_;
  std::vector<size_t> found_;
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
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  Packing greedy = pack_in_order(blocks, order);
  if (greedy.bytes == peak_of(blocks)) return greedy;
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].first < blocks[b].first; });
  Packing chronological = pack_in_order(blocks, order);
  return chronological.bytes < greedy.bytes ? chronological : greedy;
}

int64_t peak_of(const std::vector<Block>& blocks) {
  std::vector<std::pair<int, int64_t>> changes;  // step, bytes from there on
  changes.reserve(2 * blocks.size());
  for (const Block& block : blocks) {
    changes.emplace_back(block.first, align_up(block.bytes));
    changes.emplace_back(block.last + 1, -align_up(block.bytes));
  }
  std::sort(changes.begin(), changes.end());  // of one step, what ends comes first
  int64_t peak = 0, alive = 0;
  for (const auto& [step, bytes] : changes) peak = std::max(peak, alive += bytes);
  return peak;
}

}  // namespace ortmodule
