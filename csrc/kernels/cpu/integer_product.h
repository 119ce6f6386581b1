// Exact products of integers of 8 bits: u8 x s8, summed in 32 bits, blocked as in tiled_product.h.
// Operands of the other signedness are shifted by 128, as are their zero points, which changes no
// difference. Zero points stay out of the loop, modulo 2^32:
//   sum (a - za) (b - zb) = sum a b - za sum b - zb sum a + inner za zb
// (Jacob et al., "Quantization and Training of Neural Networks for Efficient
// Integer-Arithmetic-Only Inference", 2018, section 2.3.)
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "base/integer_panels.h"
#include "kernels/cpu/panel_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The innermost step where no instruction sums products of 8 bits exactly: vpmaddubsw saturates at
/// 16 bits, so both factors are widened to 16 bits and pairs of products are summed in 32.
struct PairDot {
  using Left = int16_t;
  /// Places of the inner dimension that are summed at once; so many such groups in one step.
  static constexpr int64_t kGroup = 2, kTogether = 1;
  /// One lane for each column.
  using Lanes = IntLanes;
  static constexpr int64_t kLanes = kVectorBytes / 4;

  static Lanes load(const int8_t* from) {
#if defined(__AVX512BW__)
    return Lanes(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
    return Lanes(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
    int16_t wide[kVectorBytes / 2];
    for (int i = 0; i < kVectorBytes / 2; ++i) wide[i] = from[i];
    Lanes lanes;
    std::memcpy(&lanes, wide, sizeof(lanes));
    return lanes;
#endif
  }

  static Lanes multiply_add(const Lanes (&a)[1], const Lanes (&b)[1], Lanes sum) {
#if defined(__AVX512BW__)
    return sum + Lanes(_mm512_madd_epi16(__m512i(a[0]), __m512i(b[0])));
#elif defined(__AVX2__)
    return sum + Lanes(_mm256_madd_epi16(__m256i(a[0]), __m256i(b[0])));
#else
    return sum + (a[0] << 16 >> 16) * (b[0] << 16 >> 16) + (a[0] >> 16) * (b[0] >> 16);
#endif
  }
};

/// Four products of 8 bits at once by `Instruction`: one that sums them without saturation
/// (vpdpbusd), or one that weights are prepared for (integer_rests.h).
template <class Instruction>
struct QuadDot {
  using Left = uint8_t;
  static constexpr int64_t kGroup = 4, kTogether = Instruction::kTogether;
  using Lanes = typename Instruction::Lanes;
  static constexpr int64_t kLanes = sizeof(Lanes) / 4;

  static Lanes load(const int8_t* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof(lanes));
    return lanes;
  }
  static Lanes multiply_add(const Lanes (&a)[kTogether], const Lanes (&b)[kTogether], Lanes sum) {
    return Instruction::multiply_add(a, b, sum);
  }
};

#if defined(__AVX512VNNI__) && defined(__AVX512F__)
struct VnniInstruction {
  using Lanes = IntLanes;
  static constexpr int64_t kTogether = 1;
  static Lanes multiply_add(const Lanes (&a)[1], const Lanes (&b)[1], Lanes sum) {
    return Lanes(_mm512_dpbusd_epi32(__m512i(sum), __m512i(a[0]), __m512i(b[0])));
  }
};
using IntegerDot = QuadDot<VnniInstruction>;
#else
using IntegerDot = PairDot;
#endif

/// Whether rows so many bytes apart compete for the same lines of the first-level cache.
inline bool shares_cache_lines(int64_t stride) { return stride % 2048 == 0; }

/// One tile of a product: sums of a few rows and vectors of columns stay in registers.
template <class Dot>
struct IntegerTile {
  using Lanes = typename Dot::Lanes;
  using Left = typename Dot::Left;
  static constexpr int64_t kLanes = Dot::kLanes;
  static constexpr int64_t kTogether = Dot::kTogether;
  /// With two vectors of sums for each row, or four of AVX-512's: more rows would need more
  /// pointers than there are registers.
  static constexpr int kMostRows = 6;
  /// Whole tiles of columns: rows of sums are a multiple of it.
  static constexpr int64_t kColumns = 4 * kLanes;
  /// Of which a panel and a tile of rows share the first-level cache.
  static constexpr int64_t kMostInner = 1024;
  /// Elements from one packed row of the left factor to the next. Not a power of two, so that rows
  /// do not compete for the same lines of the cache.
  static constexpr int64_t kLeftStride = kMostInner + 32;

  /// Rows of the left factor, in memory that packs them or as they lie: parts of their elements.
  struct Rows {
    static constexpr int64_t kMostParts = 16;
    int64_t parts = 0;
    int64_t inner[kMostParts];  // whole steps, but where rows are padded
    const Left* at[kMostParts][kMostRows];

    void set(const Left* data, int64_t stride, int64_t rows, int64_t elements) {
      parts = 1;
      inner[0] = elements;
      for (int64_t i = 0; i < rows; ++i) at[0][i] = data + i * stride;
    }
    Left element(int64_t row, int64_t place) const {
      int64_t part = 0;
      for (; place >= inner[part]; ++part) place -= inner[part];
      return at[part][row][place];
    }
  };
  /// Whether so many elements can be read as they lie: whole steps.
  static constexpr bool are_steps(int64_t elements) {
    return sizeof(Left) == 1 && elements % (Dot::kGroup * kTogether) == 0;
  }

  /// sums [rows, width] (+)= left [rows, inner] times the panels that begin at `panels`, which are
  /// `panel_stride` bytes apart; rows of sums hold whole tiles of columns.
  static void multiply(const Rows& left, int64_t rows, const int8_t* panels, int64_t panel_stride,
                       int64_t width, int32_t* sums, int64_t sums_stride, bool adds) {
    static_assert(kIntegerInner % (Dot::kGroup * kTogether) == 0);
    const bool takes_four = rows <= kFourVectorRows && width % kColumns == 0;
    for (int64_t column = 0, columns = 0; column < width; column += columns) {
      const int64_t vectors = kHasPanels ? vectors_of(width - column) : takes_four ? 4 : 2;
      columns = vectors * kLanes;
      const int8_t* panel =
          panels + column / kIntegerPanel * panel_stride + column % kIntegerPanel * Dot::kGroup;
      // Where a tile is wider than a panel, the last one may have no neighbour.
      const int64_t next = column + columns - kIntegerPanel < width ? panel_stride : 0;
      function(rows, vectors)(left, panel, next, sums + column, sums_stride, adds);
    }
  }

  /// Vectors of the next tile where so many columns are left, if vectors are whole panels.
  static constexpr bool kHasPanels = kLanes == kIntegerPanel;
  static int64_t vectors_of(int64_t columns) {
    return std::min<int64_t>(ceil_div(columns, kLanes), 4);
  }

  /// sums += left times a tile of columns, whose panels begin at `right` and are `panel_stride`
  /// bytes apart.
  template <int kRows, int kVectors>
  static inline __attribute__((always_inline)) void add_products(const Rows& left,
                                                                 const int8_t* right,
                                                                 int64_t panel_stride,
                                                                 Lanes (&sums)[kRows][kVectors]) {
    const int8_t* from[kVectors];
    for (int64_t v = 0; v < kVectors; ++v)
      from[v] = right + v * kLanes / kIntegerPanel * panel_stride +
                v * kLanes % kIntegerPanel * Dot::kGroup;
    for (int64_t part = 0; part < left.parts; ++part) {
      const Left* rows[kRows];
      for (int i = 0; i < kRows; ++i) rows[i] = left.at[part][i];
      const int64_t groups = ceil_div(left.inner[part], Dot::kGroup);
      for (int64_t g = 0; g < groups; g += kTogether) {
        Lanes b[kVectors][kTogether];
        ORTM_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          ORTM_UNROLL
          for (int64_t t = 0; t < kTogether; ++t)
            b[v][t] = Dot::load(from[v] + (g + t) * kIntegerPanel * Dot::kGroup);
        }
        ORTM_UNROLL
        for (int i = 0; i < kRows; ++i) {
          Lanes a[kTogether];
          ORTM_UNROLL
          for (int64_t t = 0; t < kTogether; ++t)
            a[t] = word_at(rows[i] + (g + t) * Dot::kGroup) - Lanes{};
          ORTM_UNROLL
          for (int v = 0; v < kVectors; ++v) sums[i][v] = Dot::multiply_add(a, b[v], sums[i][v]);
        }
      }
      for (int v = 0; v < kVectors; ++v) from[v] += groups * kIntegerPanel * Dot::kGroup;
    }
  }

 private:
  /// `right`: groups of a panel from some column on; other panels are `panel_stride` bytes apart.
  using Multiply = void (*)(const Rows& left, const int8_t* right, int64_t panel_stride,
                            int32_t* sums, int64_t sums_stride, bool adds);
  /// Of vectors that are no panels: so few rows would wait for their sums.
  static constexpr int kFourVectorRows = kHasPanels ? kMostRows : 2;

  /// A group of a row.
  static int32_t word_at(const Left* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof(word));
    return word;
  }

  template <int kRows, int kVectors>
  static void multiply_tile(const Rows& left, const int8_t* right, int64_t panel_stride,
                            int32_t* to, int64_t to_stride, bool adds) {
    Lanes sums[kRows][kVectors];
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Lanes{};
    }
    add_products<kRows, kVectors>(left, right, panel_stride, sums);
    ORTM_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ORTM_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        int32_t* at = to + i * to_stride + v * kLanes;
        Lanes sum = sums[i][v];
        if (adds) {
          Lanes before;
          std::memcpy(&before, at, sizeof(before));
          sum += before;
        }
        std::memcpy(at, &sum, sizeof(sum));
      }
    }
  }

  static Multiply function(int64_t rows, int64_t vectors) {
    constexpr int kOne = kHasPanels ? 1 : 2, kThree = kHasPanels ? 3 : 2;
    static constexpr auto kFunctions = []<int... i>(std::integer_sequence<int, i...>) {
      return std::array<std::array<Multiply, 4>, sizeof...(i)>{std::array<Multiply, 4>{
          &multiply_tile<i + 1, kOne>, &multiply_tile<i + 1, 2>, &multiply_tile<i + 1, kThree>,
          &multiply_tile<std::min(i + 1, kFourVectorRows), 4>}...};
    }
    (std::make_integer_sequence<int, kMostRows>());
    return kFunctions[static_cast<size_t>(rows - 1)][static_cast<size_t>(vectors - 1)];
  }
};

/// Packs kGroup places of `width` columns, whose places lie in turn, `stride` apart.
template <int64_t kGroup>
void pack_columns(const int8_t* from, int64_t stride, int64_t width, int8_t flip, int8_t* to) {
  using Word = std::conditional_t<kGroup == 4, uint32_t, uint16_t>;
  static_assert(sizeof(Word) == kGroup);
  const auto flips = static_cast<Word>(static_cast<uint8_t>(flip) * 0x01010101u);
  const auto pack = [&](int64_t j) {
    Word word;
    std::memcpy(&word, from + j * stride, kGroup);
    word = static_cast<Word>(word ^ flips);
    std::memcpy(to + j * kGroup, &word, kGroup);
  };
  if (width == kIntegerPanel) {
    ORTM_UNROLL
    for (int64_t j = 0; j < kIntegerPanel; ++j) pack(j);
  } else {
    for (int64_t j = 0; j < width; ++j) pack(j);
    std::memset(to + width * kGroup, 0, static_cast<size_t>((kIntegerPanel - width) * kGroup));
  }
}

/// Packs b [inner, columns], xor `flip` (0x80 for unsigned elements), into panels of kIntegerPanel
/// columns and `padded` >= inner places each. What is padded is zero.
template <class Dot>
void pack_integer_panels(const StridedMatrix<const int8_t>& b, int8_t flip, int64_t padded,
                         int8_t* to) {
  constexpr int64_t kGroup = Dot::kGroup;
  for (int64_t column = 0; column < b.columns; column += kIntegerPanel) {
    const int64_t width = std::min(kIntegerPanel, b.columns - column);
    for (int64_t k = 0; k < padded; k += kGroup, to += kIntegerPanel * kGroup) {
      const int8_t* from = b.data + k * b.row_stride + column * b.column_stride;
      if (width == kIntegerPanel && b.column_stride == 1 && k + kGroup <= b.rows) {
        ORTM_UNROLL
        for (int64_t j = 0; j < kIntegerPanel; ++j) {
          ORTM_UNROLL
          for (int64_t g = 0; g < kGroup; ++g)
            to[j * kGroup + g] = static_cast<int8_t>(from[g * b.row_stride + j] ^ flip);
        }
        continue;
      }
      if (b.row_stride == 1 && k + kGroup <= b.rows) {
        pack_columns<kGroup>(from, b.column_stride, width, flip, to);
        continue;
      }
      for (int64_t j = 0; j < kIntegerPanel; ++j)
        for (int64_t g = 0; g < kGroup; ++g)
          to[j * kGroup + g] =
              j < width && k + g < b.rows
                  ? static_cast<int8_t>(from[g * b.row_stride + j * b.column_stride] ^ flip)
                  : int8_t{0};
    }
  }
}

/// sums [columns] += what pack_integer_panels packs of each column.
inline void add_integer_columns(const StridedMatrix<const int8_t>& b, int8_t flip, int32_t* sums) {
  if (b.column_stride == 1) {
    for (int64_t k = 0; k < b.rows; ++k) {
      const int8_t* row = b.data + k * b.row_stride;
      ORTM_SIMD
      for (int64_t j = 0; j < b.columns; ++j) sums[j] += static_cast<int8_t>(row[j] ^ flip);
    }
  } else {
    for (int64_t j = 0; j < b.columns; ++j) {
      const int8_t* column = b.data + j * b.column_stride;
      int32_t sum = 0;
      if (b.row_stride == 1) {
        for (int64_t k = 0; k < b.rows; ++k) sum += static_cast<int8_t>(column[k] ^ flip);
      } else {
        for (int64_t k = 0; k < b.rows; ++k)
          sum += static_cast<int8_t>(column[k * b.row_stride] ^ flip);
      }
      sums[j] += sum;
    }
  }
}

/// The sum of `count` elements xor `flip`, as unsigned ones.
inline int32_t integer_row_sum(const uint8_t* row, int64_t stride, int64_t count, uint8_t flip) {
  int32_t sum = 0;
  if (stride == 1) {
    for (int64_t k = 0; k < count; ++k) sum += row[k] ^ flip;
  } else {
    for (int64_t k = 0; k < count; ++k) sum += row[k * stride] ^ flip;
  }
  return sum;
}

inline void copy_flipped(const uint8_t* from, int64_t count, uint8_t flip, uint8_t* to) {
  if (flip == 0) {
    std::memcpy(to, from, static_cast<size_t>(count));
    return;
  }
  int64_t k = 0;
#if defined(__AVX512BW__)
  const __m512i flips = _mm512_set1_epi8(static_cast<char>(flip));
  for (; k < count; k += 64) {
    const __mmask64 mask = count - k >= 64 ? ~__mmask64{0} : (__mmask64{1} << (count - k)) - 1;
    const __m512i bytes = _mm512_maskz_loadu_epi8(mask, from + k);
    _mm512_mask_storeu_epi8(to + k, mask, _mm512_xor_si512(bytes, flips));
  }
#endif
  for (; k < count; ++k) to[k] = static_cast<uint8_t>(from[k] ^ flip);
}

/// Packs rows of the left factor xor `flip` (0x80 for signed elements), padded with zeros, and sets
/// `rows` to them.
template <class Dot>
void pack_integer_rows(const StridedMatrix<const uint8_t>& a, uint8_t flip, typename Dot::Left* to,
                       typename IntegerTile<Dot>::Rows& rows) {
  using Left = typename Dot::Left;
  rows.set(to, IntegerTile<Dot>::kLeftStride, a.rows, a.columns);
  const int64_t padded = padded_inner(a.columns);
  for (int64_t i = 0; i < a.rows; ++i, to += IntegerTile<Dot>::kLeftStride) {
    const uint8_t* from = a.data + i * a.row_stride;
    if (a.column_stride == 1 && sizeof(Left) == 1) {
      copy_flipped(from, a.columns, flip, reinterpret_cast<uint8_t*>(to));
    } else if (a.column_stride == 1) {
      for (int64_t k = 0; k < a.columns; ++k) to[k] = static_cast<Left>(from[k] ^ flip);
    } else {
      for (int64_t k = 0; k < a.columns; ++k)
        to[k] = static_cast<Left>(from[k * a.column_stride] ^ flip);
    }
    std::fill(to + a.columns, to + padded, Left{0});
  }
}

/// sums [rows, columns] = left [rows, inner] right [inner, columns]. Its units are blocks of the
/// sums.
template <class Dot>
class IntegerProduct {
 public:
  using Tile = IntegerTile<Dot>;
  using Left = typename Dot::Left;
  using Rows = typename Tile::Rows;
  static constexpr int64_t kMostInner = Tile::kMostInner;
  static constexpr int64_t kMostColumns = 256;

  /// `most_bytes`: of the sums of a unit, where all of the inner dimension is multiplied at once.
  IntegerProduct(int64_t rows, int64_t columns, int64_t inner, int64_t most_bytes = kSumBytes)
      : rows_(rows), columns_(columns), inner_(inner), tiles_(ceil_div(rows, Tile::kMostRows)) {
    piece_ = piece_of(inner);
    block_ = equal_part(columns, kMostColumns, Tile::kColumns);
    blocks_ = ceil_div(columns, block_);
    const int64_t tile_bytes = Tile::kMostRows * block_ * static_cast<int64_t>(sizeof(int32_t));
    const int64_t most = inner > piece_ ? kMostTiles : most_bytes / tile_bytes;
    groups_ = ceil_div(tiles_, std::clamp<int64_t>(most, 1, kMostTiles));
  }

  int64_t units() const { return groups_ * blocks_; }
  /// The inner dimension is multiplied in such pieces.
  static int64_t piece_of(int64_t inner) { return equal_part(inner, kMostInner, kIntegerInner); }

  /// Units [begin, end).
  ///   left(row, rows, first, inner, to, part) sets `part` to a part of rows of the left factor,
  ///   which it may pack into `to` (pack_integer_rows), kLeftStride apart,
  ///   right(first, inner, column, columns) returns panels of that part, and the bytes between
  ///   them, store(row, rows, column, columns, sums, stride) takes sums, whose rows are `stride`
  ///   apart, rests(left, row, rows, first, column, columns, sums, stride) adds products that are
  ///   not in the panels.
  template <class LeftPart, class RightPart, class Store, class Rests>
  void run(int64_t begin, int64_t end, const LeftPart& left, const RightPart& right,
           const Store& store, const Rests& rests) const {
    run_tiles(begin, end, left, right, store,
              [&](const Rows& part, int64_t row, int64_t rows, int64_t first, int64_t, bool,
                  const int8_t* panels, int64_t panel_stride, int64_t column, int64_t width,
                  int32_t* sums, int64_t stride) {
                Tile::multiply(part, rows, panels, panel_stride, width, sums, stride, first > 0);
                rests(part, row, rows, first, column, width, sums, stride);
              });
  }

  /// The same with multiply(part, row, rows, first, inner, is_last, panels, panel_stride, column,
  /// width, sums, stride) for each tile of rows and each part of the inner dimension.
  template <class LeftPart, class RightPart, class Store, class Multiply>
  void run_tiles(int64_t begin, int64_t end, const LeftPart& left, const RightPart& right,
                 const Store& store, const Multiply& multiply) const {
    alignas(64) int32_t sums[kMostTiles * Tile::kMostRows * kMostColumns];
    alignas(64) Left packed[Tile::kMostRows * Tile::kLeftStride];
    Rows part;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit / groups_ * block_, group = unit % groups_;
      const int64_t first_tile = group * tiles_ / groups_;
      const int64_t last_tile = (group + 1) * tiles_ / groups_;
      const int64_t width = std::min(block_, columns_ - column);
      const int64_t top = row_of(first_tile), rows = row_of(last_tile) - top;
      if (inner_ == 0) std::fill_n(sums, rows * block_, 0);
      for (int64_t first = 0; first < inner_; first += piece_) {
        const int64_t inner = std::min(piece_, inner_ - first);
        const auto [panels, panel_stride] = right(first, inner, column, width);
        for (int64_t tile = first_tile; tile < last_tile; ++tile) {
          const int64_t row = row_of(tile), count = row_of(tile + 1) - row;
          left(row, count, first, inner, packed, part);
          multiply(part, row, count, first, inner, first + inner == inner_, panels, panel_stride,
                   column, width, sums + (row - top) * block_, block_);
        }
      }
      store(top, rows, column, width, sums, block_);
    }
  }

  template <class LeftPart, class RightPart, class Store>
  void run(int64_t begin, int64_t end, const LeftPart& left, const RightPart& right,
           const Store& store) const {
    run(begin, end, left, right, store, [](auto&&...) {});
  }

 private:
  static constexpr int64_t kMostTiles = 126 / Tile::kMostRows;
  static constexpr int64_t kSumBytes = kMostTiles * Tile::kMostRows * kMostColumns * 4;

  /// `size` in the fewest parts of at most `most`, all but the last equal, of whole units.
  static constexpr int64_t equal_part(int64_t size, int64_t most, int64_t unit) {
    const int64_t parts = std::max<int64_t>(1, ceil_div(size, most));
    return std::max(unit, ceil_div(ceil_div(size, parts), unit) * unit);
  }

  int64_t row_of(int64_t tile) const { return tile * rows_ / tiles_; }

  int64_t rows_, columns_, inner_, tiles_;
  int64_t piece_ = 0, block_ = 0, blocks_ = 0, groups_ = 0;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
