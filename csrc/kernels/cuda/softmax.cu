// Softmax over any axis and its relatives:
//   y = exp(x - max) / sum exp(x - max)       SoftmaxGrad:    dx = y (dy - sum dy y)
//   y = x - max - log sum exp(x - max)        LogSoftmaxGrad: dx = dy - exp(y) sum dy
//   BiasSoftmax: y = softmax(x + bias), the sum rounded to the type of x as Add would.
// Method: a group of lanes or a block per row. Rows of whole vectors lie in registers
// (softmax_held.cuh). Others that fit are kept in shared memory, in the computation type, so that
// global memory is read once; longer ones are read again. Along an axis
// that is not the last one with many columns behind it, each thread takes a column, so that reads
// of a warp follow one another. A lane's sums continue in double after kRun additions, and so do
// those of lanes. Rows of only -infinity give NaN, as in PyTorch. Bytes moved: each operand and the
// result once.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/bias_softmax.h"
#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/softmax_held.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kEach = 4;  // neighbouring elements of a thread
constexpr int kMostThreads = 512;
constexpr int64_t kColumnRows = 32;  // columns behind the axis from which each thread takes one
constexpr int64_t kWarpRow = 1024;   // longest row that a warp does alone, without barriers
constexpr size_t kScratchBytes = kWarp * sizeof(double);

// How a launch walks rows.
struct RowShape {
  int64_t rows = 0, count = 0;  // count: elements of a row, `stride` apart
  int64_t stride = 1;
  int lanes = 1;         // threads of a row
  bool kept = false;     // the row lies in shared memory after its first pass
  bool vectors = false;  // kEach elements can be moved at once
};

// Operands of the row functions: elements of row `row` in the computation type.
template <class T>
struct Plain {
  const T* x;
  __device__ __forceinline__ void load(ComputeOf<T> (&to)[kEach], const RowShape& shape,
                                       int64_t base, int64_t, int64_t at, int count) const {
    T elements[kEach];
    if (shape.stride == 1) {
      load_some(elements, x + base + at, count, shape.vectors);
    } else {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        elements[e] = e < count ? x[base + (at + e) * shape.stride] : T{};
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) to[e] = widened(elements[e]);
  }
};

// Rows of the bias by broadcasting; its last dimension has stride `stride` or 0.
struct BiasRows {
  int rank = 0;
  FastDivisor sizes[kMaxRank];
  int64_t strides[kMaxRank] = {};
  int64_t stride = 1;
  __device__ __forceinline__ int64_t offset(int64_t row) const {
    int64_t at = 0;
    uint32_t rest = static_cast<uint32_t>(row);
    for (int d = rank - 1; d >= 0; --d) {
      const uint32_t quotient = sizes[d].quotient(rest);
      at += int64_t{rest - quotient * sizes[d].divisor} * strides[d];
      rest = quotient;
    }
    return at;
  }
};
template <class T>
struct Biased {
  Plain<T> x;
  const T* bias;
  BiasRows rows;
  __device__ __forceinline__ void load(ComputeOf<T> (&to)[kEach], const RowShape& shape,
                                       int64_t base, int64_t row, int64_t at, int count) const {
    x.load(to, shape, base, row, at, count);
    const int64_t first = rows.offset(row) + at * rows.stride;
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (e < count) to[e] = widened(narrowed(to[e] + widened(bias[first + e * rows.stride]), T{}));
  }
};

// One row as its group of lanes sees it: pass(body) calls body(values, count) for each run of kEach
// elements of this thread; write() does the same and stores the values afterwards.
template <class T, class Source>
class Row {
 public:
  using C = ComputeOf<T>;
  __device__ Row(const RowShape& shape, const Source& source, C* kept)
      : shape_(shape), source_(source), kept_(kept) {
    const int threads = static_cast<int>(threadIdx.x);
    lane_ = threads % shape.lanes;
    row_ =
        int64_t{blockIdx.x} * (static_cast<int>(blockDim.x) / shape.lanes) + threads / shape.lanes;
    // Lanes without a row take part in reductions with nothing to add.
    count_ = row_ < shape.rows ? shape.count : 0;
    base_ = row_ / shape.stride * shape.count * shape.stride + row_ % shape.stride;
    if (shape.kept) kept_ += threads / shape.lanes * ((shape.count + kEach - 1) / kEach * kEach);
  }

  template <class Body>
  __device__ __forceinline__ void pass(bool first, const Body& body) const {
    for (int64_t at = int64_t{lane_} * kEach; at < count_; at += int64_t{shape_.lanes} * kEach) {
      const int count = count_ - at < kEach ? static_cast<int>(count_ - at) : kEach;
      C values[kEach];
      if (first || !shape_.kept) {
        source_.load(values, shape_, base_, row_, at, count);
        if (shape_.kept) {
#pragma unroll
          for (int e = 0; e < kEach; ++e) kept_[at + e] = values[e];
        }
      } else {
#pragma unroll
        for (int e = 0; e < kEach; ++e) values[e] = kept_[at + e];
      }
      body(values, at, count);
    }
  }

  __device__ __forceinline__ void store(T* y, const C (&values)[kEach], int64_t at,
                                        int count) const {
    T elements[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) elements[e] = narrowed(values[e], T{});
    if (shape_.stride == 1) {
      store_some(y + base_ + at, elements, count, shape_.vectors);
    } else {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        if (e < count) y[base_ + (at + e) * shape_.stride] = elements[e];
    }
  }
  /// Another operand with the layout of y.
  __device__ __forceinline__ void load(const T* from, C (&to)[kEach], int64_t at, int count) const {
    Plain<T>{from}.load(to, shape_, base_, row_, at, count);
  }

 private:
  const RowShape& shape_;
  const Source& source_;
  C* kept_;
  int lane_;
  int64_t row_, count_, base_;
};

template <class T, class Source, bool log>
__global__ __launch_bounds__(kMostThreads) void softmax_cuda(ORTM_GRID_CONSTANT(RowShape) shape,
                                                             ORTM_GRID_CONSTANT(Source) x, T* y) {
  using C = ComputeOf<T>;
  ORTM_DYNAMIC_SHARED(double, scratch);
  const Row<T, Source> row(shape, x, reinterpret_cast<C*>(scratch + kWarp));
  C max = -std::numeric_limits<C>::infinity();
  row.pass(true, [&](const C(&values)[kEach], int64_t, int count) {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (e < count) max = MaxOp()(max, values[e]);
  });
  max = row_reduce(max, MaxOp(), shape.lanes, reinterpret_cast<C*>(scratch));
  Accumulator<LaneSum<C>> part;
  row.pass(false, [&](const C(&values)[kEach], int64_t, int count) {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (e < count) part.add(exp_in_row<T>(values[e] - max));
    part.tick(kEach);
  });
  const double sum = row_reduce(part.result(), AddOp(), shape.lanes, scratch);
  const C factor = static_cast<C>(log ? std::log(sum) : 1.0 / sum);
  row.pass(false, [&](C(&values)[kEach], int64_t at, int count) {
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      values[e] = log ? values[e] - max - factor : exp_in_row<T>(values[e] - max) * factor;
    row.store(y, values, at, count);
  });
}

template <class T, bool log>
__global__ __launch_bounds__(kMostThreads) void softmax_grad_cuda(ORTM_GRID_CONSTANT(RowShape)
                                                                      shape,
                                                                  ORTM_GRID_CONSTANT(Plain<T>) dy,
                                                                  const T* y, T* dx) {
  using C = ComputeOf<T>;
  ORTM_DYNAMIC_SHARED(double, scratch);
  const Row<T, Plain<T>> row(shape, dy, reinterpret_cast<C*>(scratch + kWarp));
  Accumulator<LaneSum<C>> part;
  row.pass(true, [&](const C(&values)[kEach], int64_t at, int count) {
    C other[kEach];
    if constexpr (!log) row.load(y, other, at, count);
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      if (e < count) part.add(log ? values[e] : values[e] * other[e]);
    part.tick(kEach);
  });
  const C sum = static_cast<C>(row_reduce(part.result(), AddOp(), shape.lanes, scratch));
  row.pass(false, [&](C(&values)[kEach], int64_t at, int count) {
    C other[kEach];
    row.load(y, other, at, count);
#pragma unroll
    for (int e = 0; e < kEach; ++e)
      values[e] = log ? values[e] - fast_exp(other[e]) * sum : other[e] * (values[e] - sum);
    row.store(dx, values, at, count);
  });
}

// --- launches ------------------------------------------------------------------------------------
struct RowLaunch {
  RowShape shape;
  dim3 grid, block;
  size_t shared_bytes = 0;
};

template <class T>
RowLaunch row_launch(const KernelArgs& args) {
  const AxisSplit split =
      split_at(args.facts.outputs[0].layout.sizes, args.facts.node().attrs.integer("axis", -1));
  RowLaunch launch;
  RowShape& shape = launch.shape;
  shape.rows = split.outer * split.inner;
  shape.count = split.axis;
  shape.stride = split.inner;
  RowGroups groups{1, 128};
  if (split.inner < kColumnRows) {
    groups = split.axis <= kWarpRow ? row_groups(split.axis, kEach, kWarp)
                                    : row_groups(split.axis, 2 * kEach, kMostThreads);
    shape.vectors = split.axis % kEach == 0;
    for (const TensorView& view : args.in) shape.vectors &= is_aligned<T, kEach>(view.data);
    shape.vectors &= is_aligned<T, kEach>(args.out[0].data);
    const size_t row_bytes =
        static_cast<size_t>(blocks_for(split.axis, kEach) * kEach) * sizeof(ComputeOf<T>);
    const size_t bytes = kScratchBytes + static_cast<size_t>(groups.rows()) * row_bytes;
    shape.kept = bytes <= kSharedBytes;
    launch.shared_bytes = shape.kept ? bytes : kScratchBytes;
  }
  shape.lanes = groups.lanes;
  launch.block = dim3(static_cast<unsigned>(groups.threads));
  launch.grid = split.axis == 0 ? grid_of(0) : grid_of(blocks_for(shape.rows, groups.rows()));
  return launch;
}

/// The launch of rows that registers hold (softmax_held.cuh), if these do.
template <class T>
bool held_launch(const KernelArgs& args, HeldRows& rows, RowGroups& groups) {
  constexpr int kCount = kVectorCount<T>;
  const AxisSplit split =
      split_at(args.facts.outputs[0].layout.sizes, args.facts.node().attrs.integer("axis", -1));
  const int64_t most = int64_t{kHeldInRow<T>} * kHeldThreads;
  bool fits = split.inner == 1 && split.axis > 0 && split.axis % kCount == 0 && split.axis <= most;
  for (const TensorView& view : args.in) fits &= is_aligned<T, kCount>(view.data);
  fits &= is_aligned<T, kCount>(args.out[0].data);
  if (!fits) return false;
  rows = {split.outer, static_cast<int>(split.axis), 1};
  groups = split.axis <= kWarp * kHeldInRow<T>
               ? row_groups(split.axis, kCount, kWarp)
               : row_groups(split.axis, kHeldInRow<T>, kHeldThreads);
  rows.lanes = groups.lanes;
  return true;
}

template <bool log>
void run_softmax(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    const T* x = args.in[0].as<T>();
    T* y = args.out[0].as<T>();
    HeldRows rows;
    RowGroups groups;
    if (held_launch<T>(args, rows, groups)) {
      ORTM_LAUNCH((softmax_held_cuda<T, log>), grid_of(blocks_for(rows.rows, groups.rows())),
                  static_cast<unsigned>(groups.threads), kScratchBytes, args.context, rows, x, y);
      return;
    }
    const RowLaunch launch = row_launch<T>(args);
    ORTM_LAUNCH((softmax_cuda<T, Plain<T>, log>), launch.grid, launch.block, launch.shared_bytes,
                args.context, launch.shape, Plain<T>{x}, y);
  });
}

template <bool log>
void run_softmax_grad(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    const T *dy = args.in[0].as<T>(), *y = args.in[1].as<T>();
    T* dx = args.out[0].as<T>();
    HeldRows rows;
    RowGroups groups;
    if (held_launch<T>(args, rows, groups)) {
      ORTM_LAUNCH((softmax_grad_held_cuda<T, log>), grid_of(blocks_for(rows.rows, groups.rows())),
                  static_cast<unsigned>(groups.threads), kScratchBytes, args.context, rows, dy, y,
                  dx);
      return;
    }
    const RowLaunch launch = row_launch<T>(args);
    ORTM_LAUNCH((softmax_grad_cuda<T, log>), launch.grid, launch.block, launch.shared_bytes,
                args.context, launch.shape, Plain<T>{dy}, y, dx);
  });
}

BiasRows bias_rows(const StepFacts& facts) {
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  const Sizes strides = broadcast_strides(facts.inputs[1].layout, sizes);
  BiasRows rows;
  rows.rank = static_cast<int>(sizes.size()) - 1;
  for (size_t d = 0; d + 1 < sizes.size(); ++d) {
    rows.sizes[d] = FastDivisor(static_cast<uint32_t>(std::max<int64_t>(sizes[d], 1)));
    rows.strides[d] = strides[d];
  }
  rows.stride = strides.back();
  return rows;
}

void run_bias_softmax(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    const RowLaunch launch = row_launch<T>(args);
    const Biased<T> source{{args.in[0].as<T>()}, args.in[1].as<T>(), bias_rows(args.facts)};
    ORTM_LAUNCH((softmax_cuda<T, Biased<T>, false>), launch.grid, launch.block, launch.shared_bytes,
                args.context, launch.shape, source, args.out[0].as<T>());
  });
}

Reason bias_unsupported(const StepFacts& facts) {
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  if (!sizes.empty() && element_count(sizes) / std::max<int64_t>(sizes.back(), 1) >= int64_t{1}
                                                                                         << 31)
    return "it has more than 2^31 rows";
  return bias_softmax_unsupported(facts);
}

#define ORTM_REGISTER_ROWS(op_name, kernel_name, run_function) \
  REGISTER_KERNEL({.op = op_name,                              \
                   .name = kernel_name,                        \
                   .device = Device::CUDA,                     \
                   .dtypes = kAllFloats,                       \
                   .run = run_function,                        \
                   .inplace = true})

ORTM_REGISTER_ROWS("Softmax", "softmax_cuda", run_softmax<false>);
ORTM_REGISTER_ROWS("LogSoftmax", "log_softmax_cuda", run_softmax<true>);
ORTM_REGISTER_ROWS("SoftmaxGrad", "softmax_grad_cuda", run_softmax_grad<false>);
ORTM_REGISTER_ROWS("LogSoftmaxGrad", "log_softmax_grad_cuda", run_softmax_grad<true>);
REGISTER_KERNEL({.op = "BiasSoftmax",
                 .name = "bias_softmax_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_bias_softmax,
                 .unsupported = bias_unsupported,
                 .input_rules = {LayoutRule::Contiguous, LayoutRule::Any},
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
