// Random ops of the CPU's pointwise group: many words at a time.
#include "kernels/pointwise_random.h"

#include "kernels/cpu/philox_words.h"
#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using namespace formulas;

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

/// body(begin, count, words) over the elements of a tile: `per_element` words of each.
template <class Body>
void for_each_chunk(const MicroArgs& m, uint64_t rng, int64_t per_element, const Body& body) {
  const RandomState& random = *m.random;
  if (!random.indices) {
    const uint64_t first = static_cast<uint64_t>(random.first_index * per_element);
    for_each_philox_chunk(random.seed, rng, first, m.count * per_element,
                          [&](int64_t begin, int64_t count, const uint32_t* words) {
                            body(begin / per_element, count / per_element, words);
                          });
    return;
  }
  // A layout whose order in memory is not the logical one.
  uint32_t words[kPhiloxChunk];
  for (int64_t begin = 0; begin < m.count; begin += kPhiloxChunk / per_element) {
    const int64_t count = std::min(kPhiloxChunk / per_element, m.count - begin);
    for (int64_t i = 0; i < count * per_element; ++i) {
      const int64_t index = random.indices[begin + i / per_element] * per_element;
      words[i] = philox_word(random.seed, rng, static_cast<uint64_t>(index + i % per_element));
    }
    body(begin, count, static_cast<const uint32_t*>(words));
  }
}

template <class F, class T, class>
void dropout(const MicroArgs& m) {
  const F f(*m.params);
  const T* x = static_cast<const T*>(m.in[0]);
  T* out = static_cast<T*>(m.out);
  for_each_chunk(m, f.rng, 1, [&](int64_t begin, int64_t count, const uint32_t* words) {
    apply(out + begin, x + begin, words, count, f.threshold, static_cast<T>(f.scale));
  });
}

template <class F, class T, class>
void uniform(const MicroArgs& m) {
  const F f(*m.params);
  T* out = static_cast<T*>(m.out);
  constexpr int kEach = F::template kWords<T>;
  for_each_chunk(m, f.rng, kEach, [&](int64_t begin, int64_t count, const uint32_t* words) {
    T* to = out + begin;
    if constexpr (kEach == 1) {
      const uint32_t shift = f.shift;
      const float step = static_cast<float>(f.step);
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i)
        to[i] = static_cast<float>(static_cast<int32_t>(words[i] >> shift)) * step;
    } else {
      ORTM_SIMD
      for (int64_t i = 0; i < count; ++i) to[i] = f(words[2 * i], words[2 * i + 1]);
    }
  });
}

constexpr MicroOp kOps[] = {ORTM_RANDOM_OPS(ORTM_MICRO_OP)};

}  // namespace

std::span<const MicroOp> random_ops() { return kOps; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
