// Sums over the pixels of channels-last images, one per image and channel, for batch and group
// norm. Method: one column sum per block of rows, of four rows in the type of the terms at a time
// and in double from there; torch's kernels for this layout add all rows in float32, which costs an
// order of magnitude of accuracy.
#pragma once

#include <array>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/norm.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Images as rows of channels: a row per pixel.
struct PixelRows {
  int64_t images = 1, rows = 0, channels = 0;

  /// Parts of an image that are summed by themselves; they follow from the shape alone.
  int64_t blocks() const {
    return images == 0 ? 1 : std::max<int64_t>(1, row_blocks(images * rows) / images);
  }
};

/// Scratch bytes of column_sums.
template <size_t kSums>
size_t column_sums_bytes(const PixelRows& x) {
  return static_cast<size_t>(x.images * x.blocks() * x.channels) * kSums * sizeof(double);
}

/// Adds to sums[s * channels + c], for each s < kSums, the terms of rows [begin, end) in column c;
/// term(row, c) gives the kSums terms.
template <size_t kSums, class Term>
void add_rows(int64_t begin, int64_t end, int64_t channels, double* sums, const Term& term) {
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) {
    ORTM_SIMD
    for (int64_t c = 0; c < channels; ++c) {
      const auto a = term(row, c), b = term(row + 1, c), d = term(row + 2, c), e = term(row + 3, c);
      for (size_t s = 0; s < kSums; ++s)
        sums[static_cast<int64_t>(s) * channels + c] +=
            static_cast<double>((a[s] + b[s]) + (d[s] + e[s]));
    }
  }
  for (; row < end; ++row) {
    ORTM_SIMD
    for (int64_t c = 0; c < channels; ++c) {
      const auto a = term(row, c);
      for (size_t s = 0; s < kSums; ++s)
        sums[static_cast<int64_t>(s) * channels + c] += static_cast<double>(a[s]);
    }
  }
}

/// sums[(image * kSums + s) * channels + c] = sum over the image's rows of term(image)(row, c)[s],
/// where rows count through all images; in front of `sums`, which has column_sums_bytes.
template <size_t kSums, class Term>
void column_sums(const KernelContext& context, const PixelRows& x, double* sums, const Term& term) {
  const int64_t blocks = x.blocks(), block_rows = ceil_div(x.rows, blocks);
  const int64_t width = static_cast<int64_t>(kSums) * x.channels;
  parallel_ranges(context, x.images * blocks, grain_for(block_rows * x.channels),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) {
                      const int64_t image = item / blocks, block = item % blocks;
                      const int64_t first = image * x.rows;
                      double* own = sums + item * width;
                      std::fill(own, own + width, 0.0);
                      add_rows<kSums>(first + std::min(x.rows, block * block_rows),
                                      first + std::min(x.rows, (block + 1) * block_rows),
                                      x.channels, own, term(image));
                    }
                  });
  if (blocks == 1) return;
  for (int64_t image = 0; image < x.images; ++image) {
    const double* parts = sums + image * blocks * width;
    double* total = sums + image * width;  // parts of this image and of former ones: no longer used
    for (int64_t i = 0; i < width; ++i) total[i] = parts[i];
    for (int64_t block = 1; block < blocks; ++block)
      for (int64_t i = 0; i < width; ++i) total[i] += parts[block * width + i];
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
