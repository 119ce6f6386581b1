// Exact products by an instruction that saturates. vpmaddubsw sums two products u8 x s8 in 16 bits;
// `kTogether` such sums are added in 16 bits, too, before they are widened. That is exact if 255
// times the positive ones of these weights fit, and 255 times the negative ones. Of others only as
// much stays in the panel; the rest goes to a list, whose products are added in 32 bits. Normally
// distributed weights with one scale have one rest for 400 weights, or for 14000 if only pairs are
// summed.
#pragma once

#include "kernels/cpu/integer_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
/// Packed weights may have such a list.
#define ORTM_INTEGER_RESTS 1

template <int64_t kSums>
struct SaturatingInstruction {
  using Lanes = IntLanes;
  static constexpr int64_t kTogether = kSums;
  static Lanes multiply_add(const Lanes (&a)[kSums], const Lanes (&b)[kSums], Lanes sum) {
#if defined(__AVX512BW__)
    __m512i pairs = _mm512_maddubs_epi16(__m512i(a[0]), __m512i(b[0]));
    if constexpr (kSums == 2)
      pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(__m512i(a[1]), __m512i(b[1])));
    return sum + Lanes(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#else
    __m256i pairs = _mm256_maddubs_epi16(__m256i(a[0]), __m256i(b[0]));
    if constexpr (kSums == 2)
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(__m256i(a[1]), __m256i(b[1])));
    return sum + Lanes(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
  }
};
/// One or two sums of pairs in 16 bits.
using PairsDot = QuadDot<SaturatingInstruction<1>>;
using FoursDot = QuadDot<SaturatingInstruction<2>>;
#endif

/// What is not in the panel of a weight: its place in a piece of the inner dimension, its column.
struct WeightRest {
  uint16_t place;
  uint8_t column;
  int8_t value;
};

/// Bytes of a group of a panel, four places.
inline constexpr int64_t kQuadBytes = kIntegerPanel * 4;
/// The sum of weights of one sign whose products fit 16 bits.
inline constexpr int kSafeWeights = 32767 / 255;

/// each(which, rest) for what the weights at 0 and 1 of each of `kTogether` groups have too much:
/// of the largest ones first. The groups are `group_bytes` apart.
template <int64_t kTogether, class Each>
void for_each_rest_of(const int8_t* weights, int64_t group_bytes, const Each& each) {
  for (int sign : {1, -1}) {
    int left[kTogether * 2], excess = -kSafeWeights;
    for (int64_t i = 0; i < kTogether * 2; ++i) {
      left[i] = std::max(sign * weights[i / 2 * group_bytes + i % 2], 0);
      excess += left[i];
    }
    while (excess > 0) {
      int* most = std::max_element(left, left + kTogether * 2);
      const int rest = std::min(*most, excess);
      each(most - left, sign * rest);
      excess -= rest;
      *most = 0;
    }
  }
}

/// Whether any of the weights of `kTogether` groups have too much.
template <int64_t kTogether>
bool have_rests(const int8_t* groups) {
  int any = 0;
  for (int64_t i = 0; i < kQuadBytes; i += 2) {
    int positive = 0, negative = 0;
    for (int64_t j = i; j < kTogether * kQuadBytes; j += kQuadBytes) {
      const int sum = std::max<int>(groups[j], 0) + std::max<int>(groups[j + 1], 0);
      positive += sum;
      negative += sum - groups[j] - groups[j + 1];
    }
    any |= std::max(positive, negative) > kSafeWeights;
  }
  return any != 0;
}

/// each(place, column, weight, rest) for a panel's places [begin, end), counted from `begin`.
template <int64_t kTogether, class Each>
void for_each_rest(int8_t* panel, int64_t begin, int64_t end, const Each& each) {
  for (int64_t k = begin; k < end; k += 4 * kTogether) {
    int8_t* groups = panel + k * kIntegerPanel;
    if (!have_rests<kTogether>(groups)) continue;
    for (int64_t i = 0; i < kQuadBytes; i += 2)
      for_each_rest_of<kTogether>(groups + i, kQuadBytes, [&](int64_t which, int rest) {
        const int64_t group = which / 2, place = i % 4 + which % 2;
        each(k - begin + group * 4 + place, i / 4, groups[group * kQuadBytes + i + which % 2],
             rest);
      });
  }
}

/// The list of a packed matrix. In memory: kTogether, where the rests of each piece of each panel
/// begin, and the rests.
class WeightRests {
 public:
  /// `packed`: panels and sums, behind which the list is.
  WeightRests(const int8_t* packed, int64_t inner, int64_t columns, int64_t piece)
      : piece_(piece), pieces_(ceil_div(inner, piece)) {
    numbers_ = reinterpret_cast<const int32_t*>(packed + integer_sums_end(inner, columns));
    rests_ = reinterpret_cast<const WeightRest*>(numbers_ + 2 +
                                                 padded_columns(columns) / kIntegerPanel * pieces_);
  }

  /// 0: there is no list, and the panels are those of IntegerDot.
  int64_t together() const { return numbers_[0]; }

  /// Adds their products to sums of rows of the left factor, which begins at place `first`.
  template <class Dot>
  void add(const typename IntegerTile<Dot>::Rows& left, int64_t, int64_t rows, int64_t first,
           int64_t column, int64_t columns, int32_t* sums, int64_t stride) const {
    const int32_t* begins = numbers_ + 1 + column / kIntegerPanel * pieces_ + first / piece_;
    for (int64_t j = 0; j < columns; j += kIntegerPanel, begins += pieces_)
      for (int32_t r = begins[0]; r < begins[1]; ++r) {
        const WeightRest& rest = rests_[r];
        for (int64_t i = 0; i < rows; ++i)
          sums[i * stride + j + rest.column] += left.element(i, rest.place) * rest.value;
      }
  }

 private:
  int64_t piece_, pieces_;
  const int32_t* numbers_;
  const WeightRest* rests_;
};

/// Moves rests from panels with groups of four to the list. False: they do not fit, and the panels
/// are as they were. The list's room is also about what pays: where a weight in 200 has a rest, the
/// list takes as long as the better instructions save.
template <int64_t kTogether>
bool take_rests(const KernelContext& context, int8_t* packed, int64_t inner, int64_t columns,
                int64_t piece) {
  const int64_t padded = padded_inner(inner), panels = padded_columns(columns) / kIntegerPanel;
  const int64_t pieces = ceil_div(inner, piece), runs = panels * pieces;
  const int64_t room = integer_rest_bytes(inner, columns) / 4 - 2 - runs;
  auto* numbers = reinterpret_cast<int32_t*>(packed + integer_sums_end(inner, columns));
  numbers[0] = 0;
  if (room < 0) return false;
  int32_t* begins = numbers + 1;
  const auto for_each_run = [&](const auto& body) {
    parallel_ranges(context, runs, grain_for(piece * kIntegerPanel),
                    [&](int64_t first, int64_t last) {
                      for (int64_t run = first; run < last; ++run) {
                        const int64_t begin = run % pieces * piece;
                        body(run, packed + run / pieces * padded * kIntegerPanel, begin,
                             std::min(begin + piece, padded));
                      }
                    });
  };
  for_each_run([&](int64_t run, int8_t* panel, int64_t begin, int64_t end) {
    int32_t count = 0;
    for_each_rest<kTogether>(panel, begin, end, [&](auto&&...) { ++count; });
    begins[run + 1] = count;
  });
  begins[0] = 0;
  for (int64_t run = 0; run < runs; ++run) begins[run + 1] += begins[run];
  if (begins[runs] > room) return false;
  auto* rests = reinterpret_cast<WeightRest*>(begins + runs + 1);
  for_each_run([&](int64_t run, int8_t* panel, int64_t begin, int64_t end) {
    if (begins[run] == begins[run + 1]) return;
    WeightRest* to = rests + begins[run];
    for_each_rest<kTogether>(panel, begin, end,
                             [&](int64_t place, int64_t column, int8_t& weight, int rest) {
                               weight = static_cast<int8_t>(weight - rest);
                               *to++ = {static_cast<uint16_t>(place), static_cast<uint8_t>(column),
                                        static_cast<int8_t>(rest)};
                             });
  });
  numbers[0] = static_cast<int32_t>(kTogether);
  return true;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
