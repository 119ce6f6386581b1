// AsStridedGrad: dx = zeros of `shape`, to which each dy[i, j, ..] is added at offset + i
// strides[0]
// + j strides[1] + .. Method: leading dimensions whose windows do not meet are shared out to
// threads; within them windows are added in the order of dy. Bytes moved: dy once, dx twice.
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
  /// How many leading dimensions have parts that do not meet.
  size_t apart() const {
    size_t d = 0;
    while (d < sizes.size() && strides[d] >= extent(d + 1)) ++d;
    return d;
  }
};

/// Adds the dimensions from `d` on at dx; returns the end of what it has read of dy.
template <class T>
const T* add_windows(const Windows& windows, size_t d, const T* dy, T* dx) {
  const size_t rank = windows.sizes.size();
  const int64_t count = d < rank ? windows.sizes[d] : 1, stride = d < rank ? windows.strides[d] : 1;
  if (d + 1 < rank) {
    for (int64_t i = 0; i < count; ++i) dy = add_windows(windows, d + 1, dy, dx + i * stride);
    return dy;
  }
  if (stride == 1) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) dx[i] = stored<T>(computed(dx[i]) + computed(dy[i]));
  } else {
    for (int64_t i = 0; i < count; ++i)
      dx[i * stride] = stored<T>(computed(dx[i * stride]) + computed(dy[i]));
  }
  return dy + count;
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
