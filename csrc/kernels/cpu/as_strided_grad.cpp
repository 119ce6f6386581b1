// AsStridedGrad: dx = zeros of `shape`, to which each dy[i, j, ..] is added at
// offset + i strides[0] + j strides[1] + .. Method: leading dimensions whose windows do not meet
// are shared out to threads, and the longer of the last two is the inner loop. Bytes moved: dy
// once, dx twice.
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct Windows {
  Sizes sizes;
  std::vector<int64_t> strides;

  /// Of the dimensions from `d` on: elements of dx from the first to one past the last.
  int64_t extent(size_t d) const {
    int64_t found = 1;
    for (; d < sizes.size(); ++d) found += (sizes[d] - 1) * strides[d];
    return found;
  }
  /// How many leading dimensions, without the last two, have parts that do not meet.
  size_t apart() const {
    size_t d = 0;
    while (d + 2 < sizes.size() && strides[d] >= extent(d + 1)) ++d;
    return d;
  }
};

/// dx[i to] += dy[i from]; all of them at one place if `to` is 0.
template <class T>
void add_line(const T* dy, int64_t from, T* dx, int64_t to, int64_t count) {
  if (to == 0) {
    for (int64_t i = 0; i < count; ++i) *dx = stored<T>(computed(*dx) + computed(dy[i * from]));
    return;
  }
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i)
    dx[i * to] = stored<T>(computed(dx[i * to]) + computed(dy[i * from]));
}

/// Adds the last two dimensions, along the longer one.
template <class T>
void add_plane(const Windows& windows, const T* dy, T* dx) {
  const size_t last = windows.sizes.size() - 1;
  const int64_t columns = windows.sizes[last], column = windows.strides[last];
  const int64_t rows = last > 0 ? windows.sizes[last - 1] : 1;
  const int64_t row = last > 0 ? windows.strides[last - 1] : 0;
  if (columns >= rows) {
    for (int64_t i = 0; i < rows; ++i) add_line(dy + i * columns, 1, dx + i * row, column, columns);
  } else {
    for (int64_t j = 0; j < columns; ++j) add_line(dy + j, columns, dx + j * column, row, rows);
  }
}

/// Adds the dimensions from `d` on at dx; returns the end of what it has read of dy.
template <class T>
const T* add_windows(const Windows& windows, size_t d, const T* dy, T* dx) {
  const size_t rank = windows.sizes.size();
  if (d + 2 >= rank && rank > 0) {
    add_plane(windows, dy, dx);
    return dy + windows.sizes[rank - 1] * (rank > 1 ? windows.sizes[rank - 2] : 1);
  }
  if (rank == 0) {
    add_line(dy, 1, dx, 1, 1);
    return dy + 1;
  }
  for (int64_t i = 0; i < windows.sizes[d]; ++i)
    dy = add_windows(windows, d + 1, dy, dx + i * windows.strides[d]);
  return dy;
}

void run_as_strided_grad(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const Windows windows{args.facts.inputs[0].layout.sizes, attrs.integers("strides")};
  const int64_t size = element_count(args.facts.outputs[0].layout.sizes);
  const int64_t read = element_count(windows.sizes);
  dispatch_float(args.out[0].dtype, [&]<class T> {
    T* dx = args.out[0].as<T>();
    parallel_ranges(args.context, size, grain_for(1), [&](int64_t begin, int64_t end) {
      std::memset(dx + begin, 0, static_cast<size_t>(end - begin) * sizeof(T));
    });
    if (read == 0) return;
    const size_t apart = windows.apart();
    int64_t parts = 1;
    for (size_t d = 0; d < apart; ++d) parts *= windows.sizes[d];
    const int64_t each = read / parts;
    parallel_ranges(args.context, parts, grain_for(each), [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        int64_t at = attrs.integer("offset"), rest = part;
        for (size_t d = apart; d-- > 0; rest /= windows.sizes[d])
          at += rest % windows.sizes[d] * windows.strides[d];
        add_windows(windows, apart, args.in[0].as<T>() + part * each, dx + at);
      }
    });
  });
}

REGISTER_CPU_KERNEL({.op = "AsStridedGrad",
                     .name = "as_strided_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_as_strided_grad});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
