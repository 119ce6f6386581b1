// Packs blocks with known live ranges into one arena.
#pragma once

#include <cstdint>
#include <vector>

namespace ortmodule {

/// Every block starts at a multiple of this many bytes.
inline constexpr int64_t kAlignmentBytes = 64;

inline int64_t align_up(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

/// A block that is live from step `first` to step `last`, both included.
struct Block {
  int first = 0;
  int last = 0;
  int64_t bytes = 0;
};

struct Packing {
  std::vector<int64_t> offsets;  // by block
  int64_t bytes = 0;             // size of the arena
};

/// Greedy: each block goes into the smallest gap that fits, largest blocks first (Pisarchyk and
/// Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, algorithm 2). Also tries
/// them in the order of their first steps; returns the smaller result.
Packing pack(const std::vector<Block>& blocks);

/// Lower bound of the arena's size: the most bytes that are live at one step.
int64_t peak_of(const std::vector<Block>& blocks);

}  // namespace ortmodule
