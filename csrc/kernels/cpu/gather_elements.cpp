// GatherElements: y[i, j] = data[indices[i, j], j] for axis 0, and so on for other axes.
// ScatterElements: y = data, then y[indices[i, j], j] = (or += if reduction is "add") updates[i,
// j], in the order of the updates. Method: elements one by one; lines along the axis are
// independent, so they may run on several threads without changing the order in which a place
// receives its updates. Bytes moved: each tensor once.
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/index_reader.h"
#include "kernels/cpu/row_math.h"
#include "kernels/iteration.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// The dimensions of `indices` but for the axis; operand 0 is data (whose other dimensions may be
// larger), operand 1 indices, both contiguous.
struct Lines {
  IterationSpace space;
  int64_t length = 1;                         // of indices along the axis
  int64_t data_stride = 1, index_stride = 1;  // along the axis
  int64_t axis_size = 1;                      // of data
};

Lines make_lines(const Layout& data, const Layout& indices, int64_t axis) {
  Lines lines;
  const Sizes data_strides = contiguous_strides(data.sizes);
  const Sizes index_strides = contiguous_strides(indices.sizes);
  axis = normalized_axis(axis, data.sizes.size());
  lines.space.strides.assign(2, Coords{});
  for (size_t d = 0; d < data.sizes.size(); ++d) {
    if (static_cast<int64_t>(d) == axis) {
      lines.length = indices.sizes[d];
      lines.data_stride = data_strides[d];
      lines.index_stride = index_strides[d];
      lines.axis_size = data.sizes[d];
      continue;
    }
    if (indices.sizes[d] == 1) continue;
    lines.space.sizes[lines.space.rank] = indices.sizes[d];
    lines.space.strides[0][lines.space.rank] = data_strides[d];
    lines.space.strides[1][lines.space.rank++] = index_strides[d];
  }
  if (lines.space.rank == 0) {
    lines.space.rank = 1;
    lines.space.sizes[0] = 1;
  }
  return lines;
}

std::shared_ptr<const void> prepare_lines(const StepFacts& facts) {
  return std::make_shared<const Lines>(make_lines(facts.inputs[0].layout, facts.inputs[1].layout,
                                                  facts.node().attrs.integer("axis", 0)));
}

// body(data offset of the line, indices offset of the line) for every line.
template <class Body>
void for_each_line(const KernelArgs& args, const Lines& lines, const Body& body) {
  parallel_ranges(args.context, lines.space.count(), grain_for(lines.length),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t line = begin; line < end; ++line) {
                      const Coords coords = lines.space.unravel(line);
                      body(lines.space.offset(0, coords), lines.space.offset(1, coords));
                    }
                  });
}

void run_gather_elements(const KernelArgs& args) {
  const Lines& lines = *static_cast<const Lines*>(args.prepared);
  const IndexReader indices(args, lines.axis_size, "GatherElements");
  if (indices.count() == 0) return;
  dispatch_width(size_of(args.in[0].dtype), [&]<class T> {
    const T* data = args.in[0].as<T>();
    T* y = args.out[0].as<T>();
    for_each_line(args, lines, [&](int64_t data_at, int64_t index_at) {
      for (int64_t i = 0; i < lines.length; ++i) {
        const int64_t position = index_at + i * lines.index_stride;
        y[position] = data[data_at + indices.at(position) * lines.data_stride];
      }
    });
  });
}

template <class T>
void scatter(const KernelArgs& args, const Lines& lines, const IndexReader& indices, bool add) {
  const T* updates = args.in[2].as<T>();
  T* y = args.out[0].as<T>();
  for_each_line(args, lines, [&](int64_t data_at, int64_t index_at) {
    for (int64_t i = 0; i < lines.length; ++i) {
      const int64_t position = index_at + i * lines.index_stride;
      T& place = y[data_at + indices.at(position) * lines.data_stride];
      place = add ? stored<T>(computed(place) + computed(updates[position])) : updates[position];
    }
  });
}

void run_scatter_elements(const KernelArgs& args) {
  const Lines& lines = *static_cast<const Lines*>(args.prepared);
  const IndexReader indices(args, lines.axis_size, "ScatterElements");
  if (args.out[0].data != args.in[0].data && args.out[0].byte_count() > 0)
    std::memcpy(args.out[0].data, args.in[0].data, args.out[0].byte_count());
  if (indices.count() == 0) return;
  const bool add = args.facts.node().attrs.string("reduction", "add") == "add";
  dispatch_real(args.in[0].dtype, [&]<class T> { scatter<T>(args, lines, indices, add); });
}

REGISTER_CPU_KERNEL({.op = "GatherElements",
                     .name = "gather_elements_cpu",
                     .dtypes = kEveryType,
                     .run = run_gather_elements,
                     .unsupported = elements_unsupported,
                     .prepare = prepare_lines});
REGISTER_CPU_KERNEL({.op = "ScatterElements",
                     .name = "scatter_elements_cpu",
                     .dtypes = kRealTypes,
                     .run = run_scatter_elements,
                     .unsupported = scatter_unsupported,
                     .prepare = prepare_lines});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
