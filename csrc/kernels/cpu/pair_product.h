// Products of bfloat16 by the instruction that adds the products of two pairs to a float: an
// operand is a matrix of pairs, which are neighbours in the inner dimension. Otherwise blocked like
// blocked_product.h; sums stay in registers or in float32, and are rounded once.
#pragma once

#include <array>
#include <utility>

#include "kernels/cpu/half_rows.h"
#include "kernels/cpu/panel_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

#if defined(__AVX512BF16__)

/// Two neighbours of the inner dimension, the first in the low half.
using Pair = uint32_t;

inline constexpr int64_t kPairPanel = 32;   // columns: two vectors
inline constexpr int64_t kPairRows = 14;    // of a tile: 30 of the 32 registers with their factors
inline constexpr int64_t kPairStride = 16;  // from one pair of packed rows to the next

// --- packing -------------------------------------------------------------------------------------
inline __m512i load_words(const void* from) { return _mm512_loadu_si512(from); }

/// At most 32 elements as bfloat16, and zeros.
inline __m512i load_elements(const BFloat16* from, int64_t count) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
  return _mm512_maskz_loadu_epi16(mask, from);
}
inline __m512i load_elements(const float* from, int64_t count) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
  const auto low = static_cast<__mmask16>(mask), high = static_cast<__mmask16>(mask >> 16);
  return __m512i(_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, from + 16),
                                     _mm512_maskz_loadu_ps(low, from)));
}

/// The pairs of at most 16 columns of two rows; `second` may be the zero row.
inline __m512i pairs_of_rows(const BFloat16* first, const BFloat16* second, int64_t columns) {
  const auto mask = static_cast<__mmask16>((1u << columns) - 1);
  const auto wide = [&](const BFloat16* from) {
    return _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(mask, from));
  };
  const __m512i low = wide(first);
  if (!second) return low;
  return low | _mm512_maskz_slli_epi32(0xffff, wide(second), 16);
}
inline __m512i pairs_of_rows(const float* first, const float* second, int64_t columns) {
  const auto mask = static_cast<__mmask16>((1u << columns) - 1);
  const auto wide = [&](const float* from) {
    return _mm512_maskz_cvtepu16_epi32(
        0xffff, __m256i(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from))));
  };
  const __m512i low = wide(first);
  if (!second) return low;
  return low | _mm512_maskz_slli_epi32(0xffff, wide(second), 16);
}

/// Packs at most 16 rows of any strides, element by element.
template <class T>
void pack_scattered_pairs(const StridedMatrix<const T>& rows, Pair* to, int64_t stride) {
  for (int64_t k = 0; k < rows.columns; k += 2, to += stride) {
    T two[2][16] = {};
    for (int64_t part = 0; part < std::min<int64_t>(2, rows.columns - k); ++part)
      for (int64_t i = 0; i < rows.rows; ++i)
        two[part][i] = rows.data[i * rows.row_stride + (k + part) * rows.column_stride];
    _mm512_storeu_si512(to, pairs_of_rows(two[0], two[1], 16));
  }
}

/// Packs the inner dimension of at most 16 rows, floats rounded: pair k of row i goes to
/// to[k * stride + i], and zeros behind the last row.
template <class T>
void pack_pairs(const StridedMatrix<const T>& rows, Pair* to, int64_t stride) {
  const int64_t inner = rows.columns;
  if (rows.column_stride == 1) {
    for (int64_t k = 0; k < inner; k += 32) {
      const int64_t elements = std::min<int64_t>(32, inner - k);
      FloatVec square[16];  // of pairs, which are only moved
      ORTM_UNROLL
      for (int64_t i = 0; i < 16; ++i)
        square[i] = i < rows.rows
                        ? FloatLanes(load_elements(rows.data + i * rows.row_stride + k, elements))
                        : FloatLanes{};
      transpose_square(square);
      for (int64_t i = 0; i < ceil_div(elements, 2); ++i)
        _mm512_storeu_ps(to + (k / 2 + i) * stride, __m512(square[i].v));
    }
  } else if (rows.row_stride == 1) {
    constexpr int64_t kAhead = 16;  // of a stream that no processor foresees
    for (int64_t k = 0; k < inner; k += 2, to += stride) {
      const T* first = rows.data + k * rows.column_stride;
      const T* second = k + 1 < inner ? first + rows.column_stride : nullptr;
      if (k + kAhead + 1 < inner) {
        __builtin_prefetch(first + kAhead * rows.column_stride);
        __builtin_prefetch(first + (kAhead + 1) * rows.column_stride);
      }
      _mm512_storeu_si512(to, pairs_of_rows(first, second, rows.rows));
    }
  } else {
    pack_scattered_pairs(rows, to, stride);
  }
}

/// Packs dense rows x [inner, columns], row by row through all panels: as streams, which are
/// fetched a few rows ahead of their turn.
inline void pack_dense_pairs(const StridedMatrix<const BFloat16>& x, Pair* to) {
  alignas(64) uint16_t order[2][32];  // of the elements of two rows side by side
  for (uint16_t i = 0; i < 32; ++i) {
    order[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    order[1][i] = static_cast<uint16_t>(order[0][i] + 16);
  }
  const __m512i low = load_words(order[0]), high = load_words(order[1]);
  constexpr int64_t kAhead = 8;
  const int64_t pairs = ceil_div(x.rows, 2);
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const BFloat16* first = x.data + 2 * pair * x.row_stride;
    const BFloat16* second = 2 * pair + 1 < x.rows ? first + x.row_stride : nullptr;
    const bool fetches = 2 * pair + 1 + kAhead < x.rows;
    int64_t column = 0;
    for (; second && column + kPairPanel <= x.columns; column += kPairPanel) {
      if (fetches) {
        __builtin_prefetch(first + kAhead * x.row_stride + column);
        __builtin_prefetch(second + kAhead * x.row_stride + column);
      }
      const __m512i a = load_words(first + column), b = load_words(second + column);
      Pair* at = to + column * pairs + pair * kPairPanel;
      _mm512_storeu_si512(at, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(at + 16, _mm512_permutex2var_epi16(a, high, b));
    }
    for (; column < x.columns; column += 16) {
      const int64_t panel = column / kPairPanel * kPairPanel, count = x.columns - column;
      const int64_t width = x.columns - panel > 16 ? kPairPanel : 16;
      _mm512_storeu_si512(to + panel * pairs + pair * width + (column - panel),
                          pairs_of_rows(first + column, second ? second + column : nullptr,
                                        std::min<int64_t>(16, count)));
    }
  }
}

/// Packs x [inner, columns] into panels, each [pairs, 32 columns], the last one of 16 if that is
/// enough.
inline void pack_pair_panels(const StridedMatrix<const BFloat16>& x, Pair* to) {
  if (x.column_stride == 1) return pack_dense_pairs(x, to);
  const int64_t pairs = ceil_div(x.rows, 2);
  for (int64_t column = 0; column < x.columns; column += 16) {
    const int64_t panel = column / kPairPanel * kPairPanel;
    const int64_t width = x.columns - panel > 16 ? kPairPanel : 16;
    pack_pairs<BFloat16>(
        {x.data + column * x.column_stride, std::min<int64_t>(16, x.columns - column), x.rows,
         x.column_stride, x.row_stride},
        to + panel * pairs + (column - panel), width);
  }
}

// --- a tile --------------------------------------------------------------------------------------
/// What becomes of the sums of a tile.
struct PairEnd {
  static constexpr int64_t kStride = 384;
  float* sums = nullptr;  // rows of kept sums, kStride apart
  bool adds = false;      // to kept sums
  bool last = false;      // the piece: results are written
  float alpha = 1.0f;
  const float* terms = nullptr;  // added to each row of results, or null
  bool adds_to_results = false;  // of float32
};

/// y[0, columns) = the results of a row of two vectors.
inline void store_results(__m512 low, __m512 high, int64_t columns, BFloat16* y, bool) {
  const __m512i both = __m512i(_mm512_cvtne2ps_pbh(high, low));
  if (columns >= kPairPanel) {
    _mm512_storeu_si512(y, both);
  } else {
    BFloat16 all[kPairPanel];
    _mm512_storeu_si512(all, both);
    std::memcpy(y, all, static_cast<size_t>(columns) * sizeof(BFloat16));
  }
}
inline void store_results(__m512 low, __m512 high, int64_t columns, float* y, bool adds) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << std::min(columns, kPairPanel)) - 1);
  const auto first = static_cast<__mmask16>(mask), second = static_cast<__mmask16>(mask >> 16);
  if (adds) {
    low = _mm512_add_ps(low, _mm512_maskz_loadu_ps(first, y));
    high = _mm512_add_ps(high, _mm512_maskz_loadu_ps(second, y + 16));
  }
  _mm512_mask_storeu_ps(y, first, low);
  _mm512_mask_storeu_ps(y + 16, second, high);
}

struct PackedPairs {
  const Pair* pair;
  Pair row(int i) const { return pair[i]; }
  void next() { pair += kPairStride; }
};

/// By a pointer for each three rows, from which addresses by one stride and two reach the others.
template <int kRows>
struct PairsInPlace {
  static constexpr int kPointers = (kRows + 2) / 3;
  const BFloat16* pointers[kPointers];
  int64_t stride;
  PairsInPlace(const BFloat16* rows, int64_t row_stride) : stride(row_stride) {
    for (int i = 0; i < kPointers; ++i) pointers[i] = rows + 3 * i * row_stride;
  }
  Pair row(int i) const {
    Pair pair;
    std::memcpy(&pair, pointers[i / 3] + i % 3 * stride, sizeof(pair));
    return pair;
  }
  void next() {
    ORTM_UNROLL
    for (int i = 0; i < kPointers; ++i) pointers[i] += 2;
  }
};

template <int kRows, int kVectors, class Out, class Left>
void multiply_pairs(Left left, const Pair* panel, int64_t pairs, const PairEnd& end, Out* y,
                    int64_t y_stride, int64_t columns) {
  __m512 sums[kRows][kVectors];
  ORTM_UNROLL
  for (int i = 0; i < kRows; ++i) {
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_setzero_ps();
    if (!end.last) continue;
    __builtin_prefetch(y + i * y_stride, 1);
    if (sizeof(Out) == 4) __builtin_prefetch(y + i * y_stride + 16, 1);
  }
  for (int64_t k = 0; k < pairs; ++k) {
    __m512bh right[kVectors];
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) right[v] = __m512bh(load_words(panel + v * 16));
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const auto factor = __m512bh(_mm512_set1_epi32(static_cast<int>(left.row(i))));
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v)
        sums[i][v] = _mm512_dpbf16_ps(sums[i][v], factor, right[v]);
    }
    left.next();
    panel += kVectors * 16;
  }
  const __m512 alpha = _mm512_set1_ps(end.alpha);
  __m512 terms[2] = {};
  if (end.terms) {
    for (int v = 0; v < kVectors; ++v) terms[v] = _mm512_loadu_ps(end.terms + v * 16);
  }
  ORTM_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float* kept = end.sums + i * PairEnd::kStride;
    __m512 row[2] = {};
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      row[v] = end.adds ? _mm512_add_ps(_mm512_loadu_ps(kept + v * 16), sums[i][v]) : sums[i][v];
      if (!end.last) _mm512_storeu_ps(kept + v * 16, row[v]);
    }
    if (!end.last) continue;
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) row[v] = _mm512_fmadd_ps(row[v], alpha, terms[v]);
    store_results(row[0], row[1], columns, y + i * y_stride, end.adds_to_results);
  }
}

/// The functions for a number of rows.
template <class Out>
struct PairTile {
  using Packed = void (*)(const Pair*, const Pair*, int64_t, const PairEnd&, Out*, int64_t,
                          int64_t);
  using InPlace = void (*)(const BFloat16*, int64_t, const Pair*, int64_t, const PairEnd&, Out*,
                           int64_t, int64_t);
  Packed packed[2];  // by vectors - 1
  InPlace in_place[2];

  template <int kRows, int kVectors>
  static void run_packed(const Pair* left, const Pair* panel, int64_t pairs, const PairEnd& end,
                         Out* y, int64_t y_stride, int64_t columns) {
    multiply_pairs<kRows, kVectors>(PackedPairs{left}, panel, pairs, end, y, y_stride, columns);
  }
  template <int kRows, int kVectors>
  static void run_in_place(const BFloat16* left, int64_t stride, const Pair* panel, int64_t pairs,
                           const PairEnd& end, Out* y, int64_t y_stride, int64_t columns) {
    multiply_pairs<kRows, kVectors>(PairsInPlace<kRows>(left, stride), panel, pairs, end, y,
                                    y_stride, columns);
  }
  static const PairTile& of(int64_t rows) {
    static constexpr auto kTiles = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<PairTile, sizeof...(i)>{
          PairTile{{&run_packed<i + 1, 1>, &run_packed<i + 1, 2>},
                   {&run_in_place<i + 1, 1>, &run_in_place<i + 1, 2>}}...};
    }
    (std::make_integer_sequence<int, kPairRows>());
    return kTiles[static_cast<size_t>(rows - 1)];
  }
};

// --- the product ---------------------------------------------------------------------------------
/// y [rows, columns] = alpha a [rows, inner] b [inner, columns] + beta term; y is row-major. Its
/// units are groups of rows in blocks of columns. Every element is one sum in the order of the
/// inner dimension (in pieces), whatever its block and thread.
class PairProduct {
 public:
  using Matrix = StridedMatrix<const BFloat16>;

  struct Scale {
    float alpha = 1.0f, beta = 0.0f;
    const BFloat16* term = nullptr;  // a row, added to each
    bool adds = false;               // to y, of float32
  };

  PairProduct(int64_t rows, int64_t columns, int64_t inner)
      : rows_(rows),
        columns_(columns),
        inner_(inner),
        tiles_(ceil_div(rows, kPairRows)),
        piece_(equal_part(inner, kMostInner, 2)) {
    const bool keeps = inner > piece_;
    block_ = equal_part(columns, keeps ? kMostKept : kMostColumns, kPairPanel);
    blocks_ = ceil_div(columns, block_);
    // What packs the right factor anew for each group of rows is worth it where few blocks would
    // leave threads without work.
    constexpr int64_t kLeastUnits = 4, kLarge = 1 << 24;
    const bool parts = rows * columns * inner >= kLarge && blocks_ > 0;
    const int64_t wanted = parts ? ceil_div(kLeastUnits, blocks_) : 1;
    groups_ = std::max(keeps ? ceil_div(tiles_, kMostTiles) : 1, std::min(tiles_, wanted));
  }

  int64_t units() const { return groups_ * blocks_; }

  /// Units [begin, end).
  template <class Left, class Out>
  void run(int64_t begin, int64_t end, const StridedMatrix<const Left>& a, const Matrix& b,
           const Scale& scale, Out* y) const {
    // On the stack, so that any number of threads has them.
    alignas(64) Pair panels[kMostPairs];
    alignas(64) float sums[kMostTiles * kPairRows * kMostKept];
    alignas(64) float terms[kMostColumns + kPairPanel];
    PairEnd ending;
    ending.alpha = scale.alpha;
    ending.adds_to_results = scale.adds;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit / groups_ * block_, group = unit % groups_;
      const int64_t width = std::min(block_, columns_ - column);
      const int64_t first_tile = group * tiles_ / groups_;
      const int64_t last_tile = (group + 1) * tiles_ / groups_;
      if (scale.term) {
        for (int64_t j = 0; j < width; ++j)
          terms[j] = scale.beta * to_float(scale.term[column + j]);
        ending.terms = terms;
      }
      for (int64_t first = 0; first < inner_; first += piece_) {
        const int64_t inner = std::min(piece_, inner_ - first);
        pack_pair_panels({b.data + first * b.row_stride + column * b.column_stride, inner, width,
                          b.row_stride, b.column_stride},
                         panels);
        ending.adds = first > 0;
        ending.last = first + inner == inner_;
        for (int64_t tile = first_tile; tile < last_tile; ++tile) {
          const int64_t row = row_of(tile), count = row_of(tile + 1) - row;
          ending.sums = sums + (row - row_of(first_tile)) * kMostKept;
          const StridedMatrix<const Left> left{
              a.data + row * a.row_stride + first * a.column_stride, count, inner, a.row_stride,
              a.column_stride};
          multiply(left, panels, width, ending, y + row * columns_ + column);
        }
      }
    }
  }

 private:
  static constexpr int64_t kMostInner = 512, kMostColumns = 512;  // half a MiB in a block
  static constexpr int64_t kMostPairs = kMostInner / 2 * kMostColumns;
  static constexpr int64_t kMostKept = PairEnd::kStride;  // columns of kept sums
  static constexpr int64_t kMostTiles = 168 / kPairRows;  // rows of tiles of them

  static int64_t equal_part(int64_t size, int64_t most, int64_t unit) {
    const int64_t parts = std::max<int64_t>(1, ceil_div(size, most));
    return std::max(unit, ceil_div(ceil_div(size, parts), unit) * unit);
  }
  int64_t row_of(int64_t tile) const { return tile * rows_ / tiles_; }

  template <class Left, class Out>
  void multiply(const StridedMatrix<const Left>& left, const Pair* panels, int64_t width,
                PairEnd end, Out* y) const {
    const PairTile<Out>& tile = PairTile<Out>::of(left.rows);
    const int64_t pairs = ceil_div(left.columns, 2);
    alignas(64) Pair packed[kMostInner / 2 * kPairStride];
    const bool in_place = reads_in_place(left);
    if (!in_place) pack_pairs(left, packed, kPairStride);
    float* const sums = end.sums;
    const float* const terms = end.terms;
    for (int64_t column = 0; column < width; column += kPairPanel) {
      const int64_t count = std::min(kPairPanel, width - column);
      const int vectors = count > 16;
      end.sums = sums + column;
      end.terms = terms ? terms + column : nullptr;
      const Pair* panel = panels + column * pairs;
      if constexpr (std::is_same_v<Left, BFloat16>) {
        if (in_place) {
          tile.in_place[vectors](left.data, left.row_stride, panel, pairs, end, y + column,
                                 columns_, count);
          continue;
        }
      }
      tile.packed[vectors](packed, panel, pairs, end, y + column, columns_, count);
    }
  }

  /// Rows a page apart take each other's place in the first-level cache.
  template <class Left>
  static bool reads_in_place(const StridedMatrix<const Left>& left) {
    constexpr int64_t kPage = 4096 / sizeof(Left);
    return std::is_same_v<Left, BFloat16> && left.column_stride == 1 && left.columns % 2 == 0 &&
           left.row_stride % kPage != 0;
  }

  int64_t rows_, columns_, inner_, tiles_, piece_, block_ = 0, blocks_ = 0, groups_ = 0;
};

#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
