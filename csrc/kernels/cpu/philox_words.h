// Philox words of consecutive logical elements, many counters at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// A call writes at most this many words beyond `count` rounded to whole blocks.
inline constexpr int64_t kPhiloxPadding = 64;

/// Words of blocks first_block, first_block + 1, ...: `count` words in logical order, and up to
/// kPhiloxPadding more after them.
void philox_words(uint64_t seed, uint64_t rng, uint64_t first_block, int64_t count,
                  uint32_t* words);

/// The most words that for_each_philox_chunk gives at a time, a multiple of 4.
inline constexpr int64_t kPhiloxChunk = 512;

/// body(begin, count, words) over [0, total): words of the logical elements first + begin, ...
template <class Body>
inline void for_each_philox_chunk(uint64_t seed, uint64_t rng, uint64_t first, int64_t total,
                                  const Body& body) {
  alignas(64) uint32_t words[kPhiloxChunk + kPhiloxPadding];
  const auto skip = static_cast<int64_t>(first % 4);  // words of the first block before the start
  uint64_t block = first / 4;
  for (int64_t begin = -skip; begin < total; begin += kPhiloxChunk, block += kPhiloxChunk / 4) {
    const int64_t from = std::max<int64_t>(begin, 0);
    const int64_t count = std::min(begin + kPhiloxChunk, total) - from;
    philox_words(seed, rng, block, from - begin + count, words);
    body(from, count, static_cast<const uint32_t*>(words + (from - begin)));
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
