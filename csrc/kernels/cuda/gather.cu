// Gather as in cpu/gather.cpp. Method: rows are copied in the widest words that divide them, each
// by some lanes of a warp or by a block. Bytes moved: the rows that are read and y.
#include "kernels/axis.h"
#include "kernels/cuda/held_row.cuh"
#include "kernels/cuda/index_source.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/indices.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

template <class Word>
__global__ __launch_bounds__(kThreads) void gather_rows_cuda(const Word* data,
                                                             ORTM_GRID_CONSTANT(IndexSource)
                                                                 indices,
                                                             Word* y, int64_t rows, int64_t count,
                                                             int64_t words, int lanes) {
  const RowOfThread at(lanes, rows);
  if (!at.exists) return;
  const int64_t outer = at.row / count;
  const Word* from = data + (outer * indices.size + indices.at(at.row - outer * count)) * words;
  Word* to = y + at.row * words;
#pragma unroll 4
  for (int64_t i = at.lane; i < words; i += lanes) to[i] = from[i];
}

void run_gather(const KernelArgs& args) {
  const AxisSplit split =
      split_at(args.facts.inputs[0].layout.sizes, args.facts.node().attrs.integer("axis", 0));
  const IndexSource indices(args, split.axis, "Gather");
  const int64_t count = args.in[1].element_count();
  const int64_t row_bytes = split.inner * static_cast<int64_t>(size_of(args.in[0].dtype));
  if (count == 0 || split.outer * split.inner == 0) return;
  const auto copy = [&]<class Word>() {
    const int64_t words = row_bytes / static_cast<int64_t>(sizeof(Word));
    const RowGroups groups = row_groups(words, 4, kThreads);
    const int64_t rows = split.outer * count;
    ORTM_LAUNCH(gather_rows_cuda<Word>, grid_of(blocks_for(rows, groups.rows())),
                static_cast<unsigned>(groups.threads), 0, args.context, args.in[0].as<Word>(),
                indices, args.out[0].as<Word>(), rows, count, words, groups.lanes);
  };
  const uintptr_t all = static_cast<uintptr_t>(row_bytes) |
                        reinterpret_cast<uintptr_t>(args.in[0].data) |
                        reinterpret_cast<uintptr_t>(args.out[0].data);
  if (all % 16 == 0) return copy.operator()<Vector<uint32_t, 4>>();
  if (all % 8 == 0) return copy.operator()<uint64_t>();
  if (all % 4 == 0) return copy.operator()<uint32_t>();
  if (all % 2 == 0) return copy.operator()<uint16_t>();
  copy.operator()<uint8_t>();
}

REGISTER_KERNEL({.op = "Gather",
                 .name = "gather_cuda",
                 .device = Device::CUDA,
                 .dtypes = kEveryType,
                 .run = run_gather,
                 .unsupported = indices_unsupported});

}  // namespace
}  // namespace ortmodule::cuda
