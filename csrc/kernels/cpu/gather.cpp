// Gather: y[o, m, i] = data[o, indices[m], i] along `axis`; negative indices count from the end.
// GatherGrad: ddata[o, a, i] = sum of dy[o, m, i] over the m with indices[m] == a, in the order of
// m, but nothing for padding_idx, plus sum[o, a, i] if there is a sum. Method: rows are copied, and
// runs of neighbours of the last axis, as those of padding. The
// gradient sorts positions by index (counting sort in the workspace) and writes each row of ddata
// once, so that it is deterministic and needs no zeroing pass; a sum may be the result's own
// memory, of which only the rows that get something are touched then. Bytes moved: the rows that
// are read and y (forward); dy and ddata once (gradient).
#include <cstring>

#include "kernels/cpu/index_reader.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Neighbours among the places of some indices: `to` on, as they lie from `from` on.
struct GatherRun {
  int64_t to, from, count;
};

/// The runs of places [0, count); 0 if most are so short that elements are moved one by one.
inline int64_t find_runs(const int64_t* places, int64_t count, GatherRun* runs) {
  constexpr int64_t kLeastRun = 8;  // elements, on average
  int64_t found = 0;
  for (int64_t m = 0; m < count; ++m) {
    if (m > 0 && places[m] == places[m - 1] + 1) {
      ++runs[found - 1].count;
      continue;
    }
    if ((found + 1) * kLeastRun > std::max(count, kLeastRun)) return 0;
    runs[found++] = {m, places[m], 1};
  }
  return found;
}

/// Elements along the last axis, of some indices at a time for all lines.
template <class T>
void gather_elements(const KernelArgs& args, const AxisSplit& split, const IndexReader& indices) {
  constexpr int64_t kAtOnce = 256;
  const int64_t count = indices.count();
  parallel_ranges(args.context, split.outer, grain_for(count), [&](int64_t begin, int64_t end) {
    int64_t places[kAtOnce];
    GatherRun runs[kAtOnce];
    for (int64_t first = 0; first < count; first += kAtOnce) {
      const int64_t some = std::min(kAtOnce, count - first);
      for (int64_t m = 0; m < some; ++m) places[m] = indices.at(first + m);
      const int64_t found = find_runs(places, some, runs);
      for (int64_t outer = begin; outer < end; ++outer) {
        const T* from = args.in[0].as<T>() + outer * split.axis;
        T* to = args.out[0].as<T>() + outer * count + first;
        for (int64_t r = 0; r < found; ++r)
          std::copy_n(from + runs[r].from, runs[r].count, to + runs[r].to);
        if (found > 0) continue;
        ORTM_SIMD
        for (int64_t m = 0; m < some; ++m) to[m] = from[places[m]];
      }
    }
  });
}

template <class T>
void gather_rows(const KernelArgs& args, const AxisSplit& split, const IndexReader& indices) {
  const T* data = args.in[0].as<T>();
  T* y = args.out[0].as<T>();
  const int64_t rows = split.outer * indices.count();
  parallel_ranges(args.context, rows, grain_for(split.inner), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t outer = row / indices.count();
      const int64_t from = outer * split.axis + indices.at(row - outer * indices.count());
      if (split.inner == 1)
        y[row] = data[from];
      else
        std::memcpy(y + row * split.inner, data + from * split.inner,
                    static_cast<size_t>(split.inner) * sizeof(T));
    }
  });
}

void run_gather(const KernelArgs& args) {
  const AxisSplit split =
      split_at(args.facts.inputs[0].layout.sizes, args.facts.node().attrs.integer("axis", 0));
  const IndexReader indices(args, split.axis, "Gather");
  if (indices.count() == 0 || split.outer * split.inner == 0) return;
  dispatch_width(size_of(args.in[0].dtype), [&]<class T> {
    if (split.inner == 1 && split.outer > 1)
      gather_elements<T>(args, split, indices);
    else
      gather_rows<T>(args, split, indices);
  });
}

// --- gradient ------------------------------------------------------------------------------------
// [outer, size, inner] of the result; the axis of the attribute belongs to it.
AxisSplit grad_split(const StepFacts& facts) {
  return split_at(facts.outputs[0].layout.sizes, facts.node().attrs.integer("axis", 0));
}

size_t grad_workspace(const StepFacts& facts) {
  const int64_t indices = element_count(facts.inputs[1].layout.sizes);
  const int64_t sorted = grad_split(facts).axis + 1 + 2 * indices;
  return static_cast<size_t>(std::max(sorted, 3 * indices)) * sizeof(int64_t);
}

// Positions sorted by index, stable: those of index a are order[starts[a]] .. order[starts[a + 1]].
void sort_positions(const IndexReader& indices, int64_t size, int64_t padding, int64_t* starts,
                    int64_t* order) {
  std::fill(starts, starts + size + 1, 0);
  for (int64_t m = 0; m < indices.count(); ++m) {
    const int64_t index = indices.at(m);
    if (index != padding) ++starts[index + 1];
  }
  for (int64_t a = 0; a < size; ++a) starts[a + 1] += starts[a];
  // Filling moves each start to the next one's place; a shift afterwards restores them.
  for (int64_t m = 0; m < indices.count(); ++m) {
    const int64_t index = indices.at(m);
    if (index != padding) order[starts[index]++] = m;
  }
  for (int64_t a = size; a > 0; --a) starts[a] = starts[a - 1];
  starts[0] = 0;
}

template <class T>
using SumOf = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, ComputeOf<T>, int64_t>;

// Columns [at, at + columns) of the sum of the rows of dy at `positions`.
template <class T>
void sum_chunk(const T* dy, const int64_t* positions, int64_t count, int64_t inner, int64_t at,
               int64_t columns, SumOf<T>* sums) {
  for (int64_t i = 0; i < columns; ++i) sums[i] = 0;
  for (int64_t k = 0; k < count; ++k) {
    const T* row = dy + positions[k] * inner + at;
    ORTM_SIMD
    for (int64_t i = 0; i < columns; ++i) sums[i] += static_cast<SumOf<T>>(computed(row[i]));
  }
}

// out += rows of dy at `positions`, their sum rounded first, as if it were added afterwards.
template <class T>
void add_rows(const T* dy, const int64_t* positions, int64_t count, int64_t inner, T* out) {
  for_each_chunk(inner, [&](int64_t at, int64_t columns) {
    SumOf<T> sums[kRowChunk];
    sum_chunk(dy, positions, count, inner, at, columns, sums);
    for (int64_t i = 0; i < columns; ++i)
      out[at + i] = stored<T>(static_cast<SumOf<T>>(computed(out[at + i])) +
                              static_cast<SumOf<T>>(computed(stored<T>(sums[i]))));
  });
}

// out = sum of the rows of dy at `positions`.
template <class T>
void sum_rows(const T* dy, const int64_t* positions, int64_t count, int64_t inner, T* out) {
  if (count == 0) {
    std::memset(static_cast<void*>(out), 0, static_cast<size_t>(inner) * sizeof(T));
    return;
  }
  if (count == 1) {
    std::memcpy(static_cast<void*>(out), dy + positions[0] * inner,
                static_cast<size_t>(inner) * sizeof(T));
    return;
  }
  for_each_chunk(inner, [&](int64_t at, int64_t columns) {
    SumOf<T> sums[kRowChunk];
    sum_chunk(dy, positions, count, inner, at, columns, sums);
    ORTM_SIMD
    for (int64_t i = 0; i < columns; ++i) out[at + i] = stored<T>(sums[i]);
  });
}

/// Indices first, first + step, ... of neighbouring elements; step 0 of those that are padding.
struct IndexRun {
  int64_t first, step, length;
};

/// Fills `runs`, which has room for one of each index, and returns their number.
int64_t find_runs(const IndexReader& indices, int64_t padding, IndexRun* runs) {
  const int64_t count = indices.count();
  int64_t found = 0;
  for (int64_t m = 0; m < count; m += runs[found++].length) {
    IndexRun& run = runs[found] = {indices.at(m), 0, 1};
    if (run.first == padding) continue;
    run.step = 1;
    if (m + 1 == count || indices.at(m + 1) <= run.first) continue;
    run.step = indices.at(m + 1) - run.first;
    for (; m + run.length < count; ++run.length) {
      const int64_t next = run.first + run.length * run.step;
      if (indices.at(m + run.length) != next || next == padding) break;
    }
  }
  return found;
}

/// Elements of lines: indices that are equally far from each other, as those of windows are, make a
/// run, which is added to each line. Each element adds up in the order of the indices.
void add_runs(const KernelArgs& args, const AxisSplit& split, const IndexReader& indices,
              int64_t padding) {
  const auto* dy = args.in[0].as<float>();
  auto* out = args.out[0].as<float>();
  const int64_t count = indices.count(), size = split.axis;
  auto* runs = static_cast<IndexRun*>(args.workspace);
  const int64_t found = find_runs(indices, padding, runs);
  parallel_ranges(args.context, split.outer, grain_for(count), [&](int64_t begin, int64_t end) {
    for (int64_t outer = begin; outer < end; ++outer) {
      const float* from = dy + outer * count;
      float* line = out + outer * size;
      std::fill(line, line + size, 0.0f);
      for (const IndexRun* run = runs; run < runs + found; from += run++->length) {
        float* to = line + run->first;
        if (run->step == 1) {
          ORTM_SIMD
          for (int64_t k = 0; k < run->length; ++k) to[k] += from[k];
        } else if (run->step > 0) {
          for (int64_t k = 0; k < run->length; ++k) to[k * run->step] += from[k];
        }
      }
    }
  });
}

/// The sum, which may be the result's own memory, with what its rows get: only those are touched.
template <class T>
void add_to_sum(const KernelArgs& args, const AxisSplit& split, const int64_t* starts,
                int64_t* order, int64_t indices) {
  const T *dy = args.in[0].as<T>(), *sum = args.in[2].as<T>();
  T* out = args.out[0].as<T>();
  if (sum != out)
    parallel_ranges(args.context, split.outer * split.axis * split.inner, grain_for(1),
                    [&](int64_t begin, int64_t end) {
                      std::memcpy(static_cast<void*>(out + begin), sum + begin,
                                  static_cast<size_t>(end - begin) * sizeof(T));
                    });
  int64_t* touched = order + indices;
  int64_t found = 0;
  for (int64_t a = 0; a < split.axis; ++a)
    if (starts[a + 1] > starts[a]) touched[found++] = a;
  if (found == 0) return;
  parallel_ranges(args.context, split.outer * found, grain_for(split.inner),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = begin; row < end; ++row) {
                      const int64_t outer = row / found, a = touched[row - outer * found];
                      T* to = out + (outer * split.axis + a) * split.inner;
                      add_rows(dy + outer * indices * split.inner, order + starts[a],
                               starts[a + 1] - starts[a], split.inner, to);
                    }
                  });
}

void run_gather_grad(const KernelArgs& args) {
  const AxisSplit split = grad_split(args.facts);
  if (split.outer * split.inner * split.axis == 0) return;
  const IndexReader indices(args, split.axis, "GatherGrad");
  int64_t padding = args.facts.node().attrs.integer("padding_idx", -1);
  const bool has_sum = args.in.size() > 2 && args.in[2].data;
  if (split.inner == 1 && !has_sum && args.in[0].dtype == DType::Float32)
    return add_runs(args, split, indices, padding);
  int64_t* starts = static_cast<int64_t*>(args.workspace);
  int64_t* order = starts + split.axis + 1;
  sort_positions(indices, split.axis, padding, starts, order);
  dispatch_real(args.in[0].dtype, [&]<class T> {
    if (has_sum) return add_to_sum<T>(args, split, starts, order, indices.count());
    const T* dy = args.in[0].as<T>();
    T* out = args.out[0].as<T>();
    auto run_row = [&](int64_t row) {
      const int64_t outer = row / split.axis, index = row - outer * split.axis;
      const T* rows = dy + outer * indices.count() * split.inner;
      const int64_t count = starts[index + 1] - starts[index];
      sum_rows(rows, order + starts[index], count, split.inner, out + row * split.inner);
    };
    parallel_ranges(args.context, split.outer * split.axis, grain_for(split.inner),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t row = begin; row < end; ++row) run_row(row);
                    });
  });
}

REGISTER_CPU_KERNEL({.op = "Gather",
                     .name = "gather_cpu",
                     .dtypes = kMovedTypes,
                     .run = run_gather,
                     .unsupported = indices_unsupported});
REGISTER_CPU_KERNEL({.op = "GatherGrad",
                     .name = "gather_grad_cpu",
                     .dtypes = kAllFloats | kIntegers,
                     .run = run_gather_grad,
                     .unsupported = indices_unsupported,
                     .workspace_bytes = grad_workspace,
                     .inplace = true,
                     .inplace_operand = 2});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
