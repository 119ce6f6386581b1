// Exact products of a few rows of unsigned bytes and a matrix of bytes that is read as it lies.
// With VNNI four rows of the matrix are interleaved in registers, eight instructions for 64
// columns, which is less than packing the matrix takes for a few products.
#pragma once

#include <cstring>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// The right factor [inner, columns], xor `flip` (0x80 for unsigned elements) as signed bytes.
struct ByteMatrix {
  const int8_t* data;
  int64_t inner, columns, row_stride;
  int8_t flip;
};

/// Rows of the left factor are as far apart, and zero behind their elements.
inline int64_t byte_row_stride(int64_t inner) { return (inner + 63) / 64 * 64; }

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

/// Four rows of the matrix from `from` on, 64 columns of each: four places of the inner dimension
/// in each lane. Lane l of vector q has column 16 (l / 4) + 4 q + l % 4.
struct ByteFours {
  __m512i v[4];

  ByteFours(const int8_t* from, int64_t row_stride, int64_t rows, __mmask64 mask, __m512i flip) {
    __m512i row[4];
    ORTM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int64_t at = i < rows ? i : 0;  // times 0 of the left factor
      row[i] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, from + at * row_stride), flip);
    }
    const __m512i low = _mm512_unpacklo_epi8(row[0], row[1]);
    const __m512i high = _mm512_unpackhi_epi8(row[0], row[1]);
    const __m512i next_low = _mm512_unpacklo_epi8(row[2], row[3]);
    const __m512i next_high = _mm512_unpackhi_epi8(row[2], row[3]);
    v[0] = _mm512_unpacklo_epi16(low, next_low);
    v[1] = _mm512_unpackhi_epi16(low, next_low);
    v[2] = _mm512_unpacklo_epi16(high, next_high);
    v[3] = _mm512_unpackhi_epi16(high, next_high);
  }
};

/// kBlocks times 64 columns from `column` on, of so many rows.
template <int kRows, int kBlocks>
void multiply_byte_blocks(const uint8_t* left, const ByteMatrix& b, int64_t column, int32_t* sums,
                          int64_t sums_stride) {
  constexpr int64_t kAhead = 16;  // rows
  const int64_t left_stride = byte_row_stride(b.inner);
  const int64_t width = std::min<int64_t>(64 * kBlocks, b.columns - column);
  const int64_t last = width - 64 * (kBlocks - 1);
  const __mmask64 mask = last == 64 ? ~__mmask64{0} : (__mmask64{1} << last) - 1;
  const __m512i flip = _mm512_set1_epi8(b.flip);
  __m512i totals[kRows][kBlocks][4];
  ORTM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ORTM_UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      ORTM_UNROLL
      for (int q = 0; q < 4; ++q) totals[r][n][q] = _mm512_setzero_si512();
    }
  }
  const int8_t* from = b.data + column;
  for (int64_t k = 0; k < b.inner; k += 4, from += 4 * b.row_stride) {
    __m512i a[kRows];
    ORTM_UNROLL
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, left + r * left_stride + k, sizeof(four));
      a[r] = _mm512_set1_epi32(four);
    }
    ORTM_UNROLL
    for (int n = 0; n < kBlocks; ++n) {
      ORTM_UNROLL
      for (int i = 0; i < 4; ++i) __builtin_prefetch(from + 64 * n + (kAhead + i) * b.row_stride);
      const ByteFours fours(from + 64 * n, b.row_stride, b.inner - k,
                            n + 1 < kBlocks ? ~__mmask64{0} : mask, flip);
      ORTM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        ORTM_UNROLL
        for (int q = 0; q < 4; ++q)
          totals[r][n][q] = _mm512_dpbusd_epi32(totals[r][n][q], a[r], fours.v[q]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    alignas(64) int32_t block[64 * kBlocks];
    for (int n = 0; n < kBlocks; ++n)
      for (int q = 0; q < 4; ++q) {
        alignas(64) int32_t lanes[16];
        _mm512_store_si512(lanes, totals[r][n][q]);
        for (int l = 0; l < 4; ++l)
          std::memcpy(block + 64 * n + 16 * l + 4 * q, lanes + 4 * l, 4 * sizeof(int32_t));
      }
    std::memcpy(sums + r * sums_stride + column, block,
                static_cast<size_t>(width) * sizeof(int32_t));
  }
}

/// sums [rows, columns] = left [rows, inner] b.
inline void multiply_byte_rows(const uint8_t* left, int64_t rows, const ByteMatrix& b,
                               int32_t* sums, int64_t sums_stride) {
  const int64_t left_stride = byte_row_stride(b.inner);
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4)
    for (int64_t column = 0; column < b.columns; column += 64)
      multiply_byte_blocks<4, 1>(left + row * left_stride, b, column, sums + row * sums_stride,
                                 sums_stride);
  for (; row < rows; ++row) {
    int64_t column = 0;
    for (; column + 192 < b.columns; column += 256)
      multiply_byte_blocks<1, 4>(left + row * left_stride, b, column, sums + row * sums_stride,
                                 sums_stride);
    for (; column < b.columns; column += 64)
      multiply_byte_blocks<1, 1>(left + row * left_stride, b, column, sums + row * sums_stride,
                                 sums_stride);
  }
}

#else

/// sums [rows, columns] = left [rows, inner] b.
inline void multiply_byte_rows(const uint8_t* left, int64_t rows, const ByteMatrix& b,
                               int32_t* sums, int64_t sums_stride) {
  constexpr int64_t kLanes = kVectorBytes / 4, kVectors = 8;
  typedef int8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
  const int64_t left_stride = byte_row_stride(b.inner);
  for (int64_t row = 0; row < rows; ++row, left += left_stride, sums += sums_stride) {
    int64_t column = 0;
    for (; column + kVectors * kLanes <= b.columns; column += kVectors * kLanes) {
      IntLanes totals[kVectors] = {};
      const int8_t* from = b.data + column;
      for (int64_t k = 0; k < b.inner; ++k, from += b.row_stride) {
        const int32_t factor = left[k];
        ORTM_UNROLL
        for (int64_t v = 0; v < kVectors; ++v) {
          Bytes bytes;
          std::memcpy(&bytes, from + v * kLanes, sizeof(bytes));
          totals[v] += factor * __builtin_convertvector(bytes ^ b.flip, IntLanes);
        }
      }
      std::memcpy(sums + column, totals, sizeof(totals));
    }
    for (; column < b.columns; ++column) {
      int32_t total = 0;
      for (int64_t k = 0; k < b.inner; ++k)
        total += left[k] * static_cast<int8_t>(b.data[k * b.row_stride + column] ^ b.flip);
      sums[column] = total;
    }
  }
}

#endif

}  // namespace ORTM_ISA
}  // namespace ortmodule
