// GatherElements and ScatterElements as in cpu/gather_elements.cpp.
// Method: one thread per gathered element. Scattered lines along the axis are independent; each has
// one owner, so places receive their updates in order, without atomics: a thread for short lines,
// else a warp, whose lanes read 32 updates at a time and hand those of one place to the first lane
// that has it. A long line is thus walked by one warp (32 shuffles per 32 updates); with few long
// lines the GPU is mostly idle. Bytes moved: each tensor once, data twice (copied to y first).
#include "kernels/axis.h"
#include "kernels/cuda/fast_divisor.h"
#include "kernels/cuda/index_source.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/indices.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kShortLine = 16;

/// Offsets into indices and data from a position in the space of the indices, as 32-bit number.
struct ElementSpace {
  int rank = 0;
  FastDivisor sizes[kMaxRank];
  int64_t indices[kMaxRank] = {}, data[kMaxRank] = {};

  ElementSpace(const IterationSpace& space, const Coords& part_sizes) : rank(space.rank) {
    for (int d = 0; d < rank; ++d) {
      sizes[d] = FastDivisor(static_cast<uint32_t>(part_sizes[d]));
      indices[d] = space.strides[0][d];
      data[d] = space.strides[1][d];
    }
  }
  __device__ __forceinline__ void find_offsets(uint32_t position, int64_t& index_at,
                                               int64_t& data_at) const {
    for (int d = rank - 1; d >= 0; --d) {
      const uint32_t rest = d ? sizes[d].quotient(position) : 0;
      const int64_t coordinate = position - rest * sizes[d].divisor;
      index_at += coordinate * indices[d];
      data_at += coordinate * data[d];
      position = rest;
    }
  }
};

struct Elements {
  IterationSpace all, lines;  // operand 0: indices, 1: data without the axis; lines: no axis
  int64_t length = 1;         // of indices along the axis
  int64_t data_stride = 1, index_stride = 1;  // along the axis
  int64_t axis_size = 1;                      // of data
};

std::shared_ptr<const void> prepare_elements(const StepFacts& facts) {
  const Sizes &data = facts.inputs[0].layout.sizes, &indices = facts.inputs[1].layout.sizes;
  const auto axis =
      static_cast<size_t>(normalized_axis(facts.node().attrs.integer("axis", 0), data.size()));
  auto e = std::make_shared<Elements>();
  Sizes data_strides = contiguous_strides(data);
  const Sizes index_strides = contiguous_strides(indices);
  e->length = indices[axis];
  e->data_stride = data_strides[axis];
  e->index_stride = index_strides[axis];
  e->axis_size = data[axis];
  data_strides[axis] = 0;
  e->all = iteration_space(indices, {index_strides, data_strides});
  Sizes line_sizes = indices;
  line_sizes[axis] = 1;
  e->lines = iteration_space(line_sizes, {index_strides, data_strides});
  return e;
}

template <class Word>
__global__ __launch_bounds__(kThreads) void gather_elements_cuda(
    ORTM_GRID_CONSTANT(ElementSpace) space, ORTM_GRID_CONSTANT(IndexSource) indices,
    const Word* data, Word* y, int64_t index_at, int64_t data_at, int64_t data_stride,
    uint32_t total) {
  const uint32_t position = blockIdx.x * kThreads + threadIdx.x;
  if (position >= total) return;
  space.find_offsets(position, index_at, data_at);
  y[index_at] = data[data_at + indices.at(index_at) * data_stride];
}

void run_gather_elements(const KernelArgs& args) {
  const Elements& e = *static_cast<const Elements*>(args.prepared);
  const IndexSource indices(args, e.axis_size, "GatherElements");
  dispatch_width(size_of(args.in[0].dtype), [&]<class Word> {
    for_each_part(e.all, [&](const Coords& sizes, const std::vector<int64_t>& at, int64_t total) {
      ORTM_LAUNCH(gather_elements_cuda<Word>, grid_of(blocks_for(total, kThreads)), kThreads, 0,
                  args.context, ElementSpace(e.all, sizes), indices, args.in[0].as<Word>(),
                  args.out[0].as<Word>(), at[0], at[1], e.data_stride,
                  static_cast<uint32_t>(total));
    });
  });
}

// --- scatter -------------------------------------------------------------------------------------
template <class T>
using SumOf = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, ComputeOf<T>, int64_t>;

template <class T>
struct Scatter {
  const T* updates;
  T* y;
  int64_t length, data_stride, index_stride;
  bool add;  // else the last update stays

  /// The value of a place after an update; sums are rounded at every step, as in memory.
  __device__ __forceinline__ SumOf<T> updated(SumOf<T> place, SumOf<T> update) const {
    return add ? static_cast<SumOf<T>>(computed(stored<T>(place + update))) : update;
  }
};

template <class T>
__global__ __launch_bounds__(kThreads) void scatter_short_lines_cuda(
    ORTM_GRID_CONSTANT(ElementSpace) space, ORTM_GRID_CONSTANT(IndexSource) indices, Scatter<T> s,
    int64_t index_at, int64_t data_at, uint32_t lines) {
  const uint32_t line = blockIdx.x * kThreads + threadIdx.x;
  if (line >= lines) return;
  space.find_offsets(line, index_at, data_at);
  for (int64_t i = 0; i < s.length; ++i) {
    const int64_t position = index_at + i * s.index_stride;
    T& place = s.y[data_at + indices.at(position) * s.data_stride];
    place = stored<T>(s.updated(static_cast<SumOf<T>>(computed(place)),
                                static_cast<SumOf<T>>(computed(s.updates[position]))));
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void scatter_long_lines_cuda(
    ORTM_GRID_CONSTANT(ElementSpace) space, ORTM_GRID_CONSTANT(IndexSource) indices, Scatter<T> s,
    int64_t index_at, int64_t data_at, uint32_t lines) {
  using S = SumOf<T>;
  const uint32_t line = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (line >= lines) return;  // whole warps
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  space.find_offsets(line, index_at, data_at);
  for (int64_t begin = 0; begin < s.length; begin += kWarp) {
    const int64_t i = begin + lane, position = index_at + i * s.index_stride;
    const int64_t index = i < s.length ? indices.at(position) : -1;
    const S update = index < 0 ? S(0) : static_cast<S>(computed(s.updates[position]));
    S value = index < 0 ? S(0) : static_cast<S>(computed(s.y[data_at + index * s.data_stride]));
    bool first = index >= 0;  // of the lanes with this index
    for (int other = 0; other < kWarp; ++other) {
      const int64_t other_index = __shfl_sync(kWholeWarp, index, other);
      const S other_update = __shfl_sync(kWholeWarp, update, other);
      if (other_index != index) continue;
      if (other < lane) first = false;
      value = s.updated(value, other_update);
    }
    __syncwarp();  // all have read what the first ones write
    if (first) s.y[data_at + index * s.data_stride] = stored<T>(value);
    __syncwarp();
  }
}

template <class T>
void scatter(const KernelArgs& args, const Elements& e, const IndexSource& indices) {
  const Scatter<T> s{
      args.in[2].as<T>(), args.out[0].as<T>(),
      e.length,           e.data_stride,
      e.index_stride,     args.facts.node().attrs.string("reduction", "add") == "add"};
  const bool is_short = e.length <= kShortLine;
  const int per_block = is_short ? kThreads : kThreads / kWarp;
  for_each_part(e.lines, [&](const Coords& sizes, const std::vector<int64_t>& at, int64_t total) {
    const dim3 grid = grid_of(blocks_for(total, per_block));
    const ElementSpace space(e.lines, sizes);
    const auto lines = static_cast<uint32_t>(total);
    if (is_short) {
      ORTM_LAUNCH(scatter_short_lines_cuda<T>, grid, kThreads, 0, args.context, space, indices, s,
                  at[0], at[1], lines);
    } else {
      ORTM_LAUNCH(scatter_long_lines_cuda<T>, grid, kThreads, 0, args.context, space, indices, s,
                  at[0], at[1], lines);
    }
  });
}

void run_scatter_elements(const KernelArgs& args) {
  const Elements& e = *static_cast<const Elements*>(args.prepared);
  const IndexSource indices(args, e.axis_size, "ScatterElements");
  const TensorView &data = args.in[0], &y = args.out[0];
  if (y.data != data.data && y.byte_count() > 0)
    check_launch("copy of ScatterElements",
                 cudaMemcpyAsync(y.data, data.data, y.byte_count(), cudaMemcpyDeviceToDevice,
                                 stream_of(args.context)));
  if (args.in[1].element_count() == 0) return;
  dispatch_real(data.dtype, [&]<class T> { scatter<T>(args, e, indices); });
}

REGISTER_KERNEL({.op = "GatherElements",
                 .name = "gather_elements_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_gather_elements,
                 .unsupported = elements_unsupported,
                 .prepare = prepare_elements});
REGISTER_KERNEL({.op = "ScatterElements",
                 .name = "scatter_elements_cuda",
                 .device = Device::CUDA,
                 .dtypes = kRealTypes,
                 .run = run_scatter_elements,
                 .unsupported = scatter_unsupported,
                 .prepare = prepare_elements});

}  // namespace
}  // namespace ortmodule::cuda
