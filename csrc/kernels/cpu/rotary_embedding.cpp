// RotaryEmbedding: a row of x at a time, where it lies; y has the order of x's dimensions. 16-bit
// floats are turned in float32 and rounded once. Bytes moved: x, the tables and y once.
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct RotaryShape {
  Sizes sizes;                   // of x
  int64_t half = 0;              // pairs of a row
  std::array<Sizes, 3> strides;  // of x, y and the tables, which are alike; 0 where broadcast
  bool interleaved = false;

  explicit RotaryShape(const StepFacts& facts)
      : sizes(facts.inputs[0].layout.sizes),
        half(facts.inputs[1].layout.sizes[3]),
        strides{facts.inputs[0].layout.strides, facts.outputs[0].layout.strides,
                contiguous_strides(facts.inputs[1].layout.sizes)},
        interleaved(facts.node().attrs.flag("interleaved")) {
    for (size_t d = 0; d < 3; ++d)
      if (facts.inputs[1].layout.sizes[d] == 1) strides[2][d] = 0;
  }

  int64_t rows() const { return sizes[0] * sizes[1] * sizes[2]; }
  /// Where a row begins.
  int64_t offset(size_t operand, int64_t row) const {
    const Sizes& s = strides[operand];
    return row / (sizes[1] * sizes[2]) * s[0] + row / sizes[2] % sizes[1] * s[1] +
           row % sizes[2] * s[2];
  }
};

std::shared_ptr<const void> prepare_rotary(const StepFacts& facts) {
  return std::make_shared<const RotaryShape>(facts);
}

/// Pairs of elements `apart` from each other, of which neighbours are `step` apart.
template <int64_t kStep, class T>
void turn_row(const T* x, const T* cosines, const T* sines, int64_t half, int64_t apart, T* y) {
  ORTM_SIMD
  for (int64_t i = 0; i < half; ++i) {
    const auto a = computed(x[i * kStep]), b = computed(x[i * kStep + apart]);
    const auto c = computed(cosines[i]), s = computed(sines[i]);
    y[i * kStep] = stored<T>(a * c - b * s);
    y[i * kStep + apart] = stored<T>(a * s + b * c);
  }
}

void run_rotary(const KernelArgs& args) {
  const auto& shape = *static_cast<const RotaryShape*>(args.prepared);
  const int64_t width = shape.sizes[3], turned = 2 * shape.half;
  dispatch_float(args.in[0].dtype, [&]<class T> {
    parallel_ranges(args.context, shape.rows(), grain_for(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = args.in[0].as<T>() + shape.offset(0, row);
        T* y = args.out[0].as<T>() + shape.offset(1, row);
        const int64_t table = shape.offset(2, row);
        const T *cosines = args.in[1].as<T>() + table, *sines = args.in[2].as<T>() + table;
        if (shape.interleaved)
          turn_row<2>(x, cosines, sines, shape.half, 1, y);
        else
          turn_row<1>(x, cosines, sines, shape.half, shape.half, y);
        std::copy(x + turned, x + width, y + turned);
      }
    });
  });
}

std::vector<Sizes> strides_of_x(const StepFacts& facts) {
  return {strides_like(facts.outputs[0].layout.sizes, facts.inputs[0].layout)};
}

Reason rotary_unsupported(const StepFacts& facts) {
  const Layout& x = facts.inputs[0].layout;
  const bool is_placed = x.strides.size() == 4 && x.sizes.size() == 4;  // else not known yet
  if (is_placed && (!is_inner_contiguous(x) || strides_like(x.sizes, x).back() != 1))
    return "the elements of rows are not neighbours";
  return {};
}

KernelDef rotary_kernel(std::string_view name) {
  return {.op = "RotaryEmbedding",
          .name = name,
          .dtypes = kAllFloats,
          .run = run_rotary,
          .output_strides = strides_of_x,
          .prepare = prepare_rotary};
}

/// Reads rows where they lie.
KernelDef kernel_in_place() {
  KernelDef kernel = rotary_kernel("rotary_embedding_cpu");
  kernel.unsupported = rotary_unsupported;
  kernel.input_rules = {LayoutRule::Any};
  return kernel;
}

/// Rows whose elements are no neighbours are copied first.
KernelDef kernel_of_copies() {
  KernelDef kernel = rotary_kernel("rotary_embedding_copied_cpu");
  kernel.input_rules = {LayoutRule::Contiguous};
  kernel.priority = -1;
  return kernel;
}

REGISTER_CPU_KERNEL((kernel_in_place()));
REGISTER_CPU_KERNEL((kernel_of_copies()));

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
