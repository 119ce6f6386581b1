// Philox4x32-10 over vectors of 64-bit lanes. A lane holds a 32-bit state word in its low half; the
// high half may hold anything, since the widening multiply reads only low halves. So a round costs
// two multiplies, two shifts and four exclusive-ors for as many counters as there are lanes.
#include "kernels/cpu/philox_words.h"

#include "kernels/philox.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// A vector of 64-bit lanes with the few operations that Philox needs. (The maskz forms take every
// lane; the plain ones make GCC 12 warn of its own headers.)
#if defined(__AVX512F__)
struct Lanes {
  static constexpr int kCount = 8;
  __m512i v;
  static Lanes all(uint64_t x) { return {_mm512_set1_epi64(static_cast<int64_t>(x))}; }
  static Lanes iota() { return {_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0)}; }
  Lanes operator+(Lanes o) const { return {_mm512_add_epi64(v, o.v)}; }
  Lanes operator^(Lanes o) const { return {_mm512_xor_si512(v, o.v)}; }
  Lanes high() const { return {_mm512_maskz_srli_epi64(0xff, v, 32)}; }
  static Lanes multiply_low_halves(Lanes a, Lanes b) {
    return {_mm512_maskz_mul_epu32(0xff, a.v, b.v)};
  }
  // Low half from a, high half from the low half of b.
  static Lanes join(Lanes a, Lanes b) {
    return {_mm512_mask_blend_epi32(0xAAAA, a.v, _mm512_maskz_slli_epi64(0xff, b.v, 32))};
  }
  // a0 b0 a1 b1 ...
  static void store_interleaved(uint32_t* to, Lanes a, Lanes b) {
    const __m512i first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
    const __m512i second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(a.v, first, b.v));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi64(a.v, second, b.v));
  }
};
#elif defined(__AVX2__)
struct Lanes {
  static constexpr int kCount = 4;
  __m256i v;
  static Lanes all(uint64_t x) { return {_mm256_set1_epi64x(static_cast<int64_t>(x))}; }
  static Lanes iota() { return {_mm256_set_epi64x(3, 2, 1, 0)}; }
  Lanes operator+(Lanes o) const { return {_mm256_add_epi64(v, o.v)}; }
  Lanes operator^(Lanes o) const { return {_mm256_xor_si256(v, o.v)}; }
  Lanes high() const { return {_mm256_srli_epi64(v, 32)}; }
  static Lanes multiply_low_halves(Lanes a, Lanes b) { return {_mm256_mul_epu32(a.v, b.v)}; }
  static Lanes join(Lanes a, Lanes b) {
    return {_mm256_blend_epi32(a.v, _mm256_slli_epi64(b.v, 32), 0xAA)};
  }
  static void store_interleaved(uint32_t* to, Lanes a, Lanes b) {
    const __m256i even = _mm256_unpacklo_epi64(a.v, b.v);
    const __m256i odd = _mm256_unpackhi_epi64(a.v, b.v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8),
                        _mm256_permute2x128_si256(even, odd, 0x31));
  }
};
#elif defined(__SSE2__)
struct Lanes {
  static constexpr int kCount = 2;
  __m128i v;
  static Lanes all(uint64_t x) { return {_mm_set1_epi64x(static_cast<int64_t>(x))}; }
  static Lanes iota() { return {_mm_set_epi64x(1, 0)}; }
  Lanes operator+(Lanes o) const { return {_mm_add_epi64(v, o.v)}; }
  Lanes operator^(Lanes o) const { return {_mm_xor_si128(v, o.v)}; }
  Lanes high() const { return {_mm_srli_epi64(v, 32)}; }
  static Lanes multiply_low_halves(Lanes a, Lanes b) { return {_mm_mul_epu32(a.v, b.v)}; }
  static Lanes join(Lanes a, Lanes b) {
    const __m128i low = _mm_and_si128(a.v, _mm_set1_epi64x(0xffffffff));
    return {_mm_or_si128(low, _mm_slli_epi64(b.v, 32))};
  }
  static void store_interleaved(uint32_t* to, Lanes a, Lanes b) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi64(a.v, b.v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4), _mm_unpackhi_epi64(a.v, b.v));
  }
};
#else
struct Lanes {
  static constexpr int kCount = 1;
  uint64_t v;
  static Lanes all(uint64_t x) { return {x}; }
  static Lanes iota() { return {0}; }
  Lanes operator+(Lanes o) const { return {v + o.v}; }
  Lanes operator^(Lanes o) const { return {v ^ o.v}; }
  Lanes high() const { return {v >> 32}; }
  static Lanes multiply_low_halves(Lanes a, Lanes b) {
    return {uint64_t{static_cast<uint32_t>(a.v)} * static_cast<uint32_t>(b.v)};
  }
  static Lanes join(Lanes a, Lanes b) { return {static_cast<uint32_t>(a.v) | (b.v << 32)}; }
  static void store_interleaved(uint32_t* to, Lanes a, Lanes b) {
    to[0] = static_cast<uint32_t>(a.v);
    to[1] = static_cast<uint32_t>(a.v >> 32);
    to[2] = static_cast<uint32_t>(b.v);
    to[3] = static_cast<uint32_t>(b.v >> 32);
  }
};
#endif

// Independent vectors in flight hide the latency of the multiply.
constexpr int kUnroll = 2;
static_assert(kUnroll * Lanes::kCount * 4 <= kPhiloxPadding);

struct State {
  Lanes c0, c1, c2, c3;
};

}  // namespace

void philox_words(uint64_t seed, uint64_t rng, uint64_t first_block, int64_t count,
                  uint32_t* words) {
  const Lanes multiplier0 = Lanes::all(kPhiloxMultiplier0);
  const Lanes multiplier1 = Lanes::all(kPhiloxMultiplier1);
  uint64_t block = first_block;
  for (int64_t done = 0; done < count; done += kUnroll * Lanes::kCount * 4) {
    State s[kUnroll];
    for (State& state : s) {
      state.c0 = Lanes::all(block) + Lanes::iota();
      state.c1 = state.c0.high();
      state.c2 = Lanes::all(rng);
      state.c3 = Lanes::all(rng >> 32);
      block += Lanes::kCount;
    }
    uint32_t key0 = static_cast<uint32_t>(seed);
    uint32_t key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const Lanes k0 = Lanes::all(key0), k1 = Lanes::all(key1);
      for (State& state : s) {
        const Lanes product0 = Lanes::multiply_low_halves(multiplier0, state.c0);
        const Lanes product1 = Lanes::multiply_low_halves(multiplier1, state.c2);
        state.c0 = product1.high() ^ state.c1 ^ k0;
        state.c1 = product1;
        state.c2 = product0.high() ^ state.c3 ^ k1;
        state.c3 = product0;
      }
      key0 += kPhiloxWeyl0;
      key1 += kPhiloxWeyl1;
    }
    uint32_t* to = words + done;
    for (const State& state : s) {
      Lanes::store_interleaved(to, Lanes::join(state.c0, state.c1),
                               Lanes::join(state.c2, state.c3));
      to += Lanes::kCount * 4;
    }
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
