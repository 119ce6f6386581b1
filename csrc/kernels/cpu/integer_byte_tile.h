// Tiles of a product of integers that become bytes in registers, without sums in memory.
#pragma once

#include "kernels/cpu/integer_product.h"
#include "kernels/cpu/sum_steps.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX512BW__)
#define ORTM_BYTE_TILES 1

template <class Dot>
struct ByteTile {
  using Tile = IntegerTile<Dot>;
  using Lanes = typename Tile::Lanes;
  using Rows = typename Tile::Rows;
  static constexpr int64_t kLanes = Tile::kLanes;

  /// What becomes of the sums of columns, which may be read up to whole vectors, and where the
  /// bytes of the first row go; rows are `step` apart.
  struct Finish {
    const SumSteps& how;
    const int32_t* added;
    const float *steps, *offsets;
    uint8_t* y;
    int64_t step;

    Finish from(int64_t column) const {
      return {how, added + column, steps + column, offsets + column, y + column, step};
    }
  };

  /// Writes the bytes of left times the panels, with what `sums` have already if `adds`. Rows with
  /// a number in doubt are left out: doubt(row, column, count, totals) takes their sums.
  template <class Doubt>
  static void multiply(const Rows& left, int64_t rows, const int8_t* panels, int64_t panel_stride,
                       int64_t width, const Finish& finish, int32_t* sums, int64_t sums_stride,
                       bool adds, const Doubt& doubt) {
    static_assert(Tile::kHasPanels);
    for (int64_t column = 0, count = 0; column < width; column += count) {
      const int64_t vectors = Tile::vectors_of(width - column);
      count = std::min(vectors * kLanes, width - column);
      int32_t* at = sums + column;
      uint32_t doubtful =
          function(rows, vectors)(left, panels + column / kLanes * panel_stride, panel_stride,
                                  finish.from(column), count, at, sums_stride, adds);
      for (; doubtful != 0; doubtful &= doubtful - 1) {
        const int64_t row = std::countr_zero(doubtful);
        doubt(row, column, count, at + row * sums_stride);
      }
    }
  }

 private:
  using Multiply = uint32_t (*)(const Rows&, const int8_t*, int64_t, const Finish&, int64_t,
                                int32_t*, int64_t, bool);

  /// Returns a bit for each row that is in doubt, whose sums are written instead.
  template <int kRows, int kVectors>
  static uint32_t multiply_tile(const Rows& left, const int8_t* right, int64_t panel_stride,
                                const Finish& finish, int64_t count, int32_t* sums,
                                int64_t sums_stride, bool adds) {
    Lanes totals[kRows][kVectors];
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) totals[i][v] = load_integers(finish.added + v * kLanes);
    }
    Tile::template add_products<kRows, kVectors>(left, right, panel_stride, totals);
    if (adds) {
      ORTM_UNROLL
      for (int i = 0; i < kRows; ++i) {
        ORTM_UNROLL
        for (int v = 0; v < kVectors; ++v)
          totals[i][v] = total_of(sums + i * sums_stride + v * kLanes, totals[i][v]);
      }
    }
    const SumSteps how = finish.how;  // which stores of bytes cannot change
    FloatVec steps[kVectors], offsets[kVectors];
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      steps[v] = FloatVec::load(finish.steps + v * kLanes);
      offsets[v] = FloatVec::load(finish.offsets + v * kLanes);
    }
    const bool is_whole = count == kVectors * kLanes;
    constexpr int64_t kWidth = kVectors * kLanes;
    alignas(64) uint8_t bytes[kRows * kWidth];
    uint8_t* y = is_whole ? finish.y : bytes;
    const int64_t step = is_whole ? finish.step : kWidth;
    uint32_t doubtful = 0;
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i, y += step) {
      IntLanes fixed[kVectors];
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v)
        fixed[v] = SumSteps::fixed(totals[i][v], steps[v], offsets[v]);
      if (!how.in_doubt(fixed)) [[likely]] {
        how.store(fixed, y);
        continue;
      }
      doubtful |= 1u << i;
      for (int v = 0; v < kVectors; ++v)
        std::memcpy(sums + i * sums_stride + v * kLanes, &totals[i][v], sizeof(Lanes));
    }
    if (!is_whole)
      for (int64_t i = 0; i < kRows; ++i)  // those in doubt are written afterwards
        SumSteps::copy_bytes(bytes + i * kWidth, count, finish.y + i * finish.step);
    return doubtful;
  }

  static Multiply function(int64_t rows, int64_t vectors) {
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<std::array<Multiply, 4>, sizeof...(i)>{
          std::array<Multiply, 4>{&multiply_tile<i + 1, 1>, &multiply_tile<i + 1, 2>,
                                  &multiply_tile<i + 1, 3>, &multiply_tile<i + 1, 4>}...};
    }
    (std::make_integer_sequence<int, Tile::kMostRows>());
    return kFunctions[static_cast<size_t>(rows - 1)][static_cast<size_t>(vectors - 1)];
  }
};
#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
