// Integer convolutions of single channels in a channels-last image: sums of an output pixel for
// many channels at once, two places of the window at a time (four: conv_integer_quads.h).
#pragma once

#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Sums of w x for the channels of a pixel. w has its zero point taken off; x is xor `flip`, as
/// unsigned ones.
class ChannelSums {
 public:
  /// Channels whose sums are written at once.
  static constexpr int64_t kMostChannels = 16;

  /// Bytes that the weights take as they are read.
  static int64_t weight_bytes(int64_t channels, int64_t places) {
    return channels * ceil_div(places, 2) * 4;
  }

  /// `weights`: [channels, places], of int8 or int32. `memory` has weight_bytes().
  template <class W>
  ChannelSums(const W* weights, int64_t channels, int64_t places, uint8_t flip, std::byte* memory)
      : channels_(channels), flip_(flip), pairs_(reinterpret_cast<int16_t*>(memory)) {
    block_ = channels >= kMostChannels ? kMostChannels : std::min<int64_t>(channels, 8);
    groups_ = ceil_div(places, 2);
    places_ = groups_ * 2;
    std::memset(memory, 0, static_cast<size_t>(weight_bytes(channels, places)));
    lay_out_pairs(weights, places);
  }

  /// Places of windows, some of which have no weight.
  int64_t places() const { return places_; }
  int64_t blocks() const { return ceil_div(channels_, block_); }
  /// The channels of a block are [first_of(block), first_of(block) + width()); the last one may
  /// begin within the one before it.
  int64_t first_of(int64_t block) const { return std::min(block * block_, channels_ - block_); }
  int64_t width() const { return block_; }

  /// The sums of a block. `pixels`: for each of places() where its channels begin.
  void sum(int64_t block, const uint8_t* const* pixels, int32_t* sums) const {
    const int64_t channel = first_of(block);
#if defined(__AVX2__)
    if (block_ == kMostChannels) return sum_pairs(pixels, channel, sums);
    if (block_ == 8) return sum_eight(pixels, channel, sums);
#endif
    for (int64_t c = channel; c < channel + block_; ++c) {
      int32_t sum = 0;
      for (int64_t place = 0; place < places_; ++place)
        sum += pairs_[(place / 2 * channels_ + c) * 2 + place % 2] * (pixels[place][c] ^ flip_);
      *sums++ = sum;
    }
  }

 private:
  template <class W>
  void lay_out_pairs(const W* weights, int64_t places) {
    for (int64_t c = 0; c < channels_; ++c, weights += places)
      for (int64_t place = 0; place < places; place += 2) {
        int16_t* to = pairs_ + (place / 2 * channels_ + c) * 2;
        to[0] = static_cast<int16_t>(weights[place]);
        if (place + 1 < places) to[1] = static_cast<int16_t>(weights[place + 1]);
      }
  }

#if defined(__AVX2__)
  void sum_pairs(const uint8_t* const* pixels, int64_t channel, int32_t* sums) const {
    const int16_t* weights = pairs_ + channel * 2;
    const __m128i flips = _mm_set1_epi8(static_cast<char>(flip_));
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int64_t group = 0; group < groups_; ++group, pixels += 2, weights += channels_ * 2) {
      const auto load = [&](int i) {
        const auto* at = reinterpret_cast<const __m128i*>(pixels[i] + channel);
        return _mm_xor_si128(_mm_loadu_si128(at), flips);
      };
      const __m128i a = load(0), b = load(1);
      const auto products = [&](__m128i both, const int16_t* pairs) {
        return _mm256_madd_epi16(_mm256_cvtepu8_epi16(both),
                                 _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)));
      };
      low = _mm256_add_epi32(low, products(_mm_unpacklo_epi8(a, b), weights));
      high = _mm256_add_epi32(high, products(_mm_unpackhi_epi8(a, b), weights + 16));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + 8), high);
  }

  void sum_eight(const uint8_t* const* pixels, int64_t channel, int32_t* sums) const {
    const int16_t* weights = pairs_ + channel * 2;
    const __m128i flips = _mm_set1_epi8(static_cast<char>(flip_));
    __m256i total = _mm256_setzero_si256();
    for (int64_t group = 0; group < groups_; ++group, pixels += 2, weights += channels_ * 2) {
      const auto load = [&](int i) {
        return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixels[i] + channel));
      };
      const __m128i both = _mm_xor_si128(_mm_unpacklo_epi8(load(0), load(1)), flips);
      const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
      total = _mm256_add_epi32(total, _mm256_madd_epi16(_mm256_cvtepu8_epi16(both), pairs));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), total);
  }
#endif

  int64_t channels_, block_ = 1, groups_ = 0, places_ = 0;
  uint8_t flip_;
  int16_t* pairs_;  // [groups, channels, 2]
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
