// Packed weights of integer convolutions (base/integer_conv_weights.h): rows of the factor of a
// product that is not packed into panels. They are its unsigned factor, or where an instruction
// saturates (integer_rests.h) its signed one, of which what is too much is listed row by row.
#pragma once

#include "base/integer_conv_weights.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/integer_rests.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(ORTM_INTEGER_RESTS)
/// The panels hold the unsigned factor, rows the signed one.
template <int64_t kSums>
struct TurnedInstruction : SaturatingInstruction<kSums> {
  using typename SaturatingInstruction<kSums>::Lanes;
  static Lanes multiply_add(const Lanes (&a)[kSums], const Lanes (&b)[kSums], Lanes sum) {
    return SaturatingInstruction<kSums>::multiply_add(b, a, sum);
  }
};
using TurnedPairsDot = QuadDot<TurnedInstruction<1>>;
using TurnedFoursDot = QuadDot<TurnedInstruction<2>>;
#endif

/// What is not in a row: places count from the row's begin, and are below 2^24.
class RowRest {
 public:
  RowRest(int64_t place, int rest)
      : code_(static_cast<uint32_t>(place) << 8 | static_cast<uint8_t>(rest)) {}
  int64_t place() const { return code_ >> 8; }
  int32_t value() const { return static_cast<int8_t>(code_); }

 private:
  uint32_t code_;
};

/// The packed weights in memory.
class PackedRows {
 public:
  /// Bytes for where the rests of each row begin.
  static int64_t scratch_bytes(const IntegerConvWeights& sizes) { return (sizes.outputs + 1) * 4; }

  PackedRows(IntegerConvWeights sizes, std::byte* memory, void* scratch)
      : sizes_(sizes), begins_(static_cast<int32_t*>(scratch)) {
    together_ = reinterpret_cast<int32_t*>(memory);
    sums_ = together_ + 1;
    counts_ = reinterpret_cast<uint16_t*>(sums_ + sizes.outputs);
    rests_ = reinterpret_cast<RowRest*>(together_ + sizes.words());
    rows_ = reinterpret_cast<int8_t*>(rests_ + sizes.most_rests());
  }

  /// So many sums of pairs are added in 16 bits, of signed rows; 0: rows of IntegerDot.
  int64_t together() const { return *together_; }
  /// The sum of a row as it is multiplied, with its rests.
  int32_t sum(int64_t row) const { return sums_[row]; }
  const uint8_t* row(int64_t i) const {
    return reinterpret_cast<const uint8_t*>(rows_ + i * sizes_.row_bytes());
  }
  int64_t row_bytes() const { return sizes_.row_bytes(); }

  /// Finds where the rests of rows that were packed before begin.
  void find_rests() {
    begins_[0] = 0;
    for (int64_t i = 0; i < sizes_.outputs; ++i) begins_[i + 1] = begins_[i] + counts_[i];
  }

  /// Packs `weights`, [outputs, channels, places] of int8 or uint8.
  void pack(const KernelContext& context, const uint8_t* weights, bool is_signed) {
#if defined(ORTM_INTEGER_RESTS)
    copy<TurnedPairsDot::kGroup>(context, weights, is_signed ? 0 : kFlip, true);
    if (sizes_.inner() < int64_t{1} << 24) {
      if (take_rests<2>(context)) return;
      if (take_rests<1>(context)) return;
    }
#endif
    *together_ = 0;
    copy<IntegerDot::kGroup>(context, weights, is_signed ? kFlip : 0, false);
  }

  /// Adds the products of the rests of rows [row, row + rows) in places [first, first + inner) to
  /// sums, whose rows are `stride` apart. `panels` hold these places of all columns, unsigned, and
  /// are `panel_stride` bytes apart.
  void add_rests(int64_t row, int64_t rows, int64_t first, int64_t inner, const int8_t* panels,
                 int64_t panel_stride, int64_t columns, int32_t* sums, int64_t stride) const {
    const auto before = [](const RowRest& rest, int64_t place) { return rest.place() < place; };
    for (int64_t i = 0; i < rows; ++i, sums += stride) {
      const RowRest *begin = rests_ + begins_[row + i], *end = rests_ + begins_[row + i + 1];
      const RowRest* rest = std::lower_bound(begin, end, first, before);
      for (; rest != end && rest->place() < first + inner; ++rest) {
        const int64_t place = rest->place() - first;
        const int8_t* group = panels + place / 4 * kQuadBytes;
        for (int64_t j = 0; j < columns; j += kIntegerPanel, group += panel_stride)
          add_one(group, place % 4 * 8, rest->value(), sums + j);
      }
    }
  }

 private:
  static constexpr uint8_t kFlip = 0x80;
  static constexpr int32_t kMostOfRow = 65535;  // fewer can be counted

  /// Copies rows xor `flip`, groups of kGroup channels beside each other, and sums them.
  template <int64_t kGroup>
  void copy(const KernelContext& context, const uint8_t* weights, uint8_t flip, bool is_signed) {
    const int64_t channels = sizes_.channels, places = sizes_.places;
    parallel_ranges(context, sizes_.outputs, grain_for(sizes_.inner()),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                        const uint8_t* from = weights + i * channels * places;
                        int8_t* to = rows_ + i * sizes_.row_bytes();
                        std::fill_n(to, sizes_.row_bytes(), int8_t{0});
                        int32_t sum = 0;
                        for (int64_t c = 0; c < channels; ++c) {
                          int8_t* at = to + c / kGroup * kGroup * places + c % kGroup;
                          for (int64_t k = 0; k < places; ++k) {
                            const auto number = static_cast<uint8_t>(*from++ ^ flip);
                            at[k * kGroup] = static_cast<int8_t>(number);
                            sum += is_signed ? static_cast<int8_t>(number) : int32_t{number};
                          }
                        }
                        sums_[i] = sum;
                      }
                    });
  }

  /// Moves what is too much for `kTogether` sums of pairs to the lists. False: it is more than they
  /// have room for, and than pays; the rows are as they were.
  template <int64_t kTogether>
  bool take_rests(const KernelContext& context) {
    const auto for_each_row = [&](const auto& body) {
      parallel_ranges(context, sizes_.outputs, grain_for(sizes_.inner()),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i)
                          body(i, rows_ + i * sizes_.row_bytes());
                      });
    };
    for_each_row([&](int64_t i, int8_t* row) {
      int32_t count = 0;
      for_each_rest_of_row<kTogether>(row, [&](int64_t, int) { ++count; });
      counts_[i] = static_cast<uint16_t>(std::min(count, kMostOfRow));
    });
    find_rests();
    if (begins_[sizes_.outputs] > sizes_.most_rests() ||
        std::find(counts_, counts_ + sizes_.outputs, kMostOfRow) != counts_ + sizes_.outputs)
      return false;
    for_each_row([&](int64_t i, int8_t* row) {
      RowRest* to = rests_ + begins_[i];
      for_each_rest_of_row<kTogether>(row, [&](int64_t place, int rest) {
        row[place] = static_cast<int8_t>(row[place] - rest);
        *to++ = RowRest(place, rest);
      });
    });
    *together_ = static_cast<int32_t>(kTogether);
    return true;
  }

  /// Whether the weights of 32 places may have rests.
  template <int64_t kTogether>
  static bool may_have_rests(const int8_t* places) {
    int any = 0;
    for (int64_t i = 0; i < 32; i += 4 * kTogether)
      for (int64_t j = i; j < i + 4; j += 2) {
        int positive = 0, negative = 0;
        for (int64_t k = j; k < j + 4 * kTogether; k += 4) {
          const int sum = std::max<int>(places[k], 0) + std::max<int>(places[k + 1], 0);
          positive += sum;
          negative += sum - places[k] - places[k + 1];
        }
        any |= std::max(positive, negative) > kSafeWeights;
      }
    return any != 0;
  }

  /// each(place, rest)
  template <int64_t kTogether, class Each>
  void for_each_rest_of_row(const int8_t* row, const Each& each) const {
    for (int64_t block = 0; block < sizes_.row_bytes(); block += 32) {
      const int64_t end = std::min(block + 32, sizes_.row_bytes());
      if (end - block == 32 && !may_have_rests<kTogether>(row + block)) continue;
      for (int64_t k = block; k < end; k += 4 * kTogether)
        for (int64_t j = k; j < k + 4; j += 2)
          for_each_rest_of<kTogether>(row + j, 4, [&](int64_t which, int rest) {
            each(j + which / 2 * 4 + which % 2, rest);
          });
    }
  }

  static void add_one(const int8_t* group, int64_t shift, int32_t value, int32_t* sums) {
    uint32_t fours[kIntegerPanel];
    std::memcpy(fours, group, sizeof(fours));
    ORTM_SIMD
    for (int64_t c = 0; c < kIntegerPanel; ++c)
      sums[c] += value * static_cast<int32_t>(fours[c] >> shift & 0xff);
  }

  IntegerConvWeights sizes_;
  int32_t *begins_, *together_, *sums_;
  uint16_t* counts_;
  RowRest* rests_;
  int8_t* rows_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
