// Dropout of the CPU's pointwise group: many random words at a time.
#include "kernels/pointwise_random.h"

#include "kernels/cpu/philox_words.h"
#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using namespace formulas;

constexpr int64_t kChunk = 512;  // words at a time, a multiple of 4

template <class T>
void apply(T* out, const T* x, const uint32_t* words, int64_t count, uint64_t threshold, T scale) {
  if (threshold >> 32) {  // no 32-bit word reaches it
    std::fill(out, out + count, T(0));
    return;
  }
  const uint32_t least = static_cast<uint32_t>(threshold);
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const T scaled = x[i] * scale;
    out[i] = words[i] >= least ? scaled : T(0);
  }
}

template <class F, class T, class>
void dropout(const MicroArgs& m) {
  const F f(*m.params);
  const uint64_t threshold = f.threshold, rng = f.rng;
  const T scale = static_cast<T>(f.scale);
  const T* x = static_cast<const T*>(m.in[0]);
  T* out = static_cast<T*>(m.out);
  const RandomState& random = *m.random;
  alignas(64) uint32_t words[kChunk + kPhiloxPadding];
  if (random.indices) {  // a layout whose order in memory is not the logical one
    for (int64_t begin = 0; begin < m.count; begin += kChunk) {
      const int64_t count = std::min(kChunk, m.count - begin);
      for (int64_t i = 0; i < count; ++i)
        words[i] = philox_word(random.seed, rng, static_cast<uint64_t>(random.indices[begin + i]));
      apply(out + begin, x + begin, words, count, threshold, scale);
    }
    return;
  }
  const uint64_t first = static_cast<uint64_t>(random.first_index);
  const int64_t skip = static_cast<int64_t>(first % 4);  // words of the first block before the tile
  uint64_t block = first / 4;
  for (int64_t begin = -skip; begin < m.count; begin += kChunk, block += kChunk / 4) {
    const int64_t from = std::max<int64_t>(begin, 0);
    const int64_t count = std::min(begin + kChunk, m.count) - from;
    philox_words(random.seed, rng, block, from - begin + count, words);
    apply(out + from, x + from, words + (from - begin), count, threshold, scale);
  }
}

constexpr MicroOp kOps[] = {ORTM_RANDOM_OPS(ORTM_MICRO_OP)};

}  // namespace

std::span<const MicroOp> random_ops() { return kOps; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
