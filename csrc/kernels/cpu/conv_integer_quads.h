// Integer convolutions of single channels with AVX-512 VNNI: an instruction sums four neighbouring
// places of a line of the window. Pixels are unpacked to channels of four places once for all
// neighbouring outputs that see them, whose weights are shifted instead.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/patches.h"
#include "kernels/cpu/sum_steps.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX512VNNI__)
#define ORTM_CHANNEL_QUADS 1

/// Registers of kBytes channels, of which four hold their sums: those of lane l of 16 bytes in
/// vector v are the channels from 16 l + 4 v on, as unpacking the pixels makes them.
template <int kBytes>
struct QuadLanes {
  typedef uint8_t Bytes __attribute__((vector_size(kBytes)));
  typedef uint16_t Words __attribute__((vector_size(kBytes)));
  typedef int32_t Ints __attribute__((vector_size(kBytes)));
  typedef float Floats __attribute__((vector_size(kBytes)));

  template <class V>
  static V load(const void* from) {
    V all;
    std::memcpy(&all, from, sizeof(all));
    return all;
  }

  /// Elements of a and b in turn, from the first or the second half of each lane.
  template <bool kSecond, class V>
  static V unpacked(V a, V b) {
    constexpr int kLane = 16 / sizeof(a[0]), kCount = kBytes / sizeof(a[0]);
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return __builtin_shufflevector(
          a, b, (i / kLane * kLane + (i % kLane + kSecond * kLane) / 2 + i % 2 * kCount)...);
    }
    (std::make_integer_sequence<int, kCount>());
  }

  /// The high words of a and b, lane by lane.
  static Words high_words(Words a, Words b) {
    constexpr int kCount = kBytes / 2;
    return [&]<int... i>(std::integer_sequence<int, i...>) {
      return __builtin_shufflevector(a, b, (i / 8 * 8 + i % 4 * 2 + 1 + i % 8 / 4 * kCount)...);
    }
    (std::make_integer_sequence<int, kCount>());
  }

  // GCC 12 warns of some forms without a mask.
  static constexpr __mmask16 kInts = static_cast<__mmask16>((1u << (kBytes / 4)) - 1);
  static Ints dot(Ints sum, Bytes a, Bytes b) {
    if constexpr (kBytes == 64)
      return Ints(_mm512_dpbusd_epi32(__m512i(sum), __m512i(a), __m512i(b)));
    else if constexpr (kBytes == 32)
      return Ints(_mm256_dpbusd_epi32(__m256i(sum), __m256i(a), __m256i(b)));
    else
      return Ints(_mm_dpbusd_epi32(__m128i(sum), __m128i(a), __m128i(b)));
  }
  /// As SumSteps has it.
  static Ints fixed(Ints sums, Floats steps, Floats offsets) {
    const Floats limits = SumSteps::kMost - Floats{};
    if constexpr (kBytes == 64) {
      const __m512 y = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(kInts, __m512i(sums)),
                                       __m512(steps), __m512(offsets));
      return Ints(_mm512_maskz_cvtps_epi32(kInts, _mm512_maskz_min_ps(kInts, y, __m512(limits))));
    } else if constexpr (kBytes == 32) {
      const __m256 y =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(__m256i(sums)), __m256(steps), __m256(offsets));
      return Ints(_mm256_cvtps_epi32(_mm256_min_ps(y, __m256(limits))));
    } else {
      const __m128 y = _mm_fmadd_ps(_mm_cvtepi32_ps(__m128i(sums)), __m128(steps), __m128(offsets));
      return Ints(_mm_cvtps_epi32(_mm_min_ps(y, __m128(limits))));
    }
  }
  /// Whether a low word of a vector has none of these bits, if those are all but the lowest.
  static bool any_without(int32_t bits, const Ints (&of)[4]) {
    const auto smaller = [](Words a, Words b) { return a < b ? a : b; };
    const Words least =
        smaller(smaller(Words(of[0]), Words(of[1])), smaller(Words(of[2]), Words(of[3])));
    if constexpr (kBytes == 64)
      return _mm512_testn_epi32_mask(__m512i(least), _mm512_set1_epi32(bits)) != 0;
    else if constexpr (kBytes == 32)
      return _mm256_testn_epi32_mask(__m256i(least), _mm256_set1_epi32(bits)) != 0;
    else
      return _mm_testn_epi32_mask(__m128i(least), _mm_set1_epi32(bits)) != 0;
  }
  static Bytes saturated(Words a, Words b) {
    if constexpr (kBytes == 64)
      return Bytes(_mm512_maskz_packus_epi16(~__mmask64{0}, __m512i(a), __m512i(b)));
    else if constexpr (kBytes == 32)
      return Bytes(_mm256_packus_epi16(__m256i(a), __m256i(b)));
    else
      return Bytes(_mm_packus_epi16(__m128i(a), __m128i(b)));
  }
};

/// The weights of windows of one channel each, and the outputs of a line that share pixels.
class ChannelQuads {
 public:
  /// Channels of the widest block, and of the narrowest one.
  static constexpr int64_t kMostChannels = 64, kLeastChannels = 16;

  /// What `outputs` neighbours of a line see, from the first one's place on: whole quads of
  /// columns.
  struct Reach {
    int64_t outputs = 1;
    std::vector<int64_t> columns;

    explicit Reach(const PatchAxis& line) : columns(line.offsets) {
      const int64_t places = line.places(), quads = ceil_div(places, 4);
      if (line.offsets.back() - line.offsets.front() == places - 1) {
        outputs = std::min<int64_t>(kMostOutputs, (4 * quads - places) / line.stride + 1);
        while (columns.size() % 4 != 0) columns.push_back(columns.back() + 1);
      } else {
        columns.resize(static_cast<size_t>(4 * quads), columns.back());
      }
    }
    int64_t quads() const { return static_cast<int64_t>(columns.size()) / 4; }
  };

  /// Where the pixels of a tile of outputs lie: base + offsets[4 quad + place].
  struct Tile {
    const uint8_t* base = nullptr;
    const int64_t* offsets = nullptr;
  };

  static int64_t bytes(int64_t channels, const PatchAxis& rows, const PatchAxis& line) {
    const Reach reach(line);
    int64_t all = 0;
    for_each_block(channels, [&](int64_t, int64_t width) {
      all += width * block_bytes(reach.outputs * rows.places() * reach.quads());
    });
    return all;
  }

  /// `weights`: [channels, places] of int8. `memory` has bytes(), at a multiple of 64. `terms` are
  /// added to the sums of channels; steps and offsets are those of `how`, if it is usual.
  ChannelQuads(const int8_t* weights, int64_t channels, const PatchAxis& rows,
               const PatchAxis& line, uint8_t flip, const uint32_t* terms, const SumSteps& how,
               const float* steps, const float* offsets, std::byte* memory)
      : reach_(line), quads_(rows.places() * reach_.quads()), flip_(flip), how_(how) {
    for_each_block(channels, [&](int64_t channel, int64_t width) {
      blocks_.push_back({channel, width, memory});
      lay_out(weights, channels, rows, line, channel, width, memory);
      std::byte* numbers = memory + reach_.outputs * quads_ * 4 * width;
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = 4 * place_of(i, width);
        std::memcpy(numbers + at, terms + channel + i, 4);
        if (!how.is_usual()) continue;
        std::memcpy(numbers + 4 * width + at, steps + channel + i, 4);
        std::memcpy(numbers + 8 * width + at, offsets + channel + i, 4);
      }
      memory += width * block_bytes(reach_.outputs * quads_);
    });
  }

  const Reach& reach() const { return reach_; }

  /// The sums of `outputs` neighbours of a line, of all channels, as bytes at y + channel, pixels
  /// `pixel_bytes` apart, if they can be made so. doubt(output, channel, width, totals) takes
  /// those of a pixel's block that are not certain, or all of them.
  template <class Doubt>
  void run(const Tile* tiles, int64_t outputs, uint8_t* y, int64_t pixel_bytes,
           const Doubt& doubt) const {
    for (const Block& block : blocks_) {
      const Line<Doubt> line{block, tiles, outputs, y + block.channel, pixel_bytes, doubt};
      const auto of_width = [&]<int kBytes>() {
        switch (reach_.outputs) {
          case 1: return run_line<kBytes, 1>(line);
          case 2: return run_line<kBytes, 2>(line);
          case 3: return run_line<kBytes, 3>(line);
          default: return run_line<kBytes, 4>(line);
        }
      };
      if (block.width == 64)
        of_width.template operator()<64>();
      else if (block.width == 32)
        of_width.template operator()<32>();
      else
        of_width.template operator()<16>();
    }
  }

 private:
  static constexpr int64_t kMostOutputs = 4;

  struct Block {
    int64_t channel = 0, width = 0;
    const std::byte* memory = nullptr;  // weights [outputs, quads], terms, steps, offsets
  };

  template <class Doubt>
  struct Line {
    const Block& block;
    const Tile* tiles;
    int64_t outputs;
    uint8_t* y;
    int64_t pixel_bytes;
    const Doubt& doubt;
  };

  /// Bytes for each channel of a block of so many quads of weights.
  static int64_t block_bytes(int64_t quads) { return 4 * quads + 12; }

  /// body(channel, width) of blocks that cover all channels; the last ones may overlap.
  template <class Body>
  static void for_each_block(int64_t channels, const Body& body) {
    for (int64_t channel = 0; channel < channels;) {
      const int64_t rest = channels - channel;
      int64_t width = kMostChannels;
      while (width > kLeastChannels && (width > channels || width / 2 >= rest)) width /= 2;
      body(std::min(channel, channels - width), width);
      channel += width;
    }
  }

  /// Where the sum of channel i of a block is, in the order of the registers.
  static int64_t place_of(int64_t i, int64_t width) {
    return i % 16 / 4 * (width / 4) + i / 16 * 4 + i % 4;
  }

  /// Quads of a block for the first output, then the same moved on to the places of the others.
  void lay_out(const int8_t* weights, int64_t channels, const PatchAxis& rows,
               const PatchAxis& line, int64_t channel, int64_t width, std::byte* to) const {
    const int64_t places = line.places(), inner = rows.places() * places, bytes = 4 * width;
    const int8_t* end = weights + channels * inner;
    for (int64_t quad = 0; quad < quads_; ++quad) {
      const int64_t row = quad / reach_.quads(), first = quad % reach_.quads() * 4;
      const int64_t count = std::min<int64_t>(4, places - first);
      const uint32_t mask = ~uint32_t{0} >> (32 - 8 * count);
      const int8_t* from = weights + channel * inner + row * places + first;
      for (int64_t i = 0; i < width; i += 4)  // channels that lie in turn
        for (int64_t c = 0; c < 4; ++c, from += inner) {
          uint32_t word = 0;
          std::memcpy(&word, from, from + 4 <= end ? 4 : static_cast<size_t>(count));
          word &= mask;
          std::memcpy(to + quad * bytes + 4 * place_of(i, width) + 4 * c, &word, 4);
        }
    }
    for (int64_t output = 1; output < reach_.outputs; ++output)
      for (int64_t quad = 0; quad < quads_; ++quad) {
        const std::byte* from = to + quad * bytes;
        move_on(from, quad % reach_.quads() > 0 ? from - bytes : nullptr, 8 * output * line.stride,
                width, to + (output * quads_ + quad) * bytes);
      }
  }

  /// `width` quads that begin so many bits later, behind those in front of them.
  static void move_on(const std::byte* quads, const std::byte* before, int64_t bits, int64_t width,
                      std::byte* to) {
    for (int64_t i = 0; i < width; ++i) {
      uint32_t word, last = 0;
      std::memcpy(&word, quads + 4 * i, 4);
      if (before) std::memcpy(&last, before + 4 * i, 4);
      word = word << bits | last >> (32 - bits);
      std::memcpy(to + 4 * i, &word, 4);
    }
  }

  template <int kBytes, int kOutputs, class Doubt>
  void run_line(const Line<Doubt>& line) const {
    using L = QuadLanes<kBytes>;
    using Ints = typename L::Ints;
    const auto* weights = line.block.memory;
    const std::byte* terms = weights + kOutputs * quads_ * 4 * kBytes;
    const Tile* tile = line.tiles;
    for (int64_t first = 0; first < line.outputs; first += kOutputs, ++tile) {
      Ints sums[kOutputs][4];
      ORTM_UNROLL
      for (int p = 0; p < kOutputs; ++p) {
        ORTM_UNROLL
        for (int v = 0; v < 4; ++v) sums[p][v] = L::template load<Ints>(terms + v * kBytes);
      }
      if (flip_ == 0)
        add_quads<kBytes, kOutputs, false>(*tile, line.block.channel, weights, sums);
      else
        add_quads<kBytes, kOutputs, true>(*tile, line.block.channel, weights, sums);
      ORTM_UNROLL
      for (int p = 0; p < kOutputs; ++p)
        if (first + p < line.outputs) finish<kBytes>(line, first + p, terms + 4 * kBytes, sums[p]);
    }
  }

  template <int kBytes, int kOutputs, bool kFlips>
  void add_quads(const Tile& tile, int64_t channel, const std::byte* weights,
                 typename QuadLanes<kBytes>::Ints (&sums)[kOutputs][4]) const {
    using L = QuadLanes<kBytes>;
    using Bytes = typename L::Bytes;
    using Words = typename L::Words;
    const uint8_t* base = tile.base + channel;
    const int64_t* offsets = tile.offsets;
    const int64_t step = quads_ * 4 * kBytes;
    typename L::Ints totals[kOutputs][4];  // which stay in registers
    ORTM_UNROLL
    for (int i = 0; i < kOutputs * 4; ++i) totals[i / 4][i % 4] = sums[i / 4][i % 4];
    for (int64_t quad = 0; quad < quads_; ++quad, offsets += 4, weights += 4 * kBytes) {
      const auto load = [&](int i) {
        const Bytes pixels = L::template load<Bytes>(base + offsets[i]);
        if constexpr (kFlips) return pixels ^ flip_;
        return pixels;
      };
      const Bytes a = load(0), b = load(1), c = load(2), d = load(3);
      const auto words = [](Bytes of) { return reinterpret_cast<Words>(of); };
      const Words low = words(L::template unpacked<false>(a, b)),
                  high = words(L::template unpacked<true>(a, b)),
                  low2 = words(L::template unpacked<false>(c, d)),
                  high2 = words(L::template unpacked<true>(c, d));
      const Words fours[4] = {
          L::template unpacked<false>(low, low2), L::template unpacked<true>(low, low2),
          L::template unpacked<false>(high, high2), L::template unpacked<true>(high, high2)};
      ORTM_UNROLL
      for (int p = 0; p < kOutputs; ++p) {
        ORTM_UNROLL
        for (int v = 0; v < 4; ++v)
          totals[p][v] = L::dot(totals[p][v], reinterpret_cast<Bytes>(fours[v]),
                                L::template load<Bytes>(weights + p * step + v * kBytes));
      }
    }
    ORTM_UNROLL
    for (int i = 0; i < kOutputs * 4; ++i) sums[i / 4][i % 4] = totals[i / 4][i % 4];
  }

  template <int kBytes, class Doubt>
  void finish(const Line<Doubt>& line, int64_t output, const std::byte* steps,
              const typename QuadLanes<kBytes>::Ints (&sums)[4]) const {
    using L = QuadLanes<kBytes>;
    using Ints = typename L::Ints;
    using Words = typename L::Words;
    if (how_.is_usual()) {
      const auto numbers = [&](int v) {
        return L::template load<typename L::Floats>(steps + v * kBytes);
      };
      Ints fixed[4];
      ORTM_UNROLL
      for (int v = 0; v < 4; ++v) fixed[v] = L::fixed(sums[v], numbers(v), numbers(4 + v));
      if (!L::any_without(how_.certain(), fixed)) [[likely]] {
        auto bytes = L::saturated(L::high_words(Words(fixed[0]), Words(fixed[1])),
                                  L::high_words(Words(fixed[2]), Words(fixed[3])));
        if (!how_.is_plain()) {
          const auto least = how_.least() - typename L::Bytes{};
          bytes = (bytes > least ? bytes : least) ^ how_.flip();
        }
        std::memcpy(line.y + output * line.pixel_bytes, &bytes, sizeof(bytes));
        return;
      }
    }
    alignas(64) int32_t totals[kMostChannels];
    for (int64_t i = 0; i < kBytes; i += 4)  // four channels that lie in turn
      std::memcpy(totals + i, reinterpret_cast<const int32_t*>(&sums[i % 16 / 4]) + i / 16 * 4, 16);
    line.doubt(output, line.block.channel, int64_t{kBytes}, totals);
  }

  Reach reach_;
  int64_t quads_;  // of a window
  uint8_t flip_;
  SumSteps how_;
  std::vector<Block> blocks_;
};
#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
