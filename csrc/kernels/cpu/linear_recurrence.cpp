// LinearRecurrence along `axis`, from the end if `reverse`. Floats are multiplied in double, as by
// PyTorch's cumprod. Bytes moved: a, b and y once.
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kRecurrentColumns = 64, kRecurrentRows = 16;

/// How the lines of one run are computed.
struct RecurrenceRule {
  int64_t count, stride;
  double initial;
  bool shift;
};

/// `columns` <= kRecurrentColumns lines, `between` elements apart; b may be null. Several at a
/// time, as each product waits for the one before it.
template <class T>
void recurrence_columns(const T* a, const T* b, T* y, int64_t columns, int64_t between,
                        const RecurrenceRule& rule) {
  double state[kRecurrentColumns];
  for (int64_t j = 0; j < columns; ++j) state[j] = rule.shift ? 0.0 : rule.initial;
  for (int64_t i = 0; i < rule.count; ++i, a += rule.stride, y += rule.stride) {
    // The first element has no element before it; its state is 0 then.
    const T* factors = rule.shift && i > 0 ? a - rule.stride : a;
    const bool first = rule.shift && i == 0;
    ORTM_SIMD
    for (int64_t j = 0; j < columns; ++j) {
      const double before =
          first ? 0.0 : static_cast<double>(computed(factors[j * between])) * state[j];
      state[j] = before + (b ? static_cast<double>(computed(b[j * between])) : 0.0);
      y[j * between] = stored<T>(static_cast<ComputeOf<T>>(state[j]));
    }
    if (b) b += rule.stride;
  }
}

void run_linear_recurrence(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const AxisSplit split = split_at(args.facts.inputs[0].layout.sizes, attrs.integer("axis", 0));
  if (split.axis == 0) return;
  const bool reverse = attrs.flag("reverse");
  const RecurrenceRule rule{split.axis, reverse ? -split.inner : split.inner,
                            attrs.number("initial", 0.0), attrs.flag("shift")};
  const int64_t start = reverse ? (split.axis - 1) * split.inner : 0;
  const bool has_b = args.in.size() > 1 && args.in[1].data;
  dispatch_float(args.in[0].dtype, [&]<class T> {
    parallel_ranges(
        args.context, split.outer * split.inner, grain_for(split.axis),
        [&](int64_t begin, int64_t end) {
          for (int64_t line = begin; line < end;) {
            const int64_t inner = line % split.inner;
            const int64_t at = line / split.inner * split.axis * split.inner + inner + start;
            const int64_t beside = split.inner == 1 ? kRecurrentRows : split.inner - inner;
            const int64_t columns = std::min({kRecurrentColumns, beside, end - line});
            const int64_t between = split.inner == 1 ? split.axis : 1;
            recurrence_columns(args.in[0].as<T>() + at, has_b ? args.in[1].as<T>() + at : nullptr,
                               args.out[0].as<T>() + at, columns, between, rule);
            line += columns;
          }
        });
  });
}

REGISTER_CPU_KERNEL({.op = "LinearRecurrence",
                     .name = "linear_recurrence_cpu",
                     .dtypes = kAllFloats,
                     .run = run_linear_recurrence});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
