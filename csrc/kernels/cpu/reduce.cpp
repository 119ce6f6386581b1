// ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd over any axes.
// Method: dimensions, in the order of x's memory, collapse to alternating kept and reduced ones
// (kernels/reduced_dims.h), so that channels-last images are not copied. If the innermost is
// reduced, rows are folded by 32 (floats) or 8 partial results, short ones several at a time
// (short_rows.h); if it is kept, whole rows are added to a strip of column accumulators. Long
// reductions to few outputs are split; partial results lie in the workspace and are combined in
// order. Splits depend on the shape only, so the number of threads changes no bit. Float sums
// continue in double after at most kRowChunk (rows) or 32 (columns) additions. Integers add up in
// int64. Bytes moved: x once.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/short_rows.h"
#include "kernels/iteration.h"
#include "kernels/reduced_dims.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kSplitElements = 32768;  // least part of a reduction worth a task of its own
constexpr int64_t kMaxTasks = 64;          // which bounds the workspace, as does kTaskColumns
constexpr int64_t kTaskColumns = 512;
constexpr int64_t kStrip = 2048;        // columns at a time, whose accumulators stay in cache
constexpr int64_t kColumnBlock = 32;    // rows between two carries to the accumulators in double
constexpr int64_t kNarrow = 64;         // longest row of columns that is added several at a time
constexpr int64_t kJoined = 512;        // elements of such rows together
constexpr int64_t kShortIntegers = 32;  // longest row whose partial results cost more than itself
constexpr int64_t kShortExtremum = 15;  // the same of floats, which may be looked at twice

// What the reduction does, from the facts alone.
struct ReducePlan {
  IterationSpace kept, reduced;  // operand 0: x; the innermost dimension of x is in neither
  int64_t inner = 1;             // size of the innermost dimension
  bool inner_reduced = false;
  bool is_floats = false;  // computed in float32
  bool is_extremum = false;
  int64_t outputs = 1, per_output = 1;
  int64_t splits = 1;  // of each output's reduction
  double divisor = 1;  // of means

  /// From one partial result of an output to its next; those of neighbouring columns lie together.
  int64_t between_splits() const { return inner_reduced ? 1 : inner; }
  int64_t first_partial(int64_t output) const {
    if (splits == 1) return output;
    const int64_t apart = between_splits();
    return output / apart * apart * splits + output % apart;
  }
  /// Whether each output is one short row of x.
  bool short_rows() const {
    return inner_reduced && per_output == inner && splits == 1 &&
           inner <= (!is_floats    ? kShortIntegers
                     : is_extremum ? kShortExtremum
                                   : kShortRow);
  }
};

void push_dim(IterationSpace& space, int64_t size, int64_t stride) {
  if (space.strides.empty()) space.strides.assign(1, Coords{});
  space.sizes[space.rank] = size;
  space.strides[0][space.rank++] = stride;
}

ReducePlan make_plan(const StepFacts& facts) {
  const std::vector<DimGroup> groups = reduced_dims(facts);
  ReducePlan plan;
  plan.is_extremum = facts.node().op == "ReduceMax" || facts.node().op == "ReduceMin";
  dispatch_real(facts.inputs[0].dtype,
                [&]<class T> { plan.is_floats = std::is_same_v<ComputeOf<T>, float>; });
  for (const DimGroup& group : groups)
    (group.reduced ? plan.per_output : plan.outputs) *= group.size;
  plan.inner = groups.back().size;
  plan.inner_reduced = groups.back().reduced;
  int64_t stride = plan.outputs * plan.per_output;
  for (size_t g = 0; g + 1 < groups.size(); ++g) {
    stride /= std::max<int64_t>(groups[g].size, 1);
    push_dim(groups[g].reduced ? plan.reduced : plan.kept, groups[g].size, stride);
  }
  for (IterationSpace* space : {&plan.kept, &plan.reduced})
    if (space->rank == 0) push_dim(*space, 1, 0);
  plan.divisor = facts.node().op == "ReduceMean" ? static_cast<double>(plan.per_output) : 1.0;
  const int64_t width = plan.inner_reduced ? 1 : std::min(plan.inner, kTaskColumns);
  const int64_t tasks = std::max<int64_t>(1, plan.outputs / std::max<int64_t>(width, 1));
  plan.splits = std::clamp(plan.per_output * width / kSplitElements, int64_t{1},
                           std::max<int64_t>(1, kMaxTasks / tasks));
  return plan;
}

// --- operations ----------------------------------------------------------------------------------
// C is how elements are computed, Partial what is carried between parts.
template <class T>
struct Sum {
  using C = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, ComputeOf<T>, int64_t>;
  using Partial = std::conditional_t<std::is_floating_point_v<C>, double, int64_t>;
  using OfComputed = Sum<C>;  // combines partial results alike
  static constexpr Partial kStart = 0;
  static C add(C a, C b) { return a + b; }
  static Partial combine(Partial a, Partial b) { return a + b; }
  static RowDoubles combine(const RowDoubles& a, const RowDoubles& b) { return a + b; }
};
template <class T>
struct Prod {
  using C = std::conditional_t<std::is_floating_point_v<ComputeOf<T>>, double, int64_t>;
  using Partial = C;
  using OfComputed = Prod<C>;
  static constexpr Partial kStart = 1;
  static C add(C a, C b) { return combine(a, b); }
  static RowDoubles combine(const RowDoubles& a, const RowDoubles& b) { return a * b; }
  static Partial combine(Partial a, Partial b) {
    if constexpr (std::is_same_v<Partial, int64_t>) {  // wraps around
      return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
// NaN wins.
template <class T, bool largest>
struct Extremum {
  using C = std::conditional_t<std::is_same_v<T, bool>, uint8_t, ComputeOf<T>>;
  using Partial = C;
  using OfComputed = Extremum<C, largest>;
  static constexpr C kLimit = std::numeric_limits<C>::has_infinity
                                  ? std::numeric_limits<C>::infinity()
                                  : std::numeric_limits<C>::max();
  static constexpr C kStart =
      !largest ? kLimit
               : (std::numeric_limits<C>::has_infinity ? -kLimit : std::numeric_limits<C>::min());
  static C add(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return largest ? std::max(a, b) : std::min(a, b);
    } else {
      const C better = (largest ? b > a : b < a) ? b : a;  // two selections become vectors
      return b != b ? b : better;
    }
  }
  static Partial combine(Partial a, Partial b) { return add(a, b); }
  static FloatVec add(FloatVec a, FloatVec b) {
    return select(b == b, largest ? larger(b, a) : smaller(b, a), b);
  }
  static RowLanes combine(const RowLanes& a, const RowLanes& b) {
    return map_rows([](FloatVec x, FloatVec y) { return add(x, y); }, a, b);
  }
};
template <class T>
using Max = Extremum<T, true>;
template <class T>
using Min = Extremum<T, false>;

// --- rows ----------------------------------------------------------------------------------------
/// Lanes [kHalf, 2 kHalf) folded onto those before them, and so on down to one.
template <class Op, int32_t kHalf = static_cast<int32_t>(FloatVec::kCount / 2)>
float fold_lanes(FloatVec x) {
  IntLanes lanes;
  for (int32_t i = 0; i < FloatVec::kCount; ++i)
    lanes[i] = (i + kHalf) % static_cast<int32_t>(FloatVec::kCount);
  x = Op::add(x, FloatVec(__builtin_shuffle(x.v, lanes)));
  if constexpr (kHalf > 1)
    return fold_lanes<Op, kHalf / 2>(x);
  else
    return x.v[0];
}

/// An extremum, for which elements may be looked at twice.
template <class Op>
float extremum_of_row(const float* x, int64_t count) {
  constexpr int64_t kCount = FloatVec::kCount;
  if (count < kCount)
    return fold_lanes<Op>(
        select(first_lanes(count), FloatVec::load(x, count), FloatVec(Op::kStart)));
  FloatVec best[4] = {FloatVec::load(x), FloatVec(Op::kStart), FloatVec(Op::kStart),
                      FloatVec(Op::kStart)};
  int64_t i = kCount;
  for (; i + 4 * kCount <= count; i += 4 * kCount) {
    ORTM_UNROLL
    for (int64_t k = 0; k < 4; ++k) best[k] = Op::add(best[k], FloatVec::load(x + i + k * kCount));
  }
  for (; i + kCount <= count; i += kCount) best[0] = Op::add(best[0], FloatVec::load(x + i));
  if (i < count) best[1] = Op::add(best[1], FloatVec::load(x + count - kCount));
  return fold_lanes<Op>(Op::add(Op::add(best[0], best[1]), Op::add(best[2], best[3])));
}

template <class Op, class T>
__attribute__((noinline)) typename Op::Partial reduce_row(const T* x, int64_t count) {
  using C = typename Op::C;
  if constexpr (std::is_same_v<Op, Sum<T>> && std::is_same_v<C, float>) {
    C buffer[kRowChunk];
    double total = 0;
    for_each_chunk(count, [&](int64_t at, int64_t n) {
      total += row_sum(
          n, [](auto v) { return v; }, computed_row(x + at, n, buffer));
    });
    return total;
  } else if constexpr (std::is_same_v<C, float>) {  // an extremum
    C buffer[kRowChunk];
    C result = Op::kStart;
    for_each_chunk(count, [&](int64_t at, int64_t n) {
      result = Op::add(result, extremum_of_row<Op>(computed_row(x + at, n, buffer), n));
    });
    return result;
  } else if constexpr (std::is_integral_v<C> && !std::is_same_v<Op, Sum<T>> &&
                       !std::is_same_v<Op, Prod<T>>) {
    C result = Op::kStart;  // an order of its own changes nothing, so the compiler makes vectors
    for (int64_t i = 0; i < count; ++i) result = Op::add(result, static_cast<C>(x[i]));
    return result;
  } else {
    constexpr int kLanes = 8;
    C lanes[kLanes];
    std::fill(lanes, lanes + kLanes, static_cast<C>(Op::kStart));
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
      for (int k = 0; k < kLanes; ++k)
        lanes[k] = Op::add(lanes[k], static_cast<C>(computed(x[i + k])));
    for (int k = 0; i < count; ++i, ++k)
      lanes[k] = Op::add(lanes[k], static_cast<C>(computed(x[i])));
    typename Op::Partial result = lanes[0];
    for (int k = 1; k < kLanes; ++k) result = Op::combine(result, lanes[k]);
    return result;
  }
}

// Rows of `count` elements that follow one another, each in order; eight at a time, because the
// elements of one wait for each other.
template <class Op, class T>
void reduce_rows_in_order(const T* x, int64_t rows, int64_t count, typename Op::Partial* out) {
  using C = typename Op::C;
  constexpr int64_t kRows = 8;
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) {
    typename Op::Partial results[kRows];
    std::fill(results, results + kRows, static_cast<typename Op::Partial>(Op::kStart));
    const T* from = x + r * count;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < kRows; ++k)
        results[k] = Op::combine(results[k], static_cast<C>(computed(from[k * count + i])));
    std::copy(results, results + kRows, out + r);
  }
  for (; r < rows; ++r) {
    out[r] = Op::kStart;
    for (int64_t i = 0; i < count; ++i)
      out[r] = Op::combine(out[r], static_cast<C>(computed(x[r * count + i])));
  }
}

// The same, bit for bit; floats in vectors, unless the doubles of a few of them are less work.
template <class Op, class T>
__attribute__((noinline)) void reduce_short_rows(const T* x, int64_t rows, int64_t count,
                                                 typename Op::Partial* out) {
  using Partial = typename Op::Partial;
  if constexpr (std::is_same_v<ComputeOf<T>, float>) {
    constexpr bool kInDouble = std::is_same_v<Partial, double>;
    using Results = std::conditional_t<kInDouble, RowDoubles, RowLanes>;
    if (!kInDouble || count > 8)
      return for_each_rows_together(rows, [&](int64_t row, int64_t together) {
        RowColumns columns(together, count);
        columns.load(x + row * count);
        Results results(static_cast<Partial>(Op::kStart));
        for (int64_t j = 0; j < count; ++j) results = Op::combine(results, Results(columns[j]));
        Partial partials[kRowsTogether];
        results.store(partials);
        std::copy(partials, partials + together, out + row);
      });
  }
  reduce_rows_in_order<Op>(x, rows, count, out);
}

// Reduces elements [begin, end) of one output's reduction, in row-major order of x.
template <class Op, class T>
typename Op::Partial reduce_range(const ReducePlan& plan, const T* x, int64_t begin, int64_t end) {
  typename Op::Partial result = Op::kStart;
  while (begin < end) {
    const int64_t row = begin / plan.inner, column = begin - row * plan.inner;
    const int64_t count = std::min(plan.inner - column, end - begin);
    const T* from = x + plan.reduced.offset(0, plan.reduced.unravel(row)) + column;
    result = Op::combine(result, reduce_row<Op>(from, count));
    begin += count;
  }
  return result;
}

// --- columns -------------------------------------------------------------------------------------
// Accumulators of a strip: in C for at most kColumnBlock rows, then carried to Partial.
template <class Op>
struct Strip {
  typename Op::C recent[kStrip];
  typename Op::Partial total[kStrip];
  int64_t width;
  int64_t rows = 0;

  explicit Strip(int64_t columns) : width(columns) {
    std::fill(recent, recent + width, static_cast<typename Op::C>(Op::kStart));
    std::fill(total, total + width, static_cast<typename Op::Partial>(Op::kStart));
  }
  void carry() {
    for (int64_t c = 0; c < width; ++c) {
      total[c] = Op::combine(total[c], recent[c]);
      recent[c] = static_cast<typename Op::C>(Op::kStart);
    }
    rows = 0;
  }
  // `count` rows of `columns` elements, `stride` apart.
  template <class T>
  __attribute__((noinline)) void add(const T* x, int64_t count, int64_t stride, int64_t columns) {
    using C = typename Op::C;
    for (int64_t r = 0; r < count;) {
      if (rows >= kColumnBlock) carry();
      const T* from = x + r * stride;
      // Rows of integers are rare: one by one, which is compiled in a third of the time.
      const int64_t rest = std::is_integral_v<C> ? 1 : count - r;
      const int64_t together = rest >= 8 ? 8 : rest >= 4 ? 4 : 1;
      if (together == 8) {  // from memory a tenth to a third faster than 4 (Zen 4)
        ORTM_SIMD
        for (int64_t i = 0; i < columns; ++i)
          recent[i] = Op::add(Op::add(recent[i], four(from + i, stride)),
                              four(from + 4 * stride + i, stride));
      } else if (together == 4) {
        ORTM_SIMD
        for (int64_t i = 0; i < columns; ++i)
          recent[i] = Op::add(recent[i], four(from + i, stride));
      } else {
        ORTM_SIMD
        for (int64_t i = 0; i < columns; ++i)
          recent[i] = Op::add(recent[i], static_cast<C>(computed(from[i])));
      }
      r += together;
      rows += together;
    }
  }
  // Four rows of one column.
  template <class T>
  static typename Op::C four(const T* x, int64_t stride) {
    using C = typename Op::C;
    const C left = Op::add(static_cast<C>(computed(x[0])), static_cast<C>(computed(x[stride])));
    const C right =
        Op::add(static_cast<C>(computed(x[2 * stride])), static_cast<C>(computed(x[3 * stride])));
    return Op::add(left, right);
  }
};

// Reduces rows [begin, end) of one strip of columns into out.
template <class Op, class T>
void reduce_columns(const ReducePlan& plan, const T* x, int64_t columns, int64_t begin, int64_t end,
                    typename Op::Partial* out) {
  const int last = plan.reduced.rank - 1;
  const int64_t run = plan.reduced.sizes[last], stride = plan.reduced.strides[0][last];
  // Narrow rows that follow one another are added several at a time, as one wide row.
  const bool narrow = columns == plan.inner && stride == columns && columns <= kNarrow;
  const int64_t together = narrow ? kJoined / columns : 1;
  Strip<Op> strip(columns * together);
  while (begin < end) {
    const int64_t row = begin % run, count = std::min(run - row, end - begin);
    const T* from = x + plan.reduced.offset(0, plan.reduced.unravel(begin));
    if (narrow) {
      const int64_t wide = count / together;
      strip.add(from, wide, stride * together, columns * together);
      strip.add(from + wide * together * stride, 1, 0, (count - wide * together) * columns);
    } else {
      strip.add(from, count, stride, columns);
    }
    begin += count;
  }
  strip.carry();
  for (int64_t c = 0; c < columns; ++c) {
    typename Op::Partial result = strip.total[c];
    for (int64_t k = 1; k < together; ++k)
      result = Op::combine(result, strip.total[c + k * columns]);
    out[c] = result;
  }
}

// --- the whole -----------------------------------------------------------------------------------
// Results [begin, end) from partial results, the first of which are those of result `first`.
template <class Op, class Partial>
void store_results(const ReducePlan& plan, const Partial* partials, int64_t first, int64_t begin,
                   int64_t end, const TensorView& out) {
  dispatch_real(out.dtype, [&]<class R> {
    R* results = out.as<R>();
    const int64_t apart = plan.between_splits();
    if (plan.splits == 1 && plan.divisor == 1 && !std::is_same_v<R, bool>) {
      const Partial* from = partials - first;
      ORTM_SIMD
      for (int64_t i = begin; i < end; ++i) results[i] = stored<R>(from[i]);
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      const Partial* parts = partials + plan.first_partial(i - first);
      Partial result = parts[0];
      for (int64_t s = 1; s < plan.splits; ++s) result = Op::combine(result, parts[s * apart]);
      if (plan.divisor != 1)
        result = static_cast<Partial>(static_cast<double>(result) / plan.divisor);
      if constexpr (std::is_same_v<R, bool>) {
        results[i] = result != 0;
      } else {
        results[i] = stored<R>(result);
      }
    }
  });
}

// Results of a block of rows leave it while they are in cache.
template <class Op, class T>
void reduce_rows_together(const KernelArgs& args, const ReducePlan& plan) {
  constexpr int64_t kBlock = 256;
  const T* x = args.in[0].as<T>();
  parallel_ranges(
      args.context, plan.outputs, grain_for(plan.inner), [&](int64_t begin, int64_t end) {
        typename Op::Partial partials[kBlock];
        for (int64_t row = begin; row < end; row += kBlock) {
          const int64_t rows = std::min(kBlock, end - row);
          reduce_short_rows<Op>(x + row * plan.inner, rows, plan.inner, partials);
          store_results<typename Op::OfComputed>(plan, partials, row, row, row + rows, args.out[0]);
        }
      });
}

// Partial results go to [outputs, splits] in the workspace, and those of strips to
// [kept, splits, inner].
template <class Op, class T>
void reduce_rows(const KernelArgs& args, const ReducePlan& plan, typename Op::Partial* partials) {
  const T* x = args.in[0].as<T>();
  const int64_t part = ceil_div(plan.per_output, plan.splits);
  if (part == plan.inner)  // each output is a row of x
    return parallel_ranges(args.context, plan.outputs, grain_for(part),
                           [&](int64_t begin, int64_t end) {
                             for (int64_t row = begin; row < end; ++row)
                               partials[row] = reduce_row<Op>(x + row * part, part);
                           });
  parallel_ranges(args.context, plan.outputs * plan.splits, grain_for(part),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) {
                      const int64_t output = item / plan.splits, split = item % plan.splits;
                      const T* from = x + plan.kept.offset(0, plan.kept.unravel(output));
                      partials[item] = reduce_range<Op>(
                          plan, from, split * part, std::min(plan.per_output, (split + 1) * part));
                    }
                  });
}

template <class Op, class T>
void reduce_strips(const KernelArgs& args, const ReducePlan& plan, typename Op::Partial* partials) {
  const T* x = args.in[0].as<T>();
  const int64_t strips = ceil_div(plan.inner, kStrip),
                part = ceil_div(plan.per_output, plan.splits);
  const int64_t items = plan.kept.count() * strips * plan.splits;
  auto run_item = [&](int64_t item) {
    const int64_t split = item % plan.splits, strip = item / plan.splits % strips;
    const int64_t outer = item / plan.splits / strips;
    const int64_t column = strip * kStrip, columns = std::min(kStrip, plan.inner - column);
    const T* from = x + plan.kept.offset(0, plan.kept.unravel(outer)) + column;
    reduce_columns<Op>(plan, from, columns, split * part,
                       std::min(plan.per_output, (split + 1) * part),
                       partials + (outer * plan.splits + split) * plan.inner + column);
  };
  parallel_ranges(args.context, items, grain_for(part * std::min(plan.inner, kStrip)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t item = begin; item < end; ++item) run_item(item);
                  });
}

template <template <class> class Op>
void run_reduce(const KernelArgs& args) {
  const ReducePlan& plan = *static_cast<const ReducePlan*>(args.prepared);
  if (plan.outputs == 0) return;
  dispatch_real(args.in[0].dtype, [&]<class T> {
    using Partial = typename Op<T>::Partial;
    Partial* partials = static_cast<Partial*>(args.workspace);
    if (plan.per_output == 0) {
      std::fill(partials, partials + plan.outputs * plan.splits, Partial(Op<T>::kStart));
    } else if (plan.short_rows()) {
      return reduce_rows_together<Op<T>, T>(args, plan);
    } else if (plan.inner_reduced) {
      reduce_rows<Op<T>, T>(args, plan, partials);
    } else {
      reduce_strips<Op<T>, T>(args, plan, partials);
    }
    parallel_ranges(
        args.context, plan.outputs, grain_for(plan.splits), [&](int64_t begin, int64_t end) {
          store_results<typename Op<T>::OfComputed>(plan, partials, 0, begin, end, args.out[0]);
        });
  });
}

std::shared_ptr<const void> prepare_reduce(const StepFacts& facts) {
  return std::make_shared<const ReducePlan>(make_plan(facts));
}

size_t reduce_workspace(const StepFacts& facts) {
  const ReducePlan plan = make_plan(facts);
  if (plan.short_rows() && plan.per_output > 0) return 0;
  return static_cast<size_t>(plan.outputs * plan.splits) * 8;
}

#define ORTM_REGISTER_REDUCTION(op_name, kernel_name, Op, why_not, ...) \
  REGISTER_CPU_KERNEL({.op = op_name,                                   \
                       .name = kernel_name,                             \
                       .dtypes = kRealTypes,                            \
                       .run = run_reduce<Op>,                           \
                       .unsupported = why_not,                          \
                       .workspace_bytes = reduce_workspace,             \
                       .prepare = prepare_reduce,                       \
                       __VA_ARGS__})
#define ORTM_REGISTER_IN_ORDER(op_name, kernel_name, Op)                         \
  ORTM_REGISTER_REDUCTION(op_name, kernel_name "_cpu", Op, in_order_unsupported, \
                          .layout = LayoutRule::MemoryFormat)
// Channels-last x is copied.
#define ORTM_REGISTER_ROW_MAJOR(op_name, kernel_name, Op)                                \
  ORTM_REGISTER_REDUCTION(op_name, kernel_name "_row_major_cpu", Op, reduce_unsupported, \
                          .layout = LayoutRule::Contiguous, .priority = -1)

ORTM_REGISTER_IN_ORDER("ReduceSum", "reduce_sum", Sum);
ORTM_REGISTER_IN_ORDER("ReduceMean", "reduce_mean", Sum);
ORTM_REGISTER_IN_ORDER("ReduceMax", "reduce_max", Max);
ORTM_REGISTER_IN_ORDER("ReduceMin", "reduce_min", Min);
ORTM_REGISTER_IN_ORDER("ReduceProd", "reduce_prod", Prod);
ORTM_REGISTER_ROW_MAJOR("ReduceSum", "reduce_sum", Sum);
ORTM_REGISTER_ROW_MAJOR("ReduceMean", "reduce_mean", Sum);
ORTM_REGISTER_ROW_MAJOR("ReduceMax", "reduce_max", Max);
ORTM_REGISTER_ROW_MAJOR("ReduceMin", "reduce_min", Min);
ORTM_REGISTER_ROW_MAJOR("ReduceProd", "reduce_prod", Prod);

#undef ORTM_REGISTER_REDUCTION
#undef ORTM_REGISTER_IN_ORDER
#undef ORTM_REGISTER_ROW_MAJOR

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
