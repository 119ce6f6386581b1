// Offsets in an arena against worked examples and against the optimum of small instances.
#include <gtest/gtest.h>

#include <random>

#include "plan/pack.h"

namespace ortmodule {
namespace {

constexpr int64_t kUnit = kAlignmentBytes;

Block block(int first, int last, int64_t units) { return {first, last, units * kUnit}; }

bool meet(const Block& a, const Block& b) { return a.first <= b.last && b.first <= a.last; }

/// Blocks that live at the same time lie apart, inside the arena, at aligned offsets.
void expect_valid(const std::vector<Block>& blocks, const Packing& packing) {
  ASSERT_EQ(packing.offsets.size(), blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t begin = packing.offsets[i], end = begin + blocks[i].bytes;
    EXPECT_EQ(begin % kAlignmentBytes, 0);
    EXPECT_LE(end, packing.bytes);
    for (size_t k = 0; k < i; ++k) {
      const bool apart = packing.offsets[k] >= end || packing.offsets[k] + blocks[k].bytes <= begin;
      EXPECT_TRUE(apart || !meet(blocks[i], blocks[k])) << "blocks " << k << " and " << i;
    }
  }
}

/// Whether the blocks from `next` on can be placed in `units` beside those before.
bool fits(const std::vector<Block>& blocks, int64_t units, std::vector<int64_t>& at) {
  const size_t next = at.size();
  if (next == blocks.size()) return true;
  const int64_t size = blocks[next].bytes / kUnit;
  for (int64_t begin = 0; begin + size <= units; ++begin) {
    bool free = true;
    for (size_t k = 0; k < next && free; ++k)
      free = !meet(blocks[next], blocks[k]) || at[k] >= begin + size ||
             at[k] + blocks[k].bytes / kUnit <= begin;
    if (!free) continue;
    at.push_back(begin);
    if (fits(blocks, units, at)) return true;
    at.pop_back();
  }
  return false;
}

/// By exhaustive search.
int64_t optimum(const std::vector<Block>& blocks) {
  for (int64_t units = peak_of(blocks) / kUnit;; ++units) {
    std::vector<int64_t> at;
    if (fits(blocks, units, at)) return units * kUnit;
  }
}

TEST(Pack, OfNothingIsEmpty) {
  EXPECT_EQ(pack({}).bytes, 0);
  EXPECT_EQ(peak_of({}), 0);
}

TEST(Pack, GoesBySizeIntoTheSmallestGap) {
  // The largest first: 3 at 0, 1 behind it, 0 and 4 where 1 and 3 leave room, 2 behind both.
  const std::vector<Block> blocks = {block(0, 1, 2), block(1, 3, 3), block(2, 4, 1), block(3, 5, 4),
                                     block(5, 6, 2)};
  const Packing packing = pack(blocks);
  expect_valid(blocks, packing);
  EXPECT_EQ(packing.offsets,
            std::vector<int64_t>({0 * kUnit, 4 * kUnit, 7 * kUnit, 0 * kUnit, 4 * kUnit}));
  EXPECT_EQ(peak_of(blocks), 8 * kUnit);  // at step 3
  EXPECT_EQ(packing.bytes, 8 * kUnit);
}

TEST(Pack, GoesByBirthWhereThatIsSmaller) {
  const std::vector<Block> blocks = {block(1, 3, 1), block(0, 2, 3), block(6, 7, 3),
                                     block(3, 6, 2)};
  const Packing packing = pack(blocks);
  expect_valid(blocks, packing);
  EXPECT_EQ(packing.offsets, std::vector<int64_t>({3 * kUnit, 0, 2 * kUnit, 0}));
  EXPECT_EQ(packing.bytes, 5 * kUnit);  // by size it would be 6
  EXPECT_EQ(peak_of(blocks), 5 * kUnit);
}

TEST(Pack, RoundsSizesUpToTheAlignment) {
  const std::vector<Block> blocks = {{0, 1, 1}, {1, 2, kUnit + 1}, {1, 1, 0}};
  const Packing packing = pack(blocks);
  expect_valid(blocks, packing);
  EXPECT_EQ(packing.bytes, 3 * kUnit);
  EXPECT_EQ(peak_of(blocks), 3 * kUnit);
}

TEST(Pack, MayMissTheOptimum) {
  const std::vector<Block> blocks = {block(0, 1, 4), block(3, 5, 3), block(1, 4, 3),
                                     block(3, 3, 2)};
  const Packing packing = pack(blocks);
  expect_valid(blocks, packing);
  EXPECT_EQ(peak_of(blocks), 8 * kUnit);
  EXPECT_EQ(optimum(blocks), 8 * kUnit);
  EXPECT_EQ(packing.bytes, 9 * kUnit);
}

TEST(Pack, IsMostlyTheOptimumOfSmallInstances) {
  std::mt19937 rng(3);
  const auto draw = [&](int least, int most) {
    return least + static_cast<int>(rng() % static_cast<unsigned>(most - least + 1));
  };
  int optimal = 0;
  constexpr int kInstances = 300;
  for (int instance = 0; instance < kInstances; ++instance) {
    std::vector<Block> blocks;
    for (int i = 0; i < 7; ++i) {
      const int first = draw(0, 8);
      blocks.push_back(block(first, first + draw(0, 3), draw(1, 5)));
    }
    const Packing packing = pack(blocks);
    expect_valid(blocks, packing);
    const int64_t best = optimum(blocks);
    EXPECT_GE(best, peak_of(blocks));
    EXPECT_LE(packing.bytes, best + best / 2);
    optimal += packing.bytes == best;
  }
  EXPECT_GE(optimal, kInstances * 9 / 10);
}

TEST(Pack, KeepsBlocksThatLiveLongApart) {
  std::mt19937 rng(5);
  std::vector<Block> blocks;
  for (int first = 0; first < 300; ++first) {
    blocks.push_back(block(first, 400, 1 + static_cast<int64_t>(rng() % 5)));
    blocks.push_back(block(first, first + static_cast<int>(rng() % 40), 2));
  }
  expect_valid(blocks, pack(blocks));
}

}  // namespace
}  // namespace ortmodule
