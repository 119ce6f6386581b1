// Memory for small blocks that stay: where they lie, and what goes back to the system.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/page_region.h"

namespace ortmodule::testing {
namespace {

const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));

std::byte* take(PageRegion& region, size_t bytes, size_t alignment = 8) {
  return static_cast<std::byte*>(region.allocate(bytes, alignment));
}

// Of the whole pages of a block.
size_t resident_pages(std::byte* block, size_t bytes) {
  const auto begin = (reinterpret_cast<uintptr_t>(block) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(block) + bytes) / kPage * kPage;
  std::vector<unsigned char> pages((end - begin) / kPage);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()), 0);
  return static_cast<size_t>(std::ranges::count_if(pages, [](auto page) { return page & 1; }));
}

TEST(PageRegion, FillsItsMemoryFromFrontToBack) {
  PageRegion region;
  std::byte* const first = take(region, 40);
  EXPECT_EQ(take(region, 1), first + 48) << "blocks are multiples of 16 bytes";
  EXPECT_EQ(take(region, 100), first + 64);
  std::byte* const aligned = take(region, 8, 256);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 256, 0U);
  EXPECT_EQ(take(region, 16), first + 176) << "what alignment leaves free is taken, too";
}

TEST(PageRegion, FreeNeighboursBecomeOneBlock) {
  for (const auto& order : std::vector<std::vector<size_t>>{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}}) {
    PageRegion region;
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(take(region, 64));
    for (const size_t i : order) region.deallocate(blocks[i], 64);
    EXPECT_EQ(take(region, 192), blocks[0]);
    EXPECT_EQ(take(region, 16), blocks[3] + 64);
  }
}

TEST(PageRegion, ReturnsWholeFreePages) {
  PageRegion region;
  const size_t bytes = 20 * kPage;
  std::byte* const before = take(region, 100);
  std::byte* const block = take(region, bytes);
  std::byte* const behind = take(region, 100);
  std::memset(before, 1, 100);
  std::memset(block, 1, bytes);
  std::memset(behind, 1, 100);
  EXPECT_GE(resident_pages(block, bytes), 19U);
  region.deallocate(block, bytes);
  EXPECT_EQ(resident_pages(block, bytes), 0U);
  EXPECT_EQ(before[99], std::byte{1});
  EXPECT_EQ(behind[0], std::byte{1});
}

TEST(PageRegion, ReturnsPagesThatEmptyBlockByBlock) {
  PageRegion region;
  std::vector<std::byte*> blocks;
  for (size_t i = 0; i < 16 * kPage / 512; ++i) {
    blocks.push_back(take(region, 512));
    std::memset(blocks.back(), 1, 512);
  }
  for (const size_t parity : {0, 1})
    for (size_t i = parity; i + 1 < blocks.size(); i += 2) region.deallocate(blocks[i], 512);
  EXPECT_LE(resident_pages(blocks.front() + 512, 15 * kPage), 1U);
  EXPECT_EQ(blocks.back()[511], std::byte{1});
}

TEST(PageRegion, KeepsOneFreeMapping) {
  PageRegion region;
  std::byte* const first = take(region, 100);
  const size_t one = region.mapped_bytes();
  std::byte* const large = take(region, 2 * one);
  EXPECT_GE(region.mapped_bytes(), 3 * one);
  region.deallocate(large, 2 * one);
  EXPECT_EQ(region.mapped_bytes(), one);
  region.deallocate(first, 100);
  EXPECT_EQ(region.mapped_bytes(), one);
  EXPECT_EQ(take(region, 100), first);
}

TEST(PageRegion, BlocksKeepTheirContent) {
  struct Block {
    std::byte* data;
    size_t bytes, alignment;
    unsigned char mark;
  };
  PageRegion region;
  std::mt19937 draw(0);
  std::vector<Block> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() > 100 || (!blocks.empty() && draw() % 3 == 0)) {
      std::swap(blocks[draw() % blocks.size()], blocks.back());
      const Block& gone = blocks.back();
      EXPECT_TRUE(std::all_of(gone.data, gone.data + gone.bytes,
                              [&](std::byte byte) { return byte == std::byte{gone.mark}; }));
      region.deallocate(gone.data, gone.bytes, gone.alignment);
      blocks.pop_back();
      continue;
    }
    const size_t bytes = 1 + draw() % (draw() % 20 == 0 ? 300'000 : 600);
    const size_t alignment = size_t{1} << draw() % 8;
    Block& made = blocks.emplace_back(
        Block{take(region, bytes, alignment), bytes, alignment, static_cast<unsigned char>(i)});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(made.data) % alignment, 0U);
    std::memset(made.data, made.mark, bytes);
  }
}

}  // namespace
}  // namespace ortmodule::testing
