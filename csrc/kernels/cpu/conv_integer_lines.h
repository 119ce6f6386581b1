// Integer convolutions of single channels: outputs that are neighbours in a line are sums of the
// lines that their windows see, two places of the window at once, or four with AVX-512 VNNI.
#pragma once

#include "kernels/cpu/conv_integer_image.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Sums of w (x - zx) for windows of one channel, whose weights are w with their zero point taken
/// off. Pixels of the grouped image are unsigned.
class ChannelWindows {
 public:
  /// So many sums may be written behind those that are asked for.
  static constexpr int64_t kSumsBehind = 16;
  /// Bytes that may be read behind the image.
#if defined(__AVX512VNNI__)
  static constexpr int64_t kBytesBehind = 64;
#else
  static constexpr int64_t kBytesBehind = 16;
#endif

  ChannelWindows(const GroupedImage& image, const PatchShape& shape)
      : image_(image), shape_(shape), stride_(shape.last().stride) {
#if defined(__AVX512VNNI__)
    for (int64_t i = 0; i < 16; ++i)
      words_[i] = static_cast<int32_t>(std::min<int64_t>(i / 4 * stride_ + i % 4, 15));
    for (int64_t i = 0; i < 64; ++i) bytes_[i] = static_cast<int8_t>(i % 16 / 4 * stride_ + i % 4);
#endif
  }

  /// Takes the weights of an output and the zero point of x; `places` <= kRowChunk.
  void take_weights(const int32_t* weights, int32_t x_zero) {
    pairs_ = ceil_div(shape_.places, 2);
    uint32_t sum = 0;
    for (int64_t k = 0; k < 2 * pairs_; ++k) {
      const bool exists = k < shape_.places;
      places_[k] = image_.place(exists ? k : k - 1);
      weights_[k] = static_cast<int16_t>(exists ? weights[k] : 0);
      if (exists) sum += static_cast<uint32_t>(weights[k]);
    }
    first_ = static_cast<int32_t>(0u - static_cast<uint32_t>(x_zero) * sum);
#if defined(__AVX512VNNI__)
    take_quads(weights);
#endif
  }

  /// Sums of output pixels [begin, begin + count) of the channel at `pixels`.
  void sum(const uint8_t* pixels, int64_t begin, int64_t count, int32_t* sums) const {
    const int64_t out = shape_.last().out;
    int64_t line = begin / out, first = begin % out;
    for (int64_t at = 0; at < count; ++line, first = 0) {
      const uint8_t* from = pixels + image_.step(line) + first * stride_;
      const int64_t width = std::min(out - first, count - at);
      sum_line(from, width, sums + at);
      at += width;
    }
  }

 private:
  static constexpr int64_t kStep = 8;  // outputs

  void sum_line(const uint8_t* from, int64_t width, int32_t* sums) const {
    int64_t i = 0;
#if defined(__AVX512VNNI__)
    if (quads_ > 0) {
      for (; i < width; i += 2 * kStep) sum_quads(from + i * stride_, sums + i);
      return;
    }
#endif
#if defined(__AVX2__)
    for (; stride_ == 1 && i + 2 * kStep <= width; i += 2 * kStep)
      sum_two_steps(from + i, sums + i);
#endif
    for (; i < width; i += kStep) sum_step(from + i * stride_, width - i, sums + i);
  }

#if defined(__AVX512VNNI__)
  /// Groups places that lie within four pixels; there are none if a weight has no 8 bits, or if
  /// four outputs and their pixels do not lie within 16 bytes.
  void take_quads(const int32_t* weights) {
    quads_ = 0;
    if (stride_ > 4) return;
    int64_t quads = 0;
    for (int64_t k = 0; k < shape_.places; ++k) {
      if (weights[k] != static_cast<int8_t>(weights[k])) return;
      const int64_t place = image_.place(k);
      if (quads == 0 || place < quad_places_[quads - 1] || place > quad_places_[quads - 1] + 3) {
        quad_places_[quads] = place;
        std::fill_n(quad_weights_[quads++], 4, int8_t{0});
      }
      const int64_t at = place - quad_places_[quads - 1];
      quad_weights_[quads - 1][at] = static_cast<int8_t>(weights[k]);
    }
    quads_ = quads;
  }

  void sum_quads(const uint8_t* from, int32_t* to) const {
    const __m512i words = _mm512_load_si512(words_), bytes = _mm512_load_si512(bytes_);
    __m512i sums = _mm512_set1_epi32(first_);
    for (int64_t quad = 0; quad < quads_; ++quad) {
      int32_t weights;
      std::memcpy(&weights, quad_weights_[quad], sizeof(weights));
      const __m512i near = _mm512_loadu_si512(from + quad_places_[quad]);
      const __m512i pixels =
          _mm512_shuffle_epi8(_mm512_maskz_permutexvar_epi32(0xffff, words, near), bytes);
      sums = _mm512_dpbusd_epi32(sums, pixels, _mm512_set1_epi32(weights));
    }
    _mm512_storeu_si512(to, sums);
  }
#endif

#if defined(__AVX2__)
  /// The pixels of kStep outputs, in the low half.
  __m128i load(const uint8_t* from, int64_t count) const {
    const auto* at = reinterpret_cast<const __m128i*>(from);
    if (stride_ == 1) return _mm_loadl_epi64(at);
    if (stride_ == 2) {
      const __m128i even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, -1, -1, -1, -1, -1, -1, -1, -1);
      return _mm_shuffle_epi8(_mm_loadu_si128(at), even);
    }
    alignas(16) uint8_t each[16] = {};
    for (int64_t i = 0; i < std::min(count, kStep); ++i) each[i] = from[i * stride_];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(each));
  }

  __m256i weights_of(int64_t pair) const {
    int32_t weights;
    std::memcpy(&weights, weights_ + 2 * pair, sizeof(weights));
    return _mm256_set1_epi32(weights);
  }

  /// The sums of pairs of pixels times their weights.
  static __m256i products(__m128i pixels, __m256i weights) {
    return _mm256_madd_epi16(_mm256_cvtepu8_epi16(pixels), weights);
  }

  void sum_step(const uint8_t* from, int64_t count, int32_t* to) const {
    __m256i sums = _mm256_set1_epi32(first_);
    for (int64_t pair = 0; pair < pairs_; ++pair) {
      const __m128i both = _mm_unpacklo_epi8(load(from + places_[2 * pair], count),
                                             load(from + places_[2 * pair + 1], count));
      sums = _mm256_add_epi32(sums, products(both, weights_of(pair)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums);
  }

  void sum_two_steps(const uint8_t* from, int32_t* to) const {
    __m256i low = _mm256_set1_epi32(first_), high = low;
    for (int64_t pair = 0; pair < pairs_; ++pair) {
      const auto* first = reinterpret_cast<const __m128i*>(from + places_[2 * pair]);
      const auto* second = reinterpret_cast<const __m128i*>(from + places_[2 * pair + 1]);
      const __m128i a = _mm_loadu_si128(first), b = _mm_loadu_si128(second);
      const __m256i weights = weights_of(pair);
      low = _mm256_add_epi32(low, products(_mm_unpacklo_epi8(a, b), weights));
      high = _mm256_add_epi32(high, products(_mm_unpackhi_epi8(a, b), weights));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kStep), high);
  }
#else
  void sum_step(const uint8_t* from, int64_t count, int32_t* to) const {
    for (int64_t i = 0; i < std::min(count, kStep); ++i) {
      int32_t sum = first_;
      for (int64_t k = 0; k < 2 * pairs_; ++k) sum += weights_[k] * from[places_[k] + i * stride_];
      to[i] = sum;
    }
  }
#endif

  const GroupedImage& image_;
  const PatchShape& shape_;
  int64_t stride_, pairs_ = 0;
  int32_t first_ = 0;
  int64_t places_[kRowChunk + 1];
  alignas(4) int16_t weights_[kRowChunk + 1];
#if defined(__AVX512VNNI__)
  int64_t quads_ = 0;
  int64_t quad_places_[kRowChunk];
  alignas(4) int8_t quad_weights_[kRowChunk][4];
  /// Of 16 outputs: the words that hold the pixels of four, and the bytes of each in them.
  alignas(64) int32_t words_[16];
  alignas(64) int8_t bytes_[64];
#endif
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
