// PackSequence and PadSequence: rows copied between a padded and a packed batch. Bytes moved: the
// packed rows twice, and the padding once.
#include <cstring>

#include "kernels/cpu/fill.h"
#include "kernels/cpu/packed_batch.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// A padded batch: the bytes of a row, and where a row of a step lies.
struct PaddedBatch {
  int64_t steps, batch, row_bytes;
  bool batch_first;

  PaddedBatch(const KernelArgs& args, const Sizes& sizes, DType dtype)
      : batch_first(args.facts.node().attrs.flag("layout")) {
    steps = sizes[batch_first ? 1 : 0];
    batch = sizes[batch_first ? 0 : 1];
    row_bytes = static_cast<int64_t>(size_of(dtype));
    for (size_t d = 2; d < sizes.size(); ++d) row_bytes *= sizes[d];
  }
  int64_t offset(int64_t step, int64_t row) const {
    return (batch_first ? row * steps + step : step * batch + row) * row_bytes;
  }
};

size_t table_bytes(const StepFacts& facts) {
  return static_cast<size_t>(facts.inputs[1].layout.sizes[0] + 1) * sizeof(int64_t);
}

/// The first row of each step of the packed batch, checked.
const int64_t* packed_starts(const KernelArgs& args, const PaddedBatch& padded, int64_t rows) {
  const int64_t steps = args.in[1].sizes[0];
  if (steps > padded.steps)
    throw Error(str("[PackedSequence] a padded batch must have the ", steps,
                    " steps of the batch sizes, but found ", padded.steps));
  auto* starts = static_cast<int64_t*>(args.workspace);
  fill_packed_starts(args.in[1], padded.batch, rows, starts);
  return starts;
}

/// body(step, the rows of the packed batch before it, its number of rows), in parallel.
template <class Body>
void for_steps(const KernelArgs& args, const PaddedBatch& padded, int64_t count,
               const int64_t* starts, const Body& body) {
  const int64_t packed = args.in[1].sizes[0];
  parallel_ranges(args.context, count, grain_for(padded.batch * padded.row_bytes),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t step = begin; step < end; ++step)
                      body(step, starts[std::min(step, packed)],
                           step < packed ? starts[step + 1] - starts[step] : 0);
                  });
}

void run_pack(const KernelArgs& args) {
  const PaddedBatch padded(args, args.facts.inputs[0].layout.sizes, args.in[0].dtype);
  const int64_t* starts = packed_starts(args, padded, args.facts.outputs[0].layout.sizes[0]);
  const char* x = args.in[0].as<char>();
  char* data = args.out[0].as<char>();
  for_steps(args, padded, args.in[1].sizes[0], starts,
            [&](int64_t step, int64_t first, int64_t rows) {
              for (int64_t row = 0; row < rows; ++row)
                std::memcpy(data + (first + row) * padded.row_bytes, x + padded.offset(step, row),
                            static_cast<size_t>(padded.row_bytes));
            });
}

void run_pad(const KernelArgs& args) {
  const PaddedBatch padded(args, args.facts.outputs[0].layout.sizes, args.in[0].dtype);
  const int64_t* starts = packed_starts(args, padded, args.facts.inputs[0].layout.sizes[0]);
  const char* data = args.in[0].as<char>();
  char* x = args.out[0].as<char>();
  const double value = args.facts.node().attrs.number("value");
  const int64_t elements = padded.row_bytes / static_cast<int64_t>(size_of(args.in[0].dtype));
  for_steps(args, padded, padded.steps, starts, [&](int64_t step, int64_t first, int64_t rows) {
    for (int64_t row = 0; row < padded.batch; ++row) {
      const int64_t at = padded.offset(step, row);
      if (row < rows) {
        std::memcpy(x + at, data + (first + row) * padded.row_bytes,
                    static_cast<size_t>(padded.row_bytes));
      } else {
        const int64_t begin = at / static_cast<int64_t>(size_of(args.in[0].dtype));
        fill_range(args.out[0], begin, begin + elements, value);
      }
    }
  });
}

REGISTER_CPU_KERNEL({.op = "PackSequence",
                     .name = "pack_sequence_cpu",
                     .dtypes = kEveryType,
                     .run = run_pack,
                     .workspace_bytes = table_bytes,
                     .layout = LayoutRule::Contiguous});
REGISTER_CPU_KERNEL({.op = "PadSequence",
                     .name = "pad_sequence_cpu",
                     .dtypes = kEveryType,
                     .run = run_pad,
                     .workspace_bytes = table_bytes,
                     .layout = LayoutRule::Contiguous});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
