// GatherElements: y[i, j] = data[indices[i, j], j] for axis 0, and so on for other axes.
// ScatterElements: y = data, then each y[indices[i, j], j] becomes updates[i, j] or, by
// `reduction`, the sum, product, smaller or larger of both, in the order of the updates. Method: a
// strip of neighbouring lines along the axis at a time; where the axis is not the last one, the
// strip's elements of one position follow one another in memory. Lines are independent, so they may
// run on several threads without changing the order in which a place receives its updates. An index
// that is expanded along the lines is read once per strip. Sums and products of 16-bit floats are
// of float32 in the workspace, rounded once. Bytes moved: each tensor once.
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/index_reader.h"
#include "kernels/cpu/row_math.h"
#include "kernels/iteration.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

// Operands of the iteration space, which is that of `indices` without the axis.
enum Operand : uint8_t { kData, kIndices, kUpdates };  // updates, or what is gathered

constexpr int64_t kStrip = 128;           // lines at a time
constexpr int64_t kStripElements = 4096;  // where lines are walked one by one
constexpr int64_t kSumStrip = 32;         // lines at a time whose sums are in the workspace
constexpr int64_t kSumTasks = 16;

// Lines along the axis: those of a strip are neighbours in the last dimension of the space.
struct Lines {
  IterationSpace space;             // without that last dimension
  int64_t count = 1;                // lines in the last dimension
  int64_t length = 1;               // of indices along the axis
  int64_t axis_size = 1;            // of data
  int64_t strip = 1;                // lines of a strip
  std::array<int64_t, 3> across{};  // strides from line to line, per operand
  std::array<int64_t, 3> along{};   // strides along the axis
  bool by_position = false;         // the lines of a strip advance together
  int64_t sum_tasks = 0;            // strips in the workspace at a time, if it holds the sums

  int64_t strips() const { return ceil_div(count, strip); }
  int64_t items() const { return space.count() * strips(); }
};

// --- reductions: the new value of a place from the old one and an update -------------------------
struct Overwrite {
  template <class C>
  C operator()(C, C update) const {
    return update;
  }
};
// Integers wrap around.
struct Sum {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C> && !std::is_same_v<C, bool>)
      return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else
      return static_cast<C>(a + b);
  }
};
struct Product {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C> && !std::is_same_v<C, bool>)
      return static_cast<C>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    else
      return static_cast<C>(a * b);
  }
};
// NaN wins.
struct Smaller {
  template <class C>
  C operator()(C a, C b) const {
    return b < a || b != b ? b : a;
  }
};
struct Larger {
  template <class C>
  C operator()(C a, C b) const {
    return b > a || b != b ? b : a;
  }
};

std::string reduction_of(const StepFacts& facts) {
  return facts.node().attrs.string("reduction", "add");
}

/// body(reduction).
template <class Body>
void with_reduction(const std::string& name, const Body& body) {
  if (name == "add") return body(Sum());
  if (name == "mul") return body(Product());
  if (name == "min") return body(Smaller());
  if (name == "max") return body(Larger());
  body(Overwrite());
}

/// Whether the reduction rounds, so that 16 bits would lose some at each update.
bool rounds(const StepFacts& facts) {
  if (facts.node().op != "ScatterElements") return false;
  const std::string name = reduction_of(facts);
  return name == "add" || name == "mul";
}

Reason reduction_unsupported(const StepFacts& facts) {
  const std::string name = reduction_of(facts);
  for (const std::string_view known : {"none", "add", "mul", "min", "max"})
    if (name == known) return elements_unsupported(facts);
  return "the reduction is " + name;
}

Lines make_lines(const StepFacts& facts) {
  const Layout &data = facts.inputs[0].layout, &indices = facts.inputs[1].layout;
  const auto axis = static_cast<size_t>(
      normalized_axis(facts.node().attrs.integer("axis", 0), data.sizes.size()));
  const std::vector<Sizes> strides = {contiguous_strides(data.sizes), indices.strides,
                                      contiguous_strides(indices.sizes)};
  Lines lines;
  lines.length = indices.sizes[axis];
  lines.axis_size = data.sizes[axis];
  Sizes sizes = indices.sizes;
  sizes[axis] = 1;
  lines.space = iteration_space(sizes, strides, kUpdates);
  const int last = --lines.space.rank;
  lines.count = lines.space.sizes[last];
  for (size_t k = 0; k < 3; ++k) {
    lines.along[k] = strides[k][axis];
    lines.across[k] = lines.space.strides[k][last];
  }
  if (lines.space.rank == 0) lines.space.sizes[lines.space.rank++] = 1;
  lines.by_position = lines.count > 1 && lines.across[kUpdates] < lines.along[kUpdates];
  const DType dtype = facts.inputs[0].dtype;
  const bool is_half = dtype == DType::BFloat16 || dtype == DType::Float16;
  const bool sums = rounds(facts) && is_half && lines.length > 1;
  int64_t most = lines.by_position ? kStrip : kStripElements / std::max<int64_t>(lines.length, 1);
  if (sums) most = lines.by_position ? kSumStrip : 1;
  lines.strip = std::clamp<int64_t>(lines.count, 1, std::max<int64_t>(most, 1));
  if (sums) lines.sum_tasks = std::min(kSumTasks, lines.items());
  return lines;
}

std::shared_ptr<const void> prepare_lines(const StepFacts& facts) {
  return std::make_shared<const Lines>(make_lines(facts));
}

size_t sum_bytes(const StepFacts& facts) {
  const Lines lines = make_lines(facts);
  return static_cast<size_t>(lines.sum_tasks * lines.strip * lines.axis_size) * sizeof(float);
}

struct Strip {
  std::array<int64_t, 3> begin{};  // offset of the first line, per operand
  int64_t count = 0;               // of lines
};

Strip strip_at(const Lines& lines, int64_t item) {
  const Coords coords = lines.space.unravel(item / lines.strips());
  const int64_t first = item % lines.strips() * lines.strip;
  Strip strip;
  strip.count = std::min(lines.strip, lines.count - first);
  for (size_t k = 0; k < 3; ++k)
    strip.begin[k] = lines.space.offset(k, coords) + first * lines.across[k];
  return strip;
}

// body(line, index, offset in updates) for all elements of a strip, those of a line in order.
template <class Body>
void for_each_element(const Lines& lines, const Strip& strip, const IndexReader& indices,
                      const Body& body) {
  const auto [data_across, index_across, across] = lines.across;
  const auto [data_along, index_along, along] = lines.along;
  if (!lines.by_position) {
    for (int64_t c = 0; c < strip.count; ++c)
      for (int64_t i = 0; i < lines.length; ++i) {
        const int64_t at = strip.begin[kUpdates] + c * across + i * along;
        body(c, indices.at(at, strip.begin[kIndices] + c * index_across + i * index_along), at);
      }
    return;
  }
  for (int64_t i = 0; i < lines.length; ++i) {
    const int64_t at = strip.begin[kUpdates] + i * along;
    const int64_t index_at = strip.begin[kIndices] + i * index_along;
    if (index_across == 0) {
      const int64_t index = indices.at(at, index_at);
      ORTM_SIMD
      for (int64_t c = 0; c < strip.count; ++c) body(c, index, at + c * across);
    } else {
      for (int64_t c = 0; c < strip.count; ++c)
        body(c, indices.at(at + c * across, index_at + c * index_across), at + c * across);
    }
  }
}

template <class Body>
void for_each_strip(const KernelArgs& args, const Lines& lines, const Body& body) {
  parallel_ranges(args.context, lines.items(), grain_for(lines.strip * lines.length),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) body(strip_at(lines, item));
                  });
}

/// y[i] = data[i * step + index[i] * along]. Instructions that gather take longer than loads one by
/// one.
template <class T, class Index>
[[gnu::optimize("no-tree-vectorize")]] void move_row(const T* data, int64_t step, int64_t along,
                                                     const Index* indices, int64_t count,
                                                     int64_t size, T* y) {
  const auto place = [=](int64_t i) {
    const int64_t index = indices[i];
    return index + (index < 0 ? size : 0);
  };
  if (step == 0 && along == 1)
    for (int64_t i = 0; i < count; ++i) y[i] = data[place(i)];
  else
    for (int64_t i = 0; i < count; ++i) y[i] = data[i * step + place(i) * along];
}

/// Not inlined: the loop that follows the indices takes half as long again beside it.
template <class Index>
[[gnu::noinline]] bool are_indices(const Index* indices, int64_t count, int64_t least,
                                   int64_t size) {
  // Below the least or beyond the last one of these differences is negative, also if one wraps.
  uint64_t signs = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint64_t>(static_cast<int64_t>(indices[i]));
    signs |= (index - static_cast<uint64_t>(least)) | (static_cast<uint64_t>(size - 1) - index);
  }
  return static_cast<int64_t>(signs) >= 0;
}

/// y[i * step + index[i] * along] becomes reduce(itself, updates[i]).
template <class T, class Index, class Reduction>
void update_row(T* y, int64_t step, int64_t along, const Index* indices, int64_t count,
                int64_t size, const T* updates, const Reduction& reduce) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = indices[i];
    T& place = y[i * step + (index + (index < 0 ? size : 0)) * along];
    if constexpr (std::is_same_v<Reduction, Overwrite>)
      place = updates[i];
    else
      place = stored<T>(reduce(computed(place), computed(updates[i])));
  }
}

/// A strip whose indices lie as its results or updates do, neighbours beside each other: body(place
/// of the first in data, step from one to the next there, position of the first index, count) for
/// its rows; false behind a row of which an index is none.
template <class Index, class Body>
bool for_each_row(const Lines& lines, const Strip& strip, const Index* indices, int64_t least,
                  const Body& body) {
  const bool together = lines.by_position;
  const int64_t rows = together ? lines.length : strip.count,
                count = together ? strip.count : lines.length;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at =
        strip.begin[kUpdates] + row * (together ? lines.along[kUpdates] : lines.across[kUpdates]);
    if (!are_indices(indices + at, count, least, lines.axis_size)) return false;
    body(strip.begin[kData] + (together ? 0 : row * lines.across[kData]),
         together ? lines.across[kData] : 0, at, count);
  }
  return true;
}

/// Whether for_each_row takes the lines.
bool lie_alike(const Lines& lines) {
  const int64_t between = lines.by_position ? lines.across[kUpdates] : lines.along[kUpdates];
  return between == 1 && lines.space.strides[kIndices] == lines.space.strides[kUpdates] &&
         lines.across[kIndices] == lines.across[kUpdates] &&
         lines.along[kIndices] == lines.along[kUpdates];
}

/// body(indices) on those of the step in their type.
template <class Body>
bool with_indices(const KernelArgs& args, const Body& body) {
  if (args.in[1].dtype == DType::Int64) return body(args.in[1].as<int64_t>());
  return body(args.in[1].as<int32_t>());
}

template <class T>
bool gather_alike(const KernelArgs& args, const Lines& lines, const Strip& strip) {
  const auto* data = args.in[0].as<T>();
  T* y = args.out[0].as<T>();
  return with_indices(args, [&](const auto* indices) {
    return for_each_row(lines, strip, indices, least_index(args.facts, lines.axis_size),
                        [&](int64_t from, int64_t step, int64_t at, int64_t count) {
                          move_row(data + from, step, lines.along[kData], indices + at, count,
                                   lines.axis_size, y + at);
                        });
  });
}

void run_gather_elements(const KernelArgs& args) {
  const Lines& lines = *static_cast<const Lines*>(args.prepared);
  const IndexReader indices(args, lines.axis_size, "GatherElements");
  if (indices.count() == 0) return;
  const int64_t across = lines.across[kData], along = lines.along[kData];
  dispatch_width(size_of(args.in[0].dtype), [&]<class T> {
    T* y = args.out[0].as<T>();
    const bool alike = lie_alike(lines);
    for_each_strip(args, lines, [&](const Strip& strip) {
      if (alike && gather_alike<T>(args, lines, strip)) return;  // else an index is to be named
      const T* data = args.in[0].as<T>() + strip.begin[kData];
      for_each_element(lines, strip, indices, [=](int64_t line, int64_t index, int64_t at) {
        y[at] = data[line * across + index * along];
      });
    });
  });
}

/// False, and nothing is written, if an index is to be named.
template <class T, class Reduction>
bool scatter_alike(const KernelArgs& args, const Lines& lines, const Strip& strip,
                   const Reduction& reduce) {
  const T* updates = args.in[2].as<T>();
  T* y = args.out[0].as<T>();
  return with_indices(args, [&](const auto* indices) {
    const int64_t least = least_index(args.facts, lines.axis_size);
    const auto visit = [&](const auto& body) {
      return for_each_row(lines, strip, indices, least, body);
    };
    return visit([](int64_t, int64_t, int64_t, int64_t) {}) &&
           visit([&](int64_t to, int64_t step, int64_t at, int64_t count) {
             update_row(y + to, step, lines.along[kData], indices + at, count, lines.axis_size,
                        updates + at, reduce);
           });
  });
}

template <class T, class Reduction>
void scatter(const KernelArgs& args, const Lines& lines, const IndexReader& indices,
             const Reduction& reduce) {
  const T* updates = args.in[2].as<T>();
  const int64_t across = lines.across[kData], along = lines.along[kData];
  const bool alike = lie_alike(lines);
  for_each_strip(args, lines, [&](const Strip& strip) {
    if (alike && scatter_alike<T>(args, lines, strip, reduce)) return;
    T* y = args.out[0].as<T>() + strip.begin[kData];
    for_each_element(lines, strip, indices, [=](int64_t line, int64_t index, int64_t at) {
      T& place = y[line * across + index * along];
      if constexpr (std::is_same_v<Reduction, Overwrite>) {
        place = updates[at];
      } else {
        place = stored<T>(reduce(computed(place), computed(updates[at])));
      }
    });
  });
}

// Reduces the updates of a strip into its places in float32; `sums` holds them position by
// position.
template <class T, class Reduction>
void reduce_strip(const KernelArgs& args, const Lines& lines, const Strip& strip,
                  const IndexReader& indices, const Reduction& reduce, float* sums) {
  const T* updates = args.in[2].as<T>();
  const int64_t across = lines.across[kData], along = lines.along[kData], width = strip.count;
  T* y = args.out[0].as<T>() + strip.begin[kData];
  // body(place, sum, count) for the pieces of the strip that are rows in memory.
  auto for_each_row = [=, &lines](const auto& body) {
    if (width == 1 && along == 1) return body(y, sums, lines.axis_size);
    for (int64_t k = 0; k < lines.axis_size; ++k) {
      if (across == 1) {
        body(y + k * along, sums + k * width, width);
      } else {
        for (int64_t c = 0; c < width; ++c)
          body(y + c * across + k * along, sums + k * width + c, 1);
      }
    }
  };
  for_each_row([](const T* row, float* sum, int64_t count) { convert_row(row, count, sum); });
  for_each_element(lines, strip, indices, [=](int64_t line, int64_t index, int64_t at) {
    float& sum = sums[index * width + line];
    sum = reduce(sum, computed(updates[at]));
  });
  for_each_row([](T* row, const float* sum, int64_t count) { store_row(row, sum, count); });
}

// Strips in as many tasks as the workspace has room for.
template <class T, class Reduction>
void reduce_in_float(const KernelArgs& args, const Lines& lines, const IndexReader& indices,
                     const Reduction& reduce) {
  const int64_t tasks = lines.sum_tasks, items = lines.items();
  const int64_t per_task = items / tasks * lines.strip * (lines.axis_size + lines.length);
  parallel_ranges(args.context, tasks, grain_for(per_task), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      float* sums = static_cast<float*>(args.workspace) + task * lines.strip * lines.axis_size;
      for (int64_t item = task; item < items; item += tasks)
        reduce_strip<T>(args, lines, strip_at(lines, item), indices, reduce, sums);
    }
  });
}

void run_scatter_elements(const KernelArgs& args) {
  const Lines& lines = *static_cast<const Lines*>(args.prepared);
  const IndexReader indices(args, lines.axis_size, "ScatterElements");
  if (args.out[0].data != args.in[0].data && args.out[0].byte_count() > 0)
    std::memcpy(args.out[0].data, args.in[0].data, args.out[0].byte_count());
  if (indices.count() == 0) return;
  with_reduction(reduction_of(args.facts), [&](const auto& reduce) {
    dispatch_real(args.in[0].dtype, [&]<class T> {
      if constexpr (kIsHalf<T>) {
        if (lines.sum_tasks > 0) return reduce_in_float<T>(args, lines, indices, reduce);
      }
      scatter<T>(args, lines, indices, reduce);
    });
  });
}

REGISTER_CPU_KERNEL({.op = "GatherElements",
                     .name = "gather_elements_cpu",
                     .dtypes = kMovedTypes,
                     .run = run_gather_elements,
                     .unsupported = elements_unsupported,
                     .prepare = prepare_lines,
                     .input_rules = {LayoutRule::Contiguous, LayoutRule::Any}});
REGISTER_CPU_KERNEL({.op = "ScatterElements",
                     .name = "scatter_elements_cpu",
                     .dtypes = kRealTypes,
                     .run = run_scatter_elements,
                     .unsupported = reduction_unsupported,
                     .workspace_bytes = sum_bytes,
                     .prepare = prepare_lines,
                     .input_rules = {LayoutRule::Contiguous, LayoutRule::Any},
                     .inplace = true,
                     .inplace_operand = 0});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
