// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), and how
// dropout uses it: element i of the output in row-major order belongs to word i % 4 of the block
// with counter (i / 4, rng) under the run's seed, so no mask is stored and none depends on a
// layout.
#pragma once

#include <cstdint>

#include "kernels/run_seed.h"
#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

struct PhiloxBlock {
  uint32_t word[4];
};

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

ORTM_HD PhiloxBlock philox(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kPhiloxMultiplier0) * c0;
    const uint64_t product1 = static_cast<uint64_t>(kPhiloxMultiplier1) * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

/// Words of logical elements 4 block, 4 block + 1, ... in stream `rng` of a run.
ORTM_HD PhiloxBlock philox_block(uint64_t seed, uint64_t rng, uint64_t block) {
  const PhiloxBlock counter{{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                             static_cast<uint32_t>(rng), static_cast<uint32_t>(rng >> 32)}};
  return philox(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

/// The random word of logical element `index` in stream `rng` of a run.
ORTM_HD uint32_t philox_word(uint64_t seed, uint64_t rng, uint64_t index) {
  return philox_block(seed, rng, index / 4).word[index % 4];
}

/// SplitMix64's finalizer (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// 2014).
ORTM_HD uint64_t mixed_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The key of the run for which a generator of torch's gave `seed` and `offset`; neighbours have
/// unrelated keys.
ORTM_HD uint64_t run_key(uint64_t seed, uint64_t offset) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  return mixed_bits(mixed_bits(seed + kGolden) + offset + kGolden);
}

/// The key to draw with, read where the kernel runs.
ORTM_HD uint64_t seed_of(const RunSeed& seed) { return seed.pointer ? *seed.pointer : seed.value; }

/// An element is kept iff its word, as a 64-bit number, is not below this.
ORTM_HD uint64_t dropout_threshold(double ratio) {
  if (!(ratio > 0)) return 0;
  if (ratio >= 1) return uint64_t{1} << 32;
  return static_cast<uint64_t>(ratio * 4294967296.0);
}

/// What kept elements are multiplied by.
ORTM_HD double dropout_scale(double ratio) { return ratio >= 1 ? 0.0 : 1.0 / (1.0 - ratio); }

}  // namespace ORTM_ISA
}  // namespace ortmodule
