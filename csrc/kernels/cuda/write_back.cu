// WriteBack: the new contents of buffers that forward changes (statistics of batch norms, counters)
// into their memory: dense tensors of any types, each copied to the result of its number, all in
// one launch for each table. Bytes moved: each operand and each result once.
#include "kernels/cuda/tensor_table.cuh"

namespace ortmodule::cuda {
namespace {

using Table = TensorTable<2>;
/// Bytes of a thread at a time.
constexpr int kBytes = static_cast<int>(kVectorBytes);

__global__ void __launch_bounds__(kTableThreads)
    copy_tensors_cuda(ORTM_GRID_CONSTANT(Table) table) {
  const int tensor = table.tensor_of(blockIdx.x);
  const int64_t begin =
      static_cast<int64_t>(blockIdx.x - table.first_chunk[tensor]) * kChunkElements;
  const int64_t rest = table.elements[tensor] - begin;
  const int64_t count = rest < kChunkElements ? rest : kChunkElements;
  const uint8_t* const from = static_cast<const uint8_t*>(table.data[0][tensor]) + begin;
  uint8_t* const to = static_cast<uint8_t*>(table.data[1][tensor]) + begin;
  const bool vectors = is_aligned<uint8_t, kBytes>(from) && is_aligned<uint8_t, kBytes>(to);
  for (int64_t at = int64_t{kBytes} * threadIdx.x; at < count; at += kBytes * kTableThreads) {
    const int some = static_cast<int>(count - at < kBytes ? count - at : kBytes);
    uint8_t bytes[kBytes];
    load_some(bytes, from + at, some, vectors);
    store_some(to + at, bytes, some, vectors);
  }
}

void write_back(const KernelArgs& args) {
  for_each_table<2>(
      args.in.size(), [&](size_t i) { return args.in[i].byte_count(); },
      [&](int list, size_t i) { return (list == 0 ? args.in[i] : args.out[i]).data; },
      [&](const Table& table) {
        ORTM_LAUNCH(copy_tensors_cuda, grid_of(table.first_chunk[table.tensors]), kTableThreads, 0,
                    args.context, table);
      });
}

REGISTER_KERNEL({.op = "WriteBack",
                 .name = "write_back_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = write_back,
                 .layout = LayoutRule::Any});

}  // namespace
}  // namespace ortmodule::cuda
