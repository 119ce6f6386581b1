// Offsets for blocks with lifetimes in one arena.
#pragma once

#include <cstdint>
#include <vector>

namespace ortmodule {

/// Every block starts at a multiple of this many bytes.
inline constexpr int64_t kAlignmentBytes = 64;

inline int64_t align_up(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

/// A block that lives from step `first` to step `last`, both included.
struct Block {
  int first = 0;
  int last = 0;
  int64_t bytes = 0;
};

struct Packing {
  std::vector<int64_t> offsets;  // by block
  int64_t bytes = 0;             // size of the arena
};

/// Greedy by size, each block into the smallest gap that fits (Pisarchyk and Lee, "Efficient Memory
/// Management for Deep Neural Net Inference", 2020, algorithm 2), and by order of birth; the
/// smaller result of the two.
Packing pack(const std::vector<Block>& blocks);

/// Lower bound: the largest sum of bytes alive at one step.
int64_t peak_of(const std::vector<Block>& blocks);

}  // namespace ortmodule
