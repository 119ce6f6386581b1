// PackSequence and PadSequence as in cpu/pack_sequence.cpp. A thread copies an element of a row.
#include "kernels/cuda/packed_batch.cuh"
#include "kernels/dtype_dispatch.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

/// A padded batch: the elements of a row, and where a row of a step lies.
struct PaddedBatch {
  int64_t steps, batch, width;
  bool batch_first;

  PaddedBatch(const KernelArgs& args, const Sizes& sizes)
      : width(1), batch_first(args.facts.node().attrs.flag("layout")) {
    steps = sizes[batch_first ? 1 : 0];
    batch = sizes[batch_first ? 0 : 1];
    for (size_t d = 2; d < sizes.size(); ++d) width *= sizes[d];
  }
  __device__ int64_t offset(int64_t step, int64_t row) const {
    return (batch_first ? row * steps + step : step * batch + row) * width;
  }
};

size_t table_bytes(const StepFacts& facts) {
  return static_cast<size_t>(facts.inputs[1].layout.sizes[0] + 1) * sizeof(int64_t);
}

const int64_t* packed_starts(const KernelArgs& args, const PaddedBatch& padded, int64_t rows) {
  const int64_t steps = args.in[1].sizes[0];
  if (steps > padded.steps)
    throw Error(str("[PackedSequence] a padded batch must have the ", steps,
                    " steps of the batch sizes, but found ", padded.steps));
  auto* starts = static_cast<int64_t*>(args.workspace);
  fill_packed_starts(args.in[1], padded.batch, rows, starts, args.context);
  return starts;
}

template <class T>
__global__ __launch_bounds__(kThreads) void pack_cuda(PaddedBatch p, const int64_t* starts,
                                                      int64_t packed_steps, const T* x, T* data) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packed_steps * p.batch * p.width) return;
  const int64_t column = i % p.width, row = i / p.width % p.batch, step = i / p.width / p.batch;
  if (row < starts[step + 1] - starts[step])
    data[(starts[step] + row) * p.width + column] = x[p.offset(step, row) + column];
}

template <class T>
__global__ __launch_bounds__(kThreads) void pad_cuda(PaddedBatch p, const int64_t* starts,
                                                     int64_t packed_steps, T value, const T* data,
                                                     T* x) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.steps * p.batch * p.width) return;
  const int64_t column = i % p.width, row = i / p.width % p.batch, step = i / p.width / p.batch;
  const bool is_there = step < packed_steps && row < starts[step + 1] - starts[step];
  x[p.offset(step, row) + column] =
      is_there ? data[(starts[step] + row) * p.width + column] : value;
}

void run_pack(const KernelArgs& args) {
  const PaddedBatch padded(args, args.facts.inputs[0].layout.sizes);
  const int64_t* starts = packed_starts(args, padded, args.facts.outputs[0].layout.sizes[0]);
  const int64_t steps = args.in[1].sizes[0];
  dispatch_width(size_of(args.in[0].dtype), [&]<class T> {
    ORTM_LAUNCH(pack_cuda<T>, grid_of(blocks_for(steps * padded.batch * padded.width, kThreads)),
                kThreads, 0, args.context, padded, starts, steps, args.in[0].as<T>(),
                args.out[0].as<T>());
  });
}

template <class T>
void pad(const KernelArgs& args, T value) {
  const PaddedBatch padded(args, args.facts.outputs[0].layout.sizes);
  const int64_t* starts = packed_starts(args, padded, args.facts.inputs[0].layout.sizes[0]);
  ORTM_LAUNCH(pad_cuda<T>,
              grid_of(blocks_for(padded.steps * padded.batch * padded.width, kThreads)), kThreads,
              0, args.context, padded, starts, args.in[1].sizes[0], value, args.in[0].as<T>(),
              args.out[0].as<T>());
}

void run_pad(const KernelArgs& args) {
  const double value = args.facts.node().attrs.number("value");
  if (is_complex(args.in[0].dtype))  // only ever padded with zero
    dispatch_width(size_of(args.in[0].dtype), [&]<class T> { pad(args, T{}); });
  else
    dispatch_real(args.in[0].dtype, [&]<class T> { pad(args, stored<T>(value)); });
}

REGISTER_KERNEL({.op = "PackSequence",
                 .name = "pack_sequence_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_pack,
                 .workspace_bytes = table_bytes});
REGISTER_KERNEL({.op = "PadSequence",
                 .name = "pad_sequence_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_pad,
                 .workspace_bytes = table_bytes});

}  // namespace
}  // namespace ortmodule::cuda
