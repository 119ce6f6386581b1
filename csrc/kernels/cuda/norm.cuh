// Kernels of layer norm (kCentered) and RMS norm.
// Method: a row belongs to some lanes of a warp or to a block. It is read once and kept in
// registers (up to 8192 elements; of longer rows the rest is read again): mean, then the sum of
// squared differences, then the result. The gradient keeps rows of dy and x likewise. Gradients of
// scale and bias are column sums in two stages: blocks of rows are added up in the workspace, then
// the blocks in order, in double; nothing is atomic, so every run gives the same bits. Where a
// thread can keep the sums of its columns (kSummedBytes), the block that computes rows of dx adds
// them up; else a kernel of its own. Rows are added up in the computation type, in a tree of
// threads: results agree with the CPU's to rounding. y and dy may have 16 bits where x has 32; then
// y may be written in both types, and a part of dy in 32 bits may be added as dy is read. A
// gradient that goes around the norm (dsum) is added to dx in registers, and the sum is rounded
// once: for float32 and float64 the bits of dx and an Add, since contraction is off; with 16 bits
// one rounding less.
// Bytes moved: x and y once (forward); dy, x, dx and dsum once and, of rows that are too long for
// sums in registers, dy and x once more (gradient).
#pragma once

#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/held_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/norm.h"

namespace ortmodule::cuda {

inline constexpr int kMostRowThreads = 512;
/// Elements of a row that a thread keeps.
inline constexpr int kHeldElements = 16;
/// Of a row that a thread keeps beside the sums of its columns.
inline constexpr int kSummedBytes = 32;

/// f.template operator()<T>() for the float of 16 bits of that type.
template <class F>
void dispatch_rounded(DType dtype, const F& f) {
  if (dtype == DType::Float16)
    f.template operator()<Float16>();
  else
    f.template operator()<BFloat16>();
}

template <class T, int kCount>
__device__ __forceinline__ void load_computed(ComputeOf<T>* to, const T* from) {
  T elements[kCount];
  load_vector(elements, from);
#pragma unroll
  for (int k = 0; k < kCount; ++k) to[k] = widened(elements[k]);
}
template <class T, int kCount>
__device__ __forceinline__ void store_computed(T* to, const ComputeOf<T>* from) {
  ComputeOf<T> values[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) values[k] = from[k];
  narrow<T>(values).store(to);
}

/// Whether rows of `columns` elements at these addresses (null: absent) consist of whole vectors of
/// kVectorCount<T> elements each.
template <class T, class... Elements>
bool rows_are_vectors(int64_t columns, const Elements*... pointers) {
  return columns % kVectorCount<T> == 0 && (is_aligned<Elements, kVectorCount<T>>(pointers) && ...);
}

/// Operands and outputs of the forward ops. Only x and y are always there; mean and bias belong to
/// layer norm, skip and sum to SkipLayerNormalization. Y: the type of y; if it is another than T, a
/// skip has a sum, and `wide` may get y before it is rounded.
template <class T, class Y = T>
struct NormForward {
  using Element = T;
  using Result = Y;
  const T *x = nullptr, *skip = nullptr, *scale = nullptr, *bias = nullptr;
  Y* y = nullptr;
  T* wide = nullptr;
  ComputeOf<T>*mean = nullptr, *inv_std_dev = nullptr;
  T* sum = nullptr;
  int64_t rows = 0, columns = 0;
  ComputeOf<T> epsilon = 0;
  int lanes = 1;

  __device__ __forceinline__ T* sum_or_result() const {
    if constexpr (std::is_same_v<T, Y>)
      return sum ? sum : y;
    else
      return sum;
  }
};

/// Blocks of norm_forward_cuda that a multiprocessor shall hold: two where vectors are moved, whose
/// registers are enough. Said for both, as the compiler else spills to make room for two.
template <class Forward, int kCount>
inline constexpr int kForwardBlocks =
    kCount > 1 && !std::is_same_v<typename Forward::Element, double> ? 2 : 1;

template <class Forward, int kCount, bool kCentered>
__global__ __launch_bounds__(
    kMostRowThreads,
    (kForwardBlocks<Forward, kCount>)) void norm_forward_cuda(ORTM_GRID_CONSTANT(Forward) f) {
  using T = typename Forward::Element;
  using C = ComputeOf<T>;
  ORTM_DYNAMIC_SHARED(C, scratch);
  const RowOfThread at(f.lanes, f.rows);
  const int64_t base = at.row * f.columns;
  HeldRow<C, kCount, kCount, kHeldElements / kCount> row(at.exists ? f.columns : 0, at.lane,
                                                         f.lanes);
  using Values = C[kCount];
  T* const sum_row = f.sum_or_result() + base;
  const auto load_summed = [&](int64_t i, Values& v) { load_computed<T, kCount>(v, sum_row + i); };
  const auto load_x = [&](int64_t i, Values& v) { load_computed<T, kCount>(v, f.x + base + i); };
  const auto load_first = [&](int64_t i, Values& v) {
    load_x(i, v);
    if (!f.skip) return;
    Values skip;
    load_computed<T, kCount>(skip, f.skip + base + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) v[k] = widened(narrowed(v[k] + skip[k], T{}));
    // Without an output for the sum, y keeps what does not fit into registers.
    if (f.sum || row.is_beyond(i)) store_computed<T, kCount>(sum_row + i, v);
  };
  const auto load_again = [&](int64_t i, Values& v) { f.skip ? load_summed(i, v) : load_x(i, v); };

  const C n = static_cast<C>(f.columns);
  C mean = 0, squares = 0;
  if constexpr (kCentered) {
    C sum = 0;
    row.first(load_first, [&](int64_t, Values& v) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) sum += v[k];
    });
    mean = row_reduce(sum, AddOp(), f.lanes, scratch) / n;
  }
  const auto add_square = [&](int64_t, Values& v) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) squares += (v[k] - mean) * (v[k] - mean);
  };
  if constexpr (kCentered) {
    row.again(load_again, add_square);
  } else {
    row.first(load_first, add_square);
  }
  const C variance = row_reduce(squares, AddOp(), f.lanes, scratch) / n;
  const C inv = C(1) / std::sqrt(variance + f.epsilon);
  row.again(load_again, [&](int64_t i, Values& v) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) v[k] = normalized(v[k], mean, inv);
    if (f.scale) {
      Values scale;
      load_computed<T, kCount>(scale, f.scale + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) v[k] *= scale[k];
    }
    if (f.bias) {
      Values bias;
      load_computed<T, kCount>(bias, f.bias + i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) v[k] += bias[k];
    }
    if constexpr (!std::is_same_v<T, typename Forward::Result>) {
      if (f.wide) store_computed<T, kCount>(f.wide + base + i, v);
    }
    store_computed<typename Forward::Result, kCount>(f.y + base + i, v);
  });
  // Last, since rows of one element may share their storage with the statistics.
  if (at.lane == 0 && at.exists) {
    if (f.mean) f.mean[at.row] = mean;
    if (f.inv_std_dev) f.inv_std_dev[at.row] = inv;
  }
}

template <int kCount, bool kCentered, class Forward>
void launch_norm_forward(const KernelArgs& args, const Forward& f, const RowGroups& groups) {
  ORTM_LAUNCH((norm_forward_cuda<Forward, kCount, kCentered>),
              grid_of(f.columns ? blocks_for(f.rows, groups.rows()) : 0),
              static_cast<unsigned>(groups.threads), sizeof(f.epsilon) * kWarp, args.context, f);
}

template <bool kCentered, class Forward>
void run_norm_forward(const KernelArgs& args, Forward f) {
  using T = typename Forward::Element;
  const NormShape shape = norm_shape(args.facts.outputs[0].layout.sizes, args.facts.node().attrs);
  f.rows = shape.rows;
  f.columns = shape.columns;
  f.epsilon = static_cast<ComputeOf<T>>(args.facts.node().attrs.number("epsilon", 1e-5));
  const RowGroups groups = row_groups(f.columns, kHeldElements, kMostRowThreads);
  f.lanes = groups.lanes;
  if (rows_are_vectors<T>(f.columns, f.x, f.skip, f.scale, f.bias, f.y, f.sum, f.wide)) {
    launch_norm_forward<kVectorCount<T>, kCentered>(args, f, groups);
  } else {
    launch_norm_forward<1, kCentered>(args, f, groups);
  }
}

// --- gradient ------------------------------------------------------------------------------------
/// D: the type of dy; if it is another than T, `more` may be another part of dy, in T.
template <class T, class D = T>
struct NormBackward {
  using Element = T;
  using Given = D;
  using C = ComputeOf<T>;
  const D* dy = nullptr;
  const T* more = nullptr;
  const T *x = nullptr, *scale = nullptr;
  const C *mean = nullptr, *inv_std_dev = nullptr;
  const T* dsum = nullptr;  // of dx; null: nothing is added
  T* dx = nullptr;
  T *dscale = nullptr, *dbias = nullptr;
  C* partials = nullptr;  // [row blocks, 1 or (kCentered) 2, columns]
  int64_t rows = 0, columns = 0;
  int lanes = 1;
};

/// kCount elements of dy, with the other part of it.
template <int kCount, class Backward>
__device__ __forceinline__ void load_given(typename Backward::C* to, const Backward& b,
                                           int64_t at) {
  using T = typename Backward::Element;
  load_computed<typename Backward::Given, kCount>(to, b.dy + at);
  if constexpr (!std::is_same_v<T, typename Backward::Given>) {
    if (!b.more) return;
    typename Backward::C more[kCount];
    load_computed<T, kCount>(more, b.more + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) to[k] += more[k];
  }
}

template <class C>
struct GradientSums {
  C g, gh;
};
struct AddSums {
  template <class C>
  __device__ __forceinline__ GradientSums<C> operator()(GradientSums<C> a,
                                                        GradientSums<C> b) const {
    return {a.g + b.g, a.gh + b.gh};
  }
};

/// kAdds: whether b.dsum is there. One block, as in kForwardBlocks: its loads are enough in flight.
template <class Backward, int kCount, bool kCentered, bool kAdds>
__global__ __launch_bounds__(kMostRowThreads,
                             1) void norm_backward_cuda(ORTM_GRID_CONSTANT(Backward) b) {
  using T = typename Backward::Element;
  using C = ComputeOf<T>;
  ORTM_DYNAMIC_SHARED(GradientSums<C>, scratch);
  const RowOfThread at(b.lanes, b.rows);
  const int64_t base = at.row * b.columns;
  // Values of a step: g = dy scale, then h, then dsum. Of doubles fewer are kept.
  constexpr int kValues = (kAdds ? 3 : 2) * kCount;
  constexpr int kHeld = sizeof(C) > sizeof(float) ? kHeldElements / 2 : kHeldElements;
  HeldRow<C, kCount, kValues, kHeld / kCount> row(at.exists ? b.columns : 0, at.lane, b.lanes);
  using Values = C[kValues];
  const C mean = kCentered && at.exists ? b.mean[at.row] : C(0);
  const C inv = at.exists ? b.inv_std_dev[at.row] : C(0);
  const auto load = [&](int64_t i, Values& v) {
    load_given<kCount>(v, b, base + i);
    load_computed<T, kCount>(v + kCount, b.x + base + i);
    if constexpr (kAdds) load_computed<T, kCount>(v + 2 * kCount, b.dsum + base + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) v[kCount + k] = normalized(v[kCount + k], mean, inv);
    if (!b.scale) return;
    C scale[kCount];
    load_computed<T, kCount>(scale, b.scale + i);
#pragma unroll
    for (int k = 0; k < kCount; ++k) v[k] *= scale[k];
  };
  GradientSums<C> sums{0, 0};
  row.first(load, [&](int64_t, Values& v) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if constexpr (kCentered) sums.g += v[k];
      sums.gh += v[k] * v[kCount + k];
    }
  });
  sums = row_reduce(sums, AddSums(), b.lanes, scratch);
  const C n = static_cast<C>(b.columns);
  const C mean_g = sums.g / n, mean_gh = sums.gh / n;
  row.again(load, [&](int64_t i, Values& v) {
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      v[k] = normalized_gradient(v[k], v[kCount + k], inv, mean_g, mean_gh);
    if constexpr (kAdds) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) v[k] += v[2 * kCount + k];
    }
    store_computed<T, kCount>(b.dx + base + i, v);
  });
}

// Column sums: blocks of 32 groups of columns by 8 rows.
inline constexpr int kColumnThreads = 32, kRowThreads = 8;

/// Adds up `values` over threadIdx.y, which has kRows; thread 0 of each column gets the sums.
/// `scratch`: kValues per thread of the block.
template <int kRows = kRowThreads, int kValues, class S>
__device__ __forceinline__ void add_over_rows(S (&values)[kValues], S* scratch) {
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
#pragma unroll
  for (int k = 0; k < kValues; ++k) scratch[(y * kValues + k) * kColumnThreads + x] = values[k];
  __syncthreads();
  if (y > 0) return;
  for (int other = 1; other < kRows; ++other)
#pragma unroll
    for (int k = 0; k < kValues; ++k)
      values[k] += scratch[(other * kValues + k) * kColumnThreads + x];
}

// partials[block] = column sums of dy h and, if centered, of dy over a block of rows.
template <class Backward, int kCount, bool kCentered>
__global__ __launch_bounds__(kColumnThreads* kRowThreads) void norm_column_sums_cuda(
    ORTM_GRID_CONSTANT(Backward) b, int64_t rows_per_part, int64_t tiles) {
  using T = typename Backward::Element;
  using C = ComputeOf<T>;
  constexpr int kSums = kCentered ? 2 : 1;
  ORTM_DYNAMIC_SHARED(C, scratch);
  const int64_t part = blockIdx.x / tiles, tile = blockIdx.x - part * tiles;
  const int64_t column = (tile * kColumnThreads + threadIdx.x) * kCount;
  const bool exists = column < b.columns;
  const int64_t begin = part * rows_per_part;
  const int64_t end = begin + rows_per_part < b.rows ? begin + rows_per_part : b.rows;
  C sums[kSums * kCount] = {};
  if (exists) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowThreads) {
      const C mean = kCentered ? b.mean[row] : C(0), inv = b.inv_std_dev[row];
      C dy[kCount], x[kCount];
      load_given<kCount>(dy, b, row * b.columns + column);
      load_computed<T, kCount>(x, b.x + row * b.columns + column);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        sums[k] += dy[k] * normalized(x[k], mean, inv);
        if constexpr (kCentered) sums[kCount + k] += dy[k];
      }
    }
  }
  add_over_rows(sums, scratch);
  if (threadIdx.y > 0 || !exists) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s)
#pragma unroll
    for (int k = 0; k < kCount; ++k)
      b.partials[(part * kSums + s) * b.columns + column + k] = sums[s * kCount + k];
}

/// Elements of a row that a thread keeps beside the sums of its columns.
template <class T>
inline constexpr int kSummedElements = kSummedBytes / static_cast<int>(sizeof(ComputeOf<T>));

/// How rows are split where the blocks that compute dx add up their columns: by the shape only, so
/// that no GPU changes a bit. Enough blocks for a large GPU, and few partial sums.
inline int64_t rows_per_summed_part(int64_t rows) {
  return std::max<int64_t>(16, (rows + 511) / 512);
}

/// Adds up `sums`, of which each of the block's groups of `lanes` threads has some, over the groups
/// in their order; the first group gets them. `scratch`: kValues per thread of the block.
template <int kValues, class C>
__device__ __forceinline__ void add_over_groups(C (&sums)[kValues], int lanes, C* scratch) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
#pragma unroll
  for (int k = 0; k < kValues; ++k) scratch[k * threads + thread] = sums[k];
  __syncthreads();
  if (thread >= lanes) return;
  for (int other = thread + lanes; other < threads; other += lanes)
#pragma unroll
    for (int k = 0; k < kValues; ++k) sums[k] += scratch[k * threads + other];
}

/// Blocks of the kernel below that a multiprocessor shall hold: of those that move vectors, whose
/// registers are enough for it.
template <class Backward, int kCount>
inline constexpr int kSummedBlocks = kCount > 1 && sizeof(typename Backward::C) == sizeof(float)
                                         ? 2
                                         : 1;

/// dx of the rows of part blockIdx.x, as norm_backward_cuda, and partials[part], as
/// norm_column_sums_cuda. A group of lanes goes through rows of its own.
template <class Backward, int kCount, bool kCentered, bool kAdds>
__global__ __launch_bounds__(
    kMostRowThreads,
    (kSummedBlocks<Backward, kCount>)) void norm_backward_and_sums_cuda(ORTM_GRID_CONSTANT(Backward)
                                                                            b,
                                                                        int64_t rows_per_part) {
  using T = typename Backward::Element;
  using C = ComputeOf<T>;
  constexpr int kEach = kSummedElements<T>, kSteps = kEach / kCount;
  constexpr int kSums = kCentered ? 2 : 1;
  ORTM_DYNAMIC_SHARED(GradientSums<C>, scratch);
  const int groups = static_cast<int>(blockDim.x) / b.lanes;
  const int group = static_cast<int>(threadIdx.x) / b.lanes;
  const int lane = static_cast<int>(threadIdx.x) % b.lanes;
  const int64_t begin = blockIdx.x * rows_per_part;
  const int64_t end = begin + rows_per_part < b.rows ? begin + rows_per_part : b.rows;
  const C n = static_cast<C>(b.columns);
  const int columns = static_cast<int>(b.columns);
  C sums[kSums * kEach] = {};
  const auto column = [&](int step) { return (step * b.lanes + lane) * kCount; };
  // All groups take part in all reductions.
  for (int64_t first = begin; first < end; first += groups) {
    const int64_t row = first + group;
    const int count = row < end ? columns : 0;
    const C mean = kCentered && count ? b.mean[row] : C(0);
    const C inv = count ? b.inv_std_dev[row] : C(0);
    C dy[kEach] = {}, h[kEach] = {};
    Words<T, kCount> dsum[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (column(s) >= count) continue;
      load_given<kCount>(dy + s * kCount, b, row * b.columns + column(s));
      load_computed<T, kCount>(h + s * kCount, b.x + row * b.columns + column(s));
      if constexpr (kAdds) dsum[s] = Words<T, kCount>::load(b.dsum + row * b.columns + column(s));
    }
    GradientSums<C> of_row{0, 0};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (column(s) >= count) continue;
      Words<T, kCount> scale;
      if (b.scale) scale = Words<T, kCount>::load(b.scale + column(s));
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int e = s * kCount + k;
        h[e] = normalized(h[e], mean, inv);
        sums[e] += dy[e] * h[e];
        if constexpr (kCentered) sums[kEach + e] += dy[e];
        if (b.scale) dy[e] *= widened(scale[k]);  // g from here on
        if constexpr (kCentered) of_row.g += dy[e];
        of_row.gh += dy[e] * h[e];
      }
    }
    of_row = row_reduce(of_row, AddSums(), b.lanes, scratch);
    const C mean_g = of_row.g / n, mean_gh = of_row.gh / n;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (column(s) >= count) continue;
      C dx[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        dx[k] = normalized_gradient(dy[s * kCount + k], h[s * kCount + k], inv, mean_g, mean_gh);
      if constexpr (kAdds) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) dx[k] += widened(dsum[s][k]);
      }
      store_computed<T, kCount>(b.dx + row * b.columns + column(s), dx);
    }
  }
  if (groups > 1) add_over_groups(sums, b.lanes, reinterpret_cast<C*>(scratch));
  if (group > 0) return;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    if (column(s) >= columns) continue;
#pragma unroll
    for (int part = 0; part < kSums; ++part)
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        b.partials[(int64_t{blockIdx.x} * kSums + part) * b.columns + column(s) + k] =
            sums[part * kEach + s * kCount + k];
  }
}

/// out[c] = sum over parts of partials[part][s][c], for each sum s of `sums`: `first` gets that of
/// blockIdx.y 0, `second` that of 1; what is null is left out.
template <class T>
__global__ __launch_bounds__(kColumnThreads* kRowThreads) void add_partials_cuda(
    const ComputeOf<T>* partials, int64_t parts, int64_t sums, int64_t columns, T* first,
    T* second) {
  ORTM_DYNAMIC_SHARED(double, scratch);
  T* const out = blockIdx.y == 0 ? first : second;
  if (!out) return;
  partials += blockIdx.y * columns;
  const int64_t column = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  double sum[1] = {0};
  if (column < columns) {
#pragma unroll 16
    for (int64_t part = threadIdx.y; part < parts; part += kRowThreads)
      sum[0] += static_cast<double>(partials[part * sums * columns + column]);
  }
  add_over_rows(sum, scratch);
  if (threadIdx.y == 0 && column < columns) out[column] = stored<T>(sum[0]);
}

/// Whether a thread can keep the sums of its columns of such rows.
inline bool sums_beside_rows(int64_t columns, size_t computed_bytes) {
  return columns <= kSummedBytes / static_cast<int64_t>(computed_bytes) * kMostRowThreads;
}

inline int64_t gradient_parts(const NormShape& shape, size_t computed_bytes) {
  if (!sums_beside_rows(shape.columns, computed_bytes)) return row_blocks(shape.rows);
  return blocks_for(shape.rows, rows_per_summed_part(shape.rows));
}

template <bool kCentered>
size_t norm_grad_workspace(const StepFacts& facts) {
  const NormShape shape = norm_shape(facts.inputs[1].layout.sizes, facts.node().attrs);
  const size_t width = facts.inputs[1].dtype == DType::Float64 ? 8 : 4;
  return static_cast<size_t>(gradient_parts(shape, width) * (kCentered ? 2 : 1) * shape.columns) *
         width;
}

/// dx, and the column sums in their own pass.
template <int kCount, bool kCentered, bool kAdds, class Backward>
void launch_norm_backward_in_passes(const KernelArgs& args, const Backward& b, bool sums) {
  using C = typename Backward::C;
  const int64_t parts = row_blocks(b.rows);
  const int64_t tiles = blocks_for(b.columns, kColumnThreads * kCount);
  constexpr size_t kSumBytes =
      sizeof(C) * (kCentered ? 2 : 1) * kCount * kColumnThreads * kRowThreads;
  if (sums)
    ORTM_LAUNCH((norm_column_sums_cuda<Backward, kCount, kCentered>), grid_of(parts * tiles),
                dim3(kColumnThreads, kRowThreads), kSumBytes, args.context, b,
                rows_per_block(b.rows), tiles);
  const RowGroups groups = row_groups(b.columns, kHeldElements, kMostRowThreads);
  Backward rows = b;
  rows.lanes = groups.lanes;
  ORTM_LAUNCH((norm_backward_cuda<Backward, kCount, kCentered, kAdds>),
              grid_of(b.columns ? blocks_for(b.rows, groups.rows()) : 0),
              static_cast<unsigned>(groups.threads), sizeof(GradientSums<C>) * kWarp, args.context,
              rows);
}

/// First the column sums, then dx, then the other gradients: each output may take the storage of an
/// operand of its size.
template <int kCount, bool kCentered, bool kAdds, class Backward>
void launch_norm_backward(const KernelArgs& args, Backward b) {
  using C = typename Backward::C;
  using T = typename Backward::Element;
  constexpr int kSums = kCentered ? 2 : 1;
  const bool sums = b.dscale || b.dbias;
  if (sums && b.columns > 0 && sums_beside_rows(b.columns, sizeof(C))) {
    const RowGroups groups = row_groups(b.columns, kSummedElements<T>, kMostRowThreads);
    b.lanes = groups.lanes;
    const size_t threads = static_cast<size_t>(groups.threads);
    const int64_t rows = rows_per_summed_part(b.rows);
    ORTM_LAUNCH((norm_backward_and_sums_cuda<Backward, kCount, kCentered, kAdds>),
                grid_of(blocks_for(b.rows, rows)), static_cast<unsigned>(threads),
                std::max(sizeof(GradientSums<C>) * kWarp,
                         groups.rows() > 1 ? sizeof(C) * kSums * kSummedElements<T> * threads : 0),
                args.context, b, rows);
  } else {
    launch_norm_backward_in_passes<kCount, kCentered, kAdds>(args, b, sums);
  }
  const int64_t parts = gradient_parts({b.rows, b.columns}, sizeof(C));
  if (sums)
    ORTM_LAUNCH(add_partials_cuda<T>, grid_of(blocks_for(b.columns, kColumnThreads), kSums),
                dim3(kColumnThreads, kRowThreads), sizeof(double) * kColumnThreads * kRowThreads,
                args.context, b.partials, parts, kSums, b.columns, b.dscale, b.dbias);
}

template <bool kCentered, class Backward>
void run_norm_backward(const KernelArgs& args, Backward b) {
  using T = typename Backward::Element;
  const NormShape shape = norm_shape(args.facts.inputs[1].layout.sizes, args.facts.node().attrs);
  b.rows = shape.rows;
  b.columns = shape.columns;
  b.partials = static_cast<ComputeOf<T>*>(args.workspace);
  const bool vectors = rows_are_vectors<T>(b.columns, b.dy, b.more, b.x, b.scale, b.dsum, b.dx);
  if (vectors && b.dsum) {
    launch_norm_backward<kVectorCount<T>, kCentered, true>(args, b);
  } else if (vectors) {
    launch_norm_backward<kVectorCount<T>, kCentered, false>(args, b);
  } else if (b.dsum) {
    launch_norm_backward<1, kCentered, true>(args, b);
  } else {
    launch_norm_backward<1, kCentered, false>(args, b);
  }
}

}  // namespace ortmodule::cuda
