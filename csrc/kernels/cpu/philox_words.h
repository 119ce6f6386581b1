// Philox words of consecutive logical elements, many counters at a time.
#pragma once

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

}  // namespace ORTM_ISA
}  // namespace ortmodule
