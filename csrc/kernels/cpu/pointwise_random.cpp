// Dropout and its gradient, one function: y[i] = keep(i) ? x[i] / (1 - ratio) : 0, with keep(i)
// drawn by Philox from the element's logical index (kernels/philox.h), so that no mask is stored.
#include "kernels/cpu/philox_words.h"
#include "kernels/cpu/pointwise_op.h"
#include "kernels/philox.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kChunk = 512;  // words at a time, a multiple of 4

// params: word[0] threshold, word[1] stream, number[0] scale.
void configure_dropout(const NodeFacts& node, MicroParams& p) {
  const double ratio = node.attrs.number("ratio");
  p.number[0] = dropout_scale(ratio);
  p.word[0] = dropout_threshold(ratio);
  p.word[1] = static_cast<uint64_t>(node.attrs.integer("rng"));
}

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

template <class T>
void dropout(const MicroArgs& m) {
  const uint64_t threshold = m.params->word[0], rng = m.params->word[1];
  const T scale = static_cast<T>(m.params->number[0]);
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

constexpr MicroOp kRandom[] = {
    {"Dropout", Compute::F32, Compute::F32, &dropout<float>, &configure_dropout, true},
    {"Dropout", Compute::F64, Compute::F64, &dropout<double>, &configure_dropout, true},
    {"DropoutGrad", Compute::F32, Compute::F32, &dropout<float>, &configure_dropout, true},
    {"DropoutGrad", Compute::F64, Compute::F64, &dropout<double>, &configure_dropout, true},
};

}  // namespace

std::span<const MicroOp> random_ops() { return kRandom; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
