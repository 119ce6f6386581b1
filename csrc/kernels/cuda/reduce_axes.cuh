// Reductions over any axes of a row-major or channels-last tensor, for one combination of elements
// (Op).
// Method: dimensions, in the order of memory, collapse to alternating kept and reduced ones. If the
// innermost is reduced, a group of lanes or a block folds each output; if it is kept, each thread
// folds a few neighbouring columns, so that reads of a warp follow one another. Long reductions to
// few outputs are split over blocks; their partial results lie in the workspace and are combined,
// in an order of their number only, by a second kernel. Splits depend on the shape only and nothing
// is atomic, so every run gives the same bits. Float sums continue in double after kRun additions.
// Bytes moved: x once.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/axis.h"
#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/half_conversion.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/cuda/wide_divisor.h"
#include "kernels/dtype_dispatch.h"
#include "kernels/reduced_dims.h"

namespace ortmodule::cuda {

inline constexpr int kReduceThreads = 256;
inline constexpr int64_t kBlockColumns = 128;

/// Element offsets of positions in row-major order of some of x's dimensions.
struct ReduceSpace {
  int rank = 0;
  bool wide = false;  // positions exceed 32 bits
  FastDivisor divisors[kMaxRank];
  WideDivisor wide_divisors[kMaxRank];
  int64_t sizes[kMaxRank] = {}, strides[kMaxRank] = {};
  int64_t count = 1;

  void push(int64_t size, int64_t stride) {
    sizes[rank] = size;
    strides[rank] = stride;
    if (size > 0 && size < (int64_t{1} << 31))
      divisors[rank] = FastDivisor(static_cast<uint32_t>(size));
    if (size > 0) wide_divisors[rank] = WideDivisor(static_cast<uint64_t>(size));
    ++rank;
    count *= size;
    wide = count >= (int64_t{1} << 31);
  }
  __device__ __forceinline__ int64_t wide_offset(int64_t position) const {
    int64_t at = 0;
#pragma unroll 1
    for (int d = rank - 1; d > 0; --d) {
      const auto rest =
          static_cast<int64_t>(wide_divisors[d].quotient(static_cast<uint64_t>(position)));
      at += (position - rest * sizes[d]) * strides[d];
      position = rest;
    }
    return at + position * strides[0];
  }
  __device__ __forceinline__ int64_t offset(int64_t position) const {
    if (rank == 0) return 0;
    int64_t at = 0;
    if (wide) return wide_offset(position);
    uint32_t rest = static_cast<uint32_t>(position);
    for (int d = rank - 1; d > 0; --d) {
      const uint32_t quotient = divisors[d].quotient(rest);
      at += int64_t{rest - quotient * divisors[d].divisor} * strides[d];
      rest = quotient;
    }
    return at + rest * strides[0];
  }
};

/// What a reduction does, from the facts alone.
struct ReducePlan {
  ReduceSpace kept, reduced;  // all dimensions but a kept innermost one
  int64_t inner = 1;          // size of the innermost dimension if it is kept, else 1
  bool inner_reduced = true;
  bool consecutive = false;  // the elements of an output follow one another
  int64_t outputs = 1, per_output = 1;
  int64_t splits = 1, part = 1;  // parts of a reduction and positions in each
  double divisor = 1;            // of means
};

ReducePlan make_reduce_plan(const StepFacts& facts);

/// Integers of any width and bool, read as int64.
struct AnyInteger {};

template <class T>
struct ReduceSource {
  const T* data;
  DType dtype;
  __device__ __forceinline__ ComputeOf<T> at(int64_t i) const { return computed(data[i]); }
};
template <>
struct ReduceSource<AnyInteger> {
  const void* data;
  DType dtype;
  __device__ __forceinline__ int64_t at(int64_t i) const {
    switch (dtype) {
      case DType::Int64: return static_cast<const int64_t*>(data)[i];
      case DType::Int32: return static_cast<const int32_t*>(data)[i];
      case DType::Int16: return static_cast<const int16_t*>(data)[i];
      case DType::Int8: return static_cast<const int8_t*>(data)[i];
      default: return static_cast<const uint8_t*>(data)[i];  // uint8, bool
    }
  }
};

/// Where results go: partial ones to [splits, outputs], those of a single part to `out`.
template <class Partial>
struct ReduceTarget {
  Partial* partials;
  void* out;
  DType dtype;
  double divisor;
};

template <class Partial>
__device__ __forceinline__ void store_result(const ReduceTarget<Partial>& target, int64_t output,
                                             Partial value) {
  if (target.divisor != 1)
    value = static_cast<Partial>(static_cast<double>(value) / target.divisor);
  const auto store = [&](auto* to) {
    using R = std::remove_pointer_t<decltype(to)>;
    if constexpr (std::is_same_v<R, bool>) {
      to[output] = value != 0;
    } else {
      to[output] = stored<R>(value);
    }
  };
  switch (target.dtype) {
    case DType::Float32: return store(static_cast<float*>(target.out));
    case DType::Float64: return store(static_cast<double*>(target.out));
    case DType::Float16: return store(static_cast<Float16*>(target.out));
    case DType::BFloat16: return store(static_cast<BFloat16*>(target.out));
    case DType::Int64: return store(static_cast<int64_t*>(target.out));
    case DType::Int32: return store(static_cast<int32_t*>(target.out));
    case DType::Int16: return store(static_cast<int16_t*>(target.out));
    case DType::Int8: return store(static_cast<int8_t*>(target.out));
    case DType::UInt8: return store(static_cast<uint8_t*>(target.out));
    default: return store(static_cast<bool*>(target.out));
  }
}

template <class Partial>
__device__ __forceinline__ void put_result(const ReducePlan& plan,
                                           const ReduceTarget<Partial>& target, int64_t output,
                                           int64_t split, Partial value) {
  if (plan.splits == 1) {
    store_result(target, output, value);
  } else {
    target.partials[split * plan.outputs + output] = value;
  }
}

template <class Op>
struct CombinePartials {
  using Partial = typename Op::Partial;
  __device__ __forceinline__ Partial operator()(Partial a, Partial b) const {
    return Op::combine(a, b);
  }
};

// --- innermost dimension reduced -----------------------------------------------------------------
/// Vectors that a thread loads before it adds any.
inline constexpr int kReduceAhead = 4;

/// Adds a lane's part of `count` consecutive elements, whole vectors.
template <class Op, class T>
__device__ __forceinline__ void add_vectors(Accumulator<Op>& sum, const T* from, int64_t count,
                                            int lane, int lanes) {
  constexpr int kCount = kVectorCount<T>;
  using Vectors = Words<T, kCount>;
  const auto add = [&](const Vectors& elements) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum.add(static_cast<typename Op::C>(widened(elements[k])));
    sum.tick(kCount);
  };
  const int64_t step = int64_t{lanes} * kCount;
  int64_t i = int64_t{lane} * kCount;
  for (; i + (kReduceAhead - 1) * step < count; i += kReduceAhead * step) {
    Vectors elements[kReduceAhead];
#pragma unroll
    for (int k = 0; k < kReduceAhead; ++k) elements[k] = Vectors::load(from + i + k * step);
#pragma unroll
    for (int k = 0; k < kReduceAhead; ++k) add(elements[k]);
  }
  for (; i < count; i += step) add(Vectors::load(from + i));
}

template <class Op, class T>
__global__ __launch_bounds__(512, 1) void reduce_rows_cuda(
    ORTM_GRID_CONSTANT(ReducePlan) plan, ReduceSource<T> x,
    ORTM_GRID_CONSTANT(ReduceTarget<typename Op::Partial>) target, int lanes, bool vectors) {
  using Partial = typename Op::Partial;
  ORTM_DYNAMIC_SHARED(Partial, scratch);
  const int rows = static_cast<int>(blockDim.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t item = int64_t{blockIdx.x} * rows + static_cast<int>(threadIdx.x) / lanes;
  const int64_t split = plan.splits == 1 ? item >= plan.outputs : item / plan.outputs;
  const int64_t output = item - split * plan.outputs;
  const bool exists = split < plan.splits;  // all lanes take part in what follows
  const int64_t begin = split * plan.part;
  const int64_t end = !exists                               ? begin
                      : begin + plan.part < plan.per_output ? begin + plan.part
                                                            : plan.per_output;
  const int64_t base = exists ? plan.kept.offset(output) : 0;
  Accumulator<Op> sum;
  if constexpr (!std::is_same_v<T, AnyInteger>) {
    if (vectors) {
      add_vectors(sum, x.data + base + begin, end - begin, lane, lanes);
    }
  }
  if (!vectors) {
    for (int64_t i = begin + lane; i < end; i += lanes) {
      sum.add(static_cast<typename Op::C>(
          x.at(base + (plan.consecutive ? i : plan.reduced.offset(i)))));
      sum.tick(1);
    }
  }
  const Partial result = row_reduce(sum.result(), CombinePartials<Op>(), lanes, scratch);
  if (lane == 0 && exists) put_result(plan, target, output, split, result);
}

// --- innermost dimension kept --------------------------------------------------------------------
/// Adds rows begin, begin + step, ... of kColumns neighbouring columns, row r at offset(r), kAhead
/// of them loaded at once.
template <int kAhead, int kColumns, class Op, class T, class Offset>
__device__ __forceinline__ void add_column_vectors(Accumulator<Op> (&sums)[kColumns], const T* from,
                                                   int64_t begin, int64_t end, int step,
                                                   const Offset& offset) {
  static_assert(kRun % kAhead == 0);
  using Vectors = Words<T, kColumns>;
  const auto add = [&](const Vectors& elements) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k)
      sums[k].add(static_cast<typename Op::C>(widened(elements[k])));
  };
  int64_t row = begin;
  int added = 0;
  for (; row + (kAhead - 1) * step < end; row += kAhead * step) {
    Vectors elements[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) elements[k] = Vectors::load(from + offset(row + k * step));
#pragma unroll
    for (int k = 0; k < kAhead; ++k) add(elements[k]);
    added += kAhead;
    if (added < kRun) continue;
    added = 0;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) sums[k].carry();
  }
  // Fewer than kAhead, so that the run stays within its limit.
  for (; row < end; row += step) add(Vectors::load(from + offset(row)));
}

/// Blocks that a multiprocessor shall hold; 0 leaves it to the compiler, which for integers, whose
/// types are told apart at each element, spills registers to make room for a fifth.
template <class T>
inline constexpr int kColumnBlocks = std::is_same_v<T, AnyInteger> ? 4 : 0;

// A block: blockDim.x groups of kColumns columns, blockDim.y rows at a time.
template <class Op, class T, int kColumns>
__global__ __launch_bounds__(kReduceThreads, kColumnBlocks<T>) void reduce_columns_cuda(
    ORTM_GRID_CONSTANT(ReducePlan) plan, ReduceSource<T> x,
    ORTM_GRID_CONSTANT(ReduceTarget<typename Op::Partial>) target, uint32_t tiles) {
  using Partial = typename Op::Partial;
  ORTM_DYNAMIC_SHARED(Partial, scratch);  // [blockDim.y, blockDim.x, kColumns]
  const uint32_t splits = static_cast<uint32_t>(plan.splits), rest = blockIdx.x / tiles;
  const int64_t tile = blockIdx.x - rest * tiles, outer = rest / splits;
  const int64_t split = rest - static_cast<uint32_t>(outer) * splits;
  const int64_t column = (tile * blockDim.x + threadIdx.x) * kColumns;
  const int64_t begin = split * plan.part;
  const int64_t end = begin + plan.part < plan.per_output ? begin + plan.part : plan.per_output;
  const int64_t base = plan.kept.offset(outer) + column;
  const bool exists = column < plan.inner;
  Accumulator<Op> sums[kColumns];
  if (exists) {
    if constexpr (kColumns == 1) {
      for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
        sums[0].add(static_cast<typename Op::C>(x.at(base + plan.reduced.offset(row))));
        sums[0].tick(1);
      }
    } else {
      const int64_t first = begin + threadIdx.y;
      const int step = static_cast<int>(blockDim.y);
      if (plan.reduced.rank == 1)
        add_column_vectors<kReduceAhead>(sums, x.data + base, first, end, step, [&](int64_t row) {
          return row * plan.reduced.strides[0];
        });
      else
        add_column_vectors<1>(sums, x.data + base, first, end, step,
                              [&](int64_t row) { return plan.reduced.offset(row); });
    }
  }
  const int width = static_cast<int>(blockDim.x) * kColumns;
  const int own = static_cast<int>(threadIdx.x) * kColumns;
#pragma unroll
  for (int k = 0; k < kColumns; ++k)
    scratch[static_cast<int>(threadIdx.y) * width + own + k] = sums[k].result();
  for (int half = static_cast<int>(blockDim.y) / 2; half > 0; half /= 2) {
    __syncthreads();
    const int y = static_cast<int>(threadIdx.y);
    if (y < half) {
#pragma unroll
      for (int k = 0; k < kColumns; ++k)
        scratch[y * width + own + k] =
            Op::combine(scratch[y * width + own + k], scratch[(y + half) * width + own + k]);
    }
  }
  if (threadIdx.y == 0 && exists) {
#pragma unroll 1  // one copy of what stores all types
    for (int k = 0; k < kColumns; ++k)
      put_result(plan, target, outer * plan.inner + column + k, split, scratch[own + k]);
  }
}

// --- the whole -----------------------------------------------------------------------------------
// A warp of outputs by kCombineRuns runs of parts, which are loaded several at a time: there are
// few outputs, so that waiting would be all of the time.
inline constexpr int kCombineRuns = 8, kCombineAhead = 8;

template <class Op>
__global__ __launch_bounds__(kWarp* kCombineRuns) void combine_parts_cuda(
    ORTM_GRID_CONSTANT(ReduceTarget<typename Op::Partial>) target, int64_t outputs,
    int64_t splits) {
  using Partial = typename Op::Partial;
  ORTM_DYNAMIC_SHARED(Partial, scratch);  // [kCombineRuns, kWarp]
  const int x = static_cast<int>(threadIdx.x), run = static_cast<int>(threadIdx.y);
  const int64_t output = int64_t{blockIdx.x} * kWarp + x;
  const int64_t of_run = (splits + kCombineRuns - 1) / kCombineRuns;
  const int64_t end = (run + 1) * of_run < splits ? (run + 1) * of_run : splits;
  const Partial* from = target.partials + (output < outputs ? output : 0);
  Partial result = Op::start();
  int64_t s = run * of_run;
  for (; s + kCombineAhead <= end; s += kCombineAhead) {
    Partial parts[kCombineAhead];
#pragma unroll
    for (int k = 0; k < kCombineAhead; ++k) parts[k] = from[(s + k) * outputs];
#pragma unroll
    for (int k = 0; k < kCombineAhead; ++k) result = Op::combine(result, parts[k]);
  }
  for (; s < end; ++s) result = Op::combine(result, from[s * outputs]);
  scratch[run * kWarp + x] = result;
  __syncthreads();
  if (run > 0 || output >= outputs) return;
  for (int other = 1; other < kCombineRuns; ++other)
    result = Op::combine(result, scratch[other * kWarp + x]);
  store_result(target, output, result);
}

template <class Op, class T>
void launch_rows(const KernelArgs& args, const ReducePlan& plan, const ReduceSource<T>& x,
                 const ReduceTarget<typename Op::Partial>& target) {
  bool vectors = false;
  int each = 4;
  if constexpr (!std::is_same_v<T, AnyInteger>) {
    constexpr int64_t kCount = kVectorCount<T>;
    // Every part of every output must begin at a multiple of a vector and hold whole ones.
    vectors = plan.consecutive && plan.per_output % kCount == 0 && plan.part % kCount == 0 &&
              is_aligned<T, kVectorCount<T>>(x.data);
    if (vectors) each = kVectorCount<T>;
  }
  const int64_t count = std::min(plan.part, plan.per_output);
  RowGroups groups = row_groups(count, each);
  // Of vectors a warp takes as many as its lanes load ahead: a block would wait for itself.
  if (vectors && groups.lanes > kWarp)
    groups = row_groups(std::max(count, int64_t{kWarp} * each * kReduceAhead), each * kReduceAhead);
  ORTM_LAUNCH((reduce_rows_cuda<Op, T>),
              grid_of(blocks_for(plan.outputs * plan.splits, groups.rows())),
              static_cast<unsigned>(groups.threads), sizeof(typename Op::Partial) * kWarp,
              args.context, plan, x, target, groups.lanes, vectors);
}

template <class Op, class T, int kColumns>
void launch_columns(const KernelArgs& args, const ReducePlan& plan, const ReduceSource<T>& x,
                    const ReduceTarget<typename Op::Partial>& target) {
  // No wider than what the plan counts blocks by.
  unsigned width = 1;
  while (width < kWarp && width * kColumns < std::min(plan.inner, kBlockColumns)) width *= 2;
  const int64_t tiles = blocks_for(plan.inner, int64_t{width} * kColumns);
  ORTM_LAUNCH((reduce_columns_cuda<Op, T, kColumns>),
              grid_of(plan.kept.count * plan.splits * tiles), dim3(width, kReduceThreads / width),
              sizeof(typename Op::Partial) * kReduceThreads * kColumns, args.context, plan, x,
              target, static_cast<uint32_t>(tiles));
}

template <class Op, class T>
void reduce_as(const KernelArgs& args, const ReducePlan& plan) {
  using Partial = typename Op::Partial;
  const ReduceSource<T> x{static_cast<decltype(ReduceSource<T>::data)>(args.in[0].data),
                          args.in[0].dtype};
  const ReduceTarget<Partial> target{static_cast<Partial*>(args.workspace), args.out[0].data,
                                     args.out[0].dtype, plan.divisor};
  if (plan.per_output > 0) {
    if (plan.inner_reduced) {
      launch_rows<Op>(args, plan, x, target);
    } else {
      bool vectors = false;
      if constexpr (!std::is_same_v<T, AnyInteger>) {
        constexpr int kCount = kVectorCount<T>;
        vectors = plan.inner % kCount == 0 && is_aligned<T, kCount>(x.data);
        if (vectors) launch_columns<Op, T, kCount>(args, plan, x, target);
      }
      if (!vectors) launch_columns<Op, T, 1>(args, plan, x, target);
    }
  }
  if (plan.splits > 1 || plan.per_output == 0)
    ORTM_LAUNCH(combine_parts_cuda<Op>, grid_of(blocks_for(plan.outputs, kWarp)),
                dim3(kWarp, kCombineRuns), sizeof(Partial) * kWarp * kCombineRuns, args.context,
                target, plan.outputs, plan.per_output == 0 ? int64_t{0} : plan.splits);
}

/// KernelDef::run of a reduction. Op<T> is asked for floats and AnyInteger.
template <template <class> class Op>
void run_reduce(const KernelArgs& args) {
  const ReducePlan& plan = *static_cast<const ReducePlan*>(args.prepared);
  if (plan.outputs == 0) return;
  if (!is_floating(args.in[0].dtype)) return reduce_as<Op<AnyInteger>, AnyInteger>(args, plan);
  dispatch_float(args.in[0].dtype, [&]<class T> { reduce_as<Op<T>, T>(args, plan); });
}

std::shared_ptr<const void> prepare_reduce(const StepFacts& facts);
size_t reduce_workspace(const StepFacts& facts);

/// How elements stored as T are computed: integers as int64.
template <class T>
struct ReduceCompute {
  using type = ComputeOf<T>;
};
template <>
struct ReduceCompute<AnyInteger> {
  using type = int64_t;
};

}  // namespace ortmodule::cuda

#define ORTM_REGISTER_REDUCTION(op_name, kernel_name, Op, why_not, ...) \
  REGISTER_KERNEL({.op = op_name,                                       \
                   .name = kernel_name,                                 \
                   .device = Device::CUDA,                              \
                   .dtypes = kRealTypes,                                \
                   .run = run_reduce<Op>,                               \
                   .unsupported = why_not,                              \
                   .workspace_bytes = reduce_workspace,                 \
                   .prepare = prepare_reduce,                           \
                   __VA_ARGS__})
#define ORTM_REGISTER_IN_ORDER(op_name, kernel_name, Op)                          \
  ORTM_REGISTER_REDUCTION(op_name, kernel_name "_cuda", Op, in_order_unsupported, \
                          .layout = LayoutRule::MemoryFormat)
// Channels-last x is copied.
#define ORTM_REGISTER_ROW_MAJOR(op_name, kernel_name, Op)                                 \
  ORTM_REGISTER_REDUCTION(op_name, kernel_name "_row_major_cuda", Op, reduce_unsupported, \
                          .layout = LayoutRule::Contiguous, .priority = -1)
