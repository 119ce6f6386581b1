// ArgMax, ArgMin: the index along `axis` of the first largest (smallest) element; NaN counts as
// both. Method: along the last axis, rows of floats are searched for their extremum and then, in
// the piece that holds it, for its place; short ones sixteen at a time. Along another axis, vectors
// of neighbouring columns are. Bytes moved: x once.
#include "kernels/cpu/elementary_vec.h"
#include "kernels/cpu/short_rows.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <bool largest, class C>
bool beats(C candidate, C best) {
  if (best != best) return false;
  return candidate != candidate || (largest ? candidate > best : candidate < best);
}

template <bool largest, class T>
int64_t find_best(const T* x, int64_t count, int64_t stride) {
  int64_t best_index = 0;
  auto best = computed(x[0]);
  for (int64_t i = 1; i < count; ++i) {
    const auto candidate = computed(x[i * stride]);
    if (!beats<largest>(candidate, best)) continue;
    best = candidate;
    best_index = i;
  }
  return best_index;
}

template <bool largest>
IntLanes beats(FloatVec candidate, FloatVec best) {
  const IntLanes further = largest ? candidate > best : candidate < best;
  return (best == best) & (further | ~(candidate == candidate));
}

// The first place of `best`, which is among the `count` numbers, or of NaN if it is that.
inline int64_t find_first(const float* x, int64_t count, float best) {
  const auto matches = [&](float v) { return v == best || (v != v && best != best); };
  const FloatVec bests(best);
  int64_t i = 0;
  for (; i + FloatVec::kCount <= count; i += FloatVec::kCount) {
    const FloatVec v = FloatVec::load(x + i);
    if (any_of((v == bests) | (~(v == v) & ~(bests == bests)))) break;
  }
  while (i + 1 < count && !matches(x[i])) ++i;
  return i;
}

// Of a row of floats.
template <bool largest, class T>
int64_t find_in_row(const T* x, int64_t count) {
  float buffer[kRowChunk];
  const float start = (largest ? -1 : 1) * std::numeric_limits<float>::infinity();
  float best = start;
  int64_t place = 0;
  for_each_chunk(count, [&](int64_t at, int64_t n) {
    const float* values = computed_row(x + at, n, buffer);
    const float found = fold_row(
        n, values, start, [](FloatVec a, FloatVec b) { return select(beats<largest>(b, a), b, a); },
        [](float a, float b) { return beats<largest>(b, a) ? b : a; });
    // Of a row of nothing but what folding starts from, the first element is the best.
    if (!beats<largest>(found, best)) return;
    best = found;
    place = at + find_first(values, n, found);
  });
  return place;
}

template <bool largest, class T>
void find_in_short_rows(const T* x, int64_t rows, int64_t n, int64_t* y) {
  for_each_rows_together(rows, [&](int64_t row, int64_t together) {
    RowColumns columns(together, n);
    columns.load(x + row * n);
    RowLanes best = columns[0], place(0.0f);
    for (int64_t j = 1; j < n; ++j) {
      const RowLanes candidate = columns[j];
      for (int k = 0; k < RowLanes::kVectors; ++k) {
        const IntLanes better = beats<largest>(candidate.v[k], best.v[k]);
        best.v[k] = select(better, candidate.v[k], best.v[k]);
        place.v[k] = select(better, FloatVec(j), place.v[k]);
      }
    }
    float places[kRowsTogether];
    place.store(places);
    for (int64_t i = 0; i < together; ++i) y[row + i] = static_cast<int64_t>(places[i]);
  });
}

// Rows [begin, end) that follow one another.
template <bool largest, class T>
void find_in_rows(const T* x, int64_t begin, int64_t end, int64_t n, int64_t* y) {
  if (is_short(n)) return find_in_short_rows<largest>(x + begin * n, end - begin, n, y + begin);
  for (int64_t row = begin; row < end; ++row) y[row] = find_in_row<largest>(x + row * n, n);
}

// Of columns of floats: y[j] for x[i * stride + j], kVectors vectors of them.
template <bool largest, int kVectors>
void find_in_columns(const float* x, int64_t count, int64_t stride, int64_t* y) {
  FloatVec best[kVectors], place[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    best[v] = FloatVec::load(x + v * FloatVec::kCount);
    place[v] = FloatVec(0.0f);
  }
  for (int64_t i = 1; i < count; ++i) {
    const FloatVec here(i);
    ORTM_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const FloatVec candidate = FloatVec::load(x + i * stride + v * FloatVec::kCount);
      const IntLanes better = beats<largest>(candidate, best[v]);
      best[v] = select(better, candidate, best[v]);
      place[v] = select(better, here, place[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v)
    for (int64_t j = 0; j < FloatVec::kCount; ++j)
      y[v * FloatVec::kCount + j] = static_cast<int64_t>(place[v].v[j]);
}

// Outputs [begin, end), which lie along `inner`; an index is exact as a float.
template <bool largest>
void find_between(const float* x, int64_t begin, int64_t end, const AxisSplit& split, int64_t* y) {
  constexpr int64_t kCount = FloatVec::kCount;
  for (int64_t i = begin; i < end;) {
    const int64_t outer = i / split.inner, inner = i % split.inner;
    const float* from = x + outer * split.axis * split.inner;
    const int64_t last = std::min(split.inner, inner + end - i);
    int64_t j = inner;
    for (; j + 4 * kCount <= last; j += 4 * kCount)
      find_in_columns<largest, 4>(from + j, split.axis, split.inner, y + i + j - inner);
    for (; j + kCount <= last; j += kCount)
      find_in_columns<largest, 1>(from + j, split.axis, split.inner, y + i + j - inner);
    for (; j < last; ++j) y[i + j - inner] = find_best<largest>(from + j, split.axis, split.inner);
    i += last - inner;
  }
}

template <bool largest>
void run_arg_reduce(const KernelArgs& args) {
  const AxisSplit split =
      split_at(args.facts.inputs[0].layout.sizes, args.facts.node().attrs.integer("axis", 0));
  const int64_t outputs = split.outer * split.inner;
  ORTM_CHECK(split.axis > 0 || outputs == 0, "[", args.facts.node().op,
             "] the axis must have elements, but its size is 0");
  int64_t* y = args.out[0].as<int64_t>();
  dispatch_real(args.in[0].dtype, [&]<class T> {
    const T* x = args.in[0].as<T>();
    parallel_ranges(args.context, outputs, grain_for(split.axis), [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<ComputeOf<T>, float>)
        if (split.inner == 1) return find_in_rows<largest>(x, begin, end, split.axis, y);
      if constexpr (std::is_same_v<T, float>)
        if (split.axis < int64_t{1} << 24) return find_between<largest>(x, begin, end, split, y);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t outer = i / split.inner, inner = i % split.inner;
        y[i] = find_best<largest>(x + outer * split.axis * split.inner + inner, split.axis,
                                  split.inner);
      }
    });
  });
}

Reason arg_unsupported(const StepFacts& facts) {
  if (facts.outputs[0].dtype != DType::Int64) return "the index is not an int64";
  return {};
}

REGISTER_CPU_KERNEL({.op = "ArgMax",
                     .name = "arg_max_cpu",
                     .dtypes = kRealTypes,
                     .run = run_arg_reduce<true>,
                     .unsupported = arg_unsupported});
REGISTER_CPU_KERNEL({.op = "ArgMin",
                     .name = "arg_min_cpu",
                     .dtypes = kRealTypes,
                     .run = run_arg_reduce<false>,
                     .unsupported = arg_unsupported});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
