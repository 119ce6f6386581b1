// Method: dimensions are ordered by the destination's strides and merged where both sides allow. If
// the source is consecutive where the destination is, runs are copied; if along another dimension,
// blocks of 64 bytes by 64 bytes are transposed, so that each cache line of either side is used
// whole; else elements are gathered.
#include "kernels/cpu/strided_copy.h"

#include <cstring>
#include <utility>

#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kBlockBytes = 64;  // side of a block that is transposed: a cache line

// One run along the innermost dimension.
template <class T>
void copy_run(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t count) {
  if (to_stride == 1 && from_stride == 1) {
    if (count >= 64) {
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    }
  } else if (to_stride == 1 && from_stride == 0) {
    const T value = *from;
    for (int64_t i = 0; i < count; ++i) to[i] = value;
  } else if (to_stride == 1 && from_stride == 2) {  // which the compiler makes vectors of
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * 2];
  } else if (to_stride == 1 && from_stride == 4) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * 4];
  } else if (to_stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * from_stride];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

// Advances coordinates over the dimensions below `last` and keeps both offsets in step.
void advance(const IterationSpace& space, int last, Coords& coords, int64_t& to, int64_t& from) {
  for (int d = last - 1; d >= 0; --d) {
    to += space.strides[0][d];
    from += space.strides[1][d];
    if (++coords[d] < space.sizes[d]) return;
    to -= space.strides[0][d] * space.sizes[d];
    from -= space.strides[1][d] * space.sizes[d];
    coords[d] = 0;
  }
}

template <class T>
void copy_rows(const StridedCopy& copy, T* to, const T* from, int64_t begin, int64_t end) {
  const IterationSpace& space = copy.space;
  const int last = space.rank - 1;
  const int64_t inner = space.sizes[last];
  Coords coords = space.unravel(begin * inner);
  int64_t to_at = space.offset(0, coords), from_at = space.offset(1, coords);
  for (int64_t row = begin; row < end; ++row) {
    copy_run(to + to_at, space.strides[0][last], from + from_at, space.strides[1][last], inner);
    advance(space, last, coords, to_at, from_at);
  }
}

// Two vectors riffled: the lower (upper) halves of a and b, element by element.
template <class V, size_t... I>
void riffle_low(V& out, const V& a, const V& b, std::index_sequence<I...>) {
  out = __builtin_shufflevector(a, b, (I % 2 * sizeof...(I) + I / 2)...);
}
template <class V, size_t... I>
void riffle_high(V& out, const V& a, const V& b, std::index_sequence<I...>) {
  out = __builtin_shufflevector(a, b, (I % 2 * sizeof...(I) + sizeof...(I) / 2 + I / 2)...);
}

// A square of kCount by kCount elements in registers: log2(kCount) riffles of rows i and
// i + kCount / 2 transpose it.
template <class T>
struct Square {
  static constexpr size_t kBytes = sizeof(T) == 1 ? 16 : 32;  // 32 rows would need all registers
  static constexpr size_t kCount = kBytes / sizeof(T);
  typedef T Row __attribute__((vector_size(kBytes)));

  static void transpose(T* to, int64_t to_row, const T* from, int64_t from_column) {
    constexpr auto kLanes = std::make_index_sequence<kCount>();
    Row rows[2][kCount];
    for (size_t i = 0; i < kCount; ++i)
      std::memcpy(&rows[0][i], from + static_cast<int64_t>(i) * from_column, sizeof(Row));
    int now = 0;
    for (size_t step = 1; step < kCount; step *= 2, now ^= 1) {
      for (size_t i = 0; i < kCount / 2; ++i) {
        const Row &a = rows[now][i], &b = rows[now][i + kCount / 2];
        riffle_low(rows[now ^ 1][2 * i], a, b, kLanes);
        riffle_high(rows[now ^ 1][2 * i + 1], a, b, kLanes);
      }
    }
    for (size_t i = 0; i < kCount; ++i)
      std::memcpy(to + static_cast<int64_t>(i) * to_row, &rows[now][i], sizeof(Row));
  }
};

// `rows` by `columns` elements: to[r * to_row + c] = from[c * from_column + r].
template <class T>
void transpose_block(T* to, int64_t to_row, const T* from, int64_t from_column, int64_t rows,
                     int64_t columns) {
  constexpr int64_t kSide = kBlockBytes / sizeof(T);
  int64_t whole_rows = 0, whole_columns = 0;
  if constexpr (sizeof(T) <= 8) {
    constexpr int64_t kSquare = Square<T>::kCount;
    const auto transpose_squares = [&](int64_t some_rows, int64_t some_columns) {
      for (int64_t r = 0; r < some_rows; r += kSquare)
        for (int64_t c = 0; c < some_columns; c += kSquare)
          Square<T>::transpose(to + r * to_row + c, to_row, from + c * from_column + r,
                               from_column);
    };
    if (rows == kSide && columns == kSide) return transpose_squares(kSide, kSide);
    whole_rows = rows / kSquare * kSquare;
    whole_columns = columns / kSquare * kSquare;
    transpose_squares(whole_rows, whole_columns);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
      to[r * to_row + c] = from[c * from_column + r];
}

// to[r * kColumns + c] = from[c * from_column + r]: few lines whose elements alternate, as pixels
// do that share their channels.
template <int64_t kColumns, class T>
void alternate_lines(T* __restrict to, const T* __restrict from, int64_t from_column,
                     int64_t rows) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < kColumns; ++c) to[r * kColumns + c] = from[c * from_column + r];
}

// The plane of source_dim (rows) and the innermost dimension (columns) in blocks; the dimensions
// left over are the items of the loop.
struct Planes {
  IterationSpace outer;
  int64_t rows = 0, columns = 0, to_row = 0, from_column = 0;
};

Planes planes_of(const StridedCopy& copy) {
  const IterationSpace& space = copy.space;
  Planes planes;
  planes.outer.strides.assign(2, Coords{});
  for (int d = 0; d < space.rank - 1; ++d) {
    if (d == copy.source_dim) continue;
    const int target = planes.outer.rank++;
    planes.outer.sizes[target] = space.sizes[d];
    for (size_t i = 0; i < 2; ++i) planes.outer.strides[i][target] = space.strides[i][d];
  }
  if (planes.outer.rank == 0) {
    planes.outer.rank = 1;
    planes.outer.sizes[0] = 1;
  }
  planes.rows = space.sizes[copy.source_dim];
  planes.columns = space.sizes[space.rank - 1];
  planes.to_row = space.strides[0][copy.source_dim];
  planes.from_column = space.strides[1][space.rank - 1];
  return planes;
}

template <class T>
void copy_planes(const StridedCopy& copy, T* to, const T* from, const KernelContext& context) {
  constexpr int64_t kSide = kBlockBytes / sizeof(T);
  // Bands of rows of one plane, wide enough that the source is read several lines at a stretch.
  constexpr int64_t kBand = 4 * kSide;
  const Planes p = planes_of(copy);
  const int64_t bands = ceil_div(p.rows, kBand);
  auto copy_band = [&](int64_t item) {
    const Coords coords = p.outer.unravel(item / bands);
    const int64_t row = item % bands * kBand, rows = std::min(kBand, p.rows - row);
    T* band_to = to + p.outer.offset(0, coords) + row * p.to_row;
    const T* band_from = from + p.outer.offset(1, coords) + row;
    if (p.to_row == p.columns) {
      if (p.columns == 2) return alternate_lines<2>(band_to, band_from, p.from_column, rows);
      if (p.columns == 3) return alternate_lines<3>(band_to, band_from, p.from_column, rows);
      if (p.columns == 4) return alternate_lines<4>(band_to, band_from, p.from_column, rows);
    }
    for (int64_t c = 0; c < p.columns; c += kSide)
      for (int64_t r = 0; r < rows; r += kSide)
        transpose_block(band_to + r * p.to_row + c, p.to_row, band_from + c * p.from_column + r,
                        p.from_column, std::min(kSide, rows - r), std::min(kSide, p.columns - c));
  };
  parallel_ranges(context, p.outer.count() * bands, grain_for(kBand * p.columns),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) copy_band(item);
                  });
}

void copy_linear(const StridedCopy& copy, void* to, const void* from,
                 const KernelContext& context) {
  const int64_t bytes = copy.total * copy.element_bytes;
  parallel_ranges(context, bytes, int64_t{256} * 1024, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace

StridedCopy make_copy(const Sizes& sizes, const Sizes& to, const Sizes& from,
                      size_t element_bytes) {
  StridedCopy copy;
  copy.space = iteration_space(sizes, {to, from});
  copy.element_bytes = static_cast<int64_t>(element_bytes);
  copy.total = element_count(sizes);
  copy.linear = copy.space.is_linear(0) && copy.space.is_linear(1);
  const int last = copy.space.rank - 1;
  const bool scattered = copy.space.strides[0][last] == 1 && copy.space.strides[1][last] > 1;
  for (int d = 0; scattered && d < last; ++d) {
    // Shorter rows would leave most of a block empty.
    if (copy.space.strides[1][d] == 1 && copy.space.sizes[d] >= 4) {
      copy.transposes = true;
      copy.source_dim = d;
    }
  }
  return copy;
}

void run_copy(const StridedCopy& copy, void* to, const void* from, const KernelContext& context) {
  if (copy.total == 0) return;
  if (copy.linear) return copy_linear(copy, to, from, context);
  dispatch_width(static_cast<size_t>(copy.element_bytes), [&]<class T> {
    T* out = static_cast<T*>(to);
    const T* in = static_cast<const T*>(from);
    if (copy.transposes) return copy_planes(copy, out, in, context);
    const int64_t inner = copy.space.inner();
    parallel_ranges(context, copy.total / inner, grain_for(inner),
                    [&](int64_t begin, int64_t end) { copy_rows(copy, out, in, begin, end); });
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
