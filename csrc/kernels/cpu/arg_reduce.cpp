// ArgMax, ArgMin: the index along `axis` of the first largest (smallest) element; NaN counts as
// both. Bytes moved: x once.
#include "kernels/cpu/row_math.h"

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
