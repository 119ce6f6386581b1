// Kernels of layer norm (kCentered) and RMS norm.
// Method: a row belongs to some lanes of a warp or to a block. It is read once and kept in
// registers (up to 8192 elements; of longer rows the rest is read again): mean, then the sum of
// squared differences, then the result. The gradient keeps rows of dy and x likewise. Gradients of
// scale and bias are column sums in two stages: blocks of rows (norm.h) are added up in the
// workspace, then the blocks in order, in double; nothing is atomic, so every run gives the same
// bits. Rows are added up in the computation type, in a tree of threads: results agree with the
// CPU's to rounding. Bytes moved: x and y once (forward); dy, x and dx once and, for the gradients
// of scale and bias, dy and x once more (gradient).
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

/// Whether rows of `columns` elements at these addresses (null: absent) consist of whole vectors.
template <class T, class... Pointers>
bool rows_are_vectors(int64_t columns, const Pointers*... pointers) {
  return columns % kVectorCount<T> == 0 && (is_aligned<T, kVectorCount<T>>(pointers) && ...);
}

/// Operands and outputs of the forward ops. Only x and y are always there; mean and bias belong to
/// layer norm, skip and sum to SkipLayerNormalization.
template <class T>
struct NormForward {
  const T *x = nullptr, *skip = nullptr, *scale = nullptr, *bias = nullptr;
  T* y = nullptr;
  ComputeOf<T>*mean = nullptr, *inv_std_dev = nullptr;
  T* sum = nullptr;
  int64_t rows = 0, columns = 0;
  ComputeOf<T> epsilon = 0;
  int lanes = 1;
};

template <class T, int kCount, bool kCentered>
__global__ __launch_bounds__(kMostRowThreads) void norm_forward_cuda(
    ORTM_GRID_CONSTANT(NormForward<T>) f) {
  using C = ComputeOf<T>;
  ORTM_DYNAMIC_SHARED(C, scratch);
  const RowOfThread at(f.lanes, f.rows);
  const int64_t base = at.row * f.columns;
  HeldRow<C, kCount, kCount, kHeldElements / kCount> row(at.exists ? f.columns : 0, at.lane,
                                                         f.lanes);
  using Values = C[kCount];
  T* const sum_row = (f.sum ? f.sum : f.y) + base;
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
    store_computed<T, kCount>(f.y + base + i, v);
  });
  // Last, since rows of one element may share their storage with the statistics.
  if (at.lane == 0 && at.exists) {
    if (f.mean) f.mean[at.row] = mean;
    if (f.inv_std_dev) f.inv_std_dev[at.row] = inv;
  }
}

template <class T, int kCount, bool kCentered>
void launch_norm_forward(const KernelArgs& args, const NormForward<T>& f, const RowGroups& groups) {
  ORTM_LAUNCH((norm_forward_cuda<T, kCount, kCentered>),
              grid_of(f.columns ? blocks_for(f.rows, groups.rows()) : 0),
              static_cast<unsigned>(groups.threads), sizeof(ComputeOf<T>) * kWarp, args.context, f);
}

template <class T, bool kCentered>
void run_norm_forward(const KernelArgs& args, NormForward<T> f) {
  const NormShape shape = norm_shape(args.facts.outputs[0].layout.sizes, args.facts.node().attrs);
  f.rows = shape.rows;
  f.columns = shape.columns;
  f.epsilon = static_cast<ComputeOf<T>>(args.facts.node().attrs.number("epsilon", 1e-5));
  const RowGroups groups = row_groups(f.columns, kHeldElements, kMostRowThreads);
  f.lanes = groups.lanes;
  if (rows_are_vectors<T>(f.columns, f.x, f.skip, f.scale, f.bias, f.y, f.sum)) {
    launch_norm_forward<T, kVectorCount<T>, kCentered>(args, f, groups);
  } else {
    launch_norm_forward<T, 1, kCentered>(args, f, groups);
  }
}

// --- gradient ------------------------------------------------------------------------------------
template <class T>
struct NormBackward {
  using C = ComputeOf<T>;
  const T *dy = nullptr, *x = nullptr, *scale = nullptr;
  const C *mean = nullptr, *inv_std_dev = nullptr;
  T* dx = nullptr;
  T *dscale = nullptr, *dbias = nullptr;
  C* partials = nullptr;  // [row blocks, 1 or (kCentered) 2, columns]
  int64_t rows = 0, columns = 0;
  int lanes = 1;
};

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

template <class T, int kCount, bool kCentered>
__global__ __launch_bounds__(kMostRowThreads) void norm_backward_cuda(
    ORTM_GRID_CONSTANT(NormBackward<T>) b) {
  using C = ComputeOf<T>;
  ORTM_DYNAMIC_SHARED(GradientSums<C>, scratch);
  const RowOfThread at(b.lanes, b.rows);
  const int64_t base = at.row * b.columns;
  // Values of a step: g = dy scale, then h.
  HeldRow<C, kCount, 2 * kCount, kHeldElements / kCount> row(at.exists ? b.columns : 0, at.lane,
                                                             b.lanes);
  using Values = C[2 * kCount];
  const C mean = kCentered && at.exists ? b.mean[at.row] : C(0);
  const C inv = at.exists ? b.inv_std_dev[at.row] : C(0);
  const auto load = [&](int64_t i, Values& v) {
    load_computed<T, kCount>(v, b.dy + base + i);
    load_computed<T, kCount>(v + kCount, b.x + base + i);
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
    store_computed<T, kCount>(b.dx + base + i, v);
  });
}

// Column sums: blocks of 32 groups of columns by 8 rows.
inline constexpr int kColumnThreads = 32, kRowThreads = 8;

/// Adds up `values` over threadIdx.y; thread 0 of each column gets the sums. `scratch`: kValues per
/// thread of the block.
template <int kValues, class S>
__device__ __forceinline__ void add_over_rows(S (&values)[kValues], S* scratch) {
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
#pragma unroll
  for (int k = 0; k < kValues; ++k) scratch[(y * kValues + k) * kColumnThreads + x] = values[k];
  __syncthreads();
  if (y > 0) return;
  for (int other = 1; other < kRowThreads; ++other)
#pragma unroll
    for (int k = 0; k < kValues; ++k)
      values[k] += scratch[(other * kValues + k) * kColumnThreads + x];
}

// partials[block] = column sums of dy h and, if centered, of dy over a block of rows.
template <class T, int kCount, bool kCentered>
__global__ __launch_bounds__(kColumnThreads* kRowThreads) void norm_column_sums_cuda(
    ORTM_GRID_CONSTANT(NormBackward<T>) b, int64_t rows_per_part, int64_t tiles) {
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
      load_computed<T, kCount>(dy, b.dy + row * b.columns + column);
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

/// out[c] = sum over parts of partials[part * stride + c].
template <class T>
__global__ __launch_bounds__(kColumnThreads* kRowThreads) void add_partials_cuda(
    const ComputeOf<T>* partials, int64_t parts, int64_t stride, int64_t columns, T* out) {
  ORTM_DYNAMIC_SHARED(double, scratch);
  const int64_t column = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  double sum[1] = {0};
  if (column < columns) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += kRowThreads)
      sum[0] += static_cast<double>(partials[part * stride + column]);
  }
  add_over_rows(sum, scratch);
  if (threadIdx.y == 0 && column < columns) out[column] = stored<T>(sum[0]);
}

template <bool kCentered>
size_t norm_grad_workspace(const StepFacts& facts) {
  const NormShape shape = norm_shape(facts.inputs[1].layout.sizes, facts.node().attrs);
  const size_t width = facts.inputs[1].dtype == DType::Float64 ? 8 : 4;
  return static_cast<size_t>(row_blocks(shape.rows) * (kCentered ? 2 : 1) * shape.columns) * width;
}

/// First the column sums, then dx, then the other gradients: each output may take the storage of an
/// operand of its size.
template <class T, int kCount, bool kCentered>
void launch_norm_backward(const KernelArgs& args, const NormBackward<T>& b,
                          const RowGroups& groups) {
  using C = ComputeOf<T>;
  constexpr int kSums = kCentered ? 2 : 1;
  const int64_t parts = row_blocks(b.rows);
  const int64_t tiles = blocks_for(b.columns, kColumnThreads * kCount);
  const dim3 block(kColumnThreads, kRowThreads);
  constexpr size_t kThreads = kColumnThreads * kRowThreads;
  if (b.dscale || b.dbias)
    ORTM_LAUNCH((norm_column_sums_cuda<T, kCount, kCentered>), grid_of(parts * tiles), block,
                sizeof(C) * kSums * kCount * kThreads, args.context, b, rows_per_block(b.rows),
                tiles);
  ORTM_LAUNCH((norm_backward_cuda<T, kCount, kCentered>),
              grid_of(b.columns ? blocks_for(b.rows, groups.rows()) : 0),
              static_cast<unsigned>(groups.threads), sizeof(GradientSums<C>) * kWarp, args.context,
              b);
  T* const sums[] = {b.dscale, b.dbias};
  for (int s = 0; s < kSums; ++s)
    if (sums[s])
      ORTM_LAUNCH(add_partials_cuda<T>, grid_of(blocks_for(b.columns, kColumnThreads)), block,
                  sizeof(double) * kThreads, args.context, b.partials + s * b.columns, parts,
                  kSums * b.columns, b.columns, sums[s]);
}

template <class T, bool kCentered>
void run_norm_backward(const KernelArgs& args, NormBackward<T> b) {
  const NormShape shape = norm_shape(args.facts.inputs[1].layout.sizes, args.facts.node().attrs);
  b.rows = shape.rows;
  b.columns = shape.columns;
  b.partials = static_cast<ComputeOf<T>*>(args.workspace);
  const RowGroups groups = row_groups(b.columns, kHeldElements, kMostRowThreads);
  b.lanes = groups.lanes;
  if (rows_are_vectors<T>(b.columns, b.dy, b.x, b.scale, b.dx)) {
    launch_norm_backward<T, kVectorCount<T>, kCentered>(args, b, groups);
  } else {
    launch_norm_backward<T, 1, kCentered>(args, b, groups);
  }
}

}  // namespace ortmodule::cuda
