// Conv of x [N, C, ...] and w [O, C / groups, ...], for programs without torch and for padding that
// torch's convolution does not take:
//   y[n, o, p] = bias[o] + sum over channels i of the group and places k of w[o, i, k] x[n, i,
//   p(k)]
// and FusedConv, which adds z and applies an activation. Methods: conv_plan.h chooses. Weights that
// a product reads are packed into workspace first, unless they come packed (PackConvWeights).
#include "kernels/cpu/conv_run.h"
#include "kernels/cpu/conv_step.h"
#include "kernels/cpu/read_range.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

ConvStep step_of(const StepFacts& facts) {
  ConvStep step = conv_step(facts);
  dispatch_float(facts.inputs[0].dtype,
                 [&]<class T> { plan_convolution<ComputeOf<T>>(step.shape, slots(facts)); });
  return step;
}

std::shared_ptr<const void> prepare_conv(const StepFacts& facts) {
  return std::make_shared<const ConvStep>(step_of(facts));
}

/// Elements of packed weights in the workspace, behind the scratch of all threads.
int64_t packed_elements(const StepFacts& facts, const ConvStep& step) {
  const ConvShape& s = step.shape;
  if (s.half_weights) return element_count(facts.inputs[1].layout.sizes);
  const bool packs = s.method != ConvMethod::Lines && !step.packed;
  return packs ? s.groups * packed_weight_elements(s.outputs, s.inner()) : 0;
}

size_t conv_workspace(const StepFacts& facts) {
  const ConvStep step = step_of(facts);
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    const int64_t elements =
        slots(facts) * conv_scratch_elements<T>(step.shape) + packed_elements(facts, step);
    return static_cast<size_t>(elements) * sizeof(ComputeOf<T>);
  });
}

constexpr int64_t kWidenedGrain = 1 << 16;  // elements worth a thread

template <class T>
class Convolution {
 public:
  using C = ComputeOf<T>;

  explicit Convolution(const KernelArgs& args)
      : args_(args),
        step_(*static_cast<const ConvStep*>(args.prepared)),
        s_(step_.shape),
        w_(s_.half_weights ? widened_weights() : args.in[1].as<T>()),
        finish_(operand(2), operand(3), args.out[0].as<T>(), step_.activation) {}

  void run() const {
    switch (s_.method) {
      case ConvMethod::Lines: return sum_lines();
      case ConvMethod::Image: return run_units(ConvImage<T>(s_, x(), packed_weights(), finish_));
      case ConvMethod::Product:
        return run_units(ConvProduct<T>(s_, x(), packed_weights(), finish_));
    }
  }

 private:
  const T* x() const { return args_.in[0].as<T>(); }
  const T* w() const { return w_; }
  const T* operand(size_t i) const { return args_.in.size() > i ? args_.in[i].as<T>() : nullptr; }
  int64_t group_weights() const {
    return step_.packed ? packed_weight_elements(s_.outputs, s_.inner()) : s_.outputs * s_.inner();
  }

  template <class Method>
  void run_units(const Method& method) const {
    ortmodule::run_units(args_, s_, method, static_cast<C*>(args_.workspace));
  }

  /// Where weights are packed or widened, behind the scratch of all threads.
  C* weight_workspace() const {
    return static_cast<C*>(args_.workspace) + slots(args_.facts) * conv_scratch_elements<T>(s_);
  }

  /// Packed weights of 16 bits in the type of the images.
  const T* widened_weights() const {
    if constexpr (std::is_same_v<T, float>) {
      const TensorView& packed = args_.in[1];
      float* wide = weight_workspace();
      parallel_ranges(args_.context, packed.element_count(), kWidenedGrain,
                      [&](int64_t begin, int64_t end) {
                        widen_row(packed.as<Float16>() + begin, end - begin, wide + begin);
                      });
      return wide;
    }
    throw InternalError("weights of 16 bits are for images of float32");
  }

  /// The weights as a product reads them.
  const C* packed_weights() const {
    if constexpr (std::is_same_v<C, T>)
      if (step_.packed) return w();
    const int64_t inner = s_.inner(), blocks = ceil_div(s_.outputs, kPackedOutputs);
    C* packed = weight_workspace();
    parallel_ranges(args_.context, s_.groups * blocks, grain_for(kPackedOutputs * inner),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i)
                        pack_weight_block<C>(w() + i / blocks * s_.outputs * inner, s_.outputs,
                                             s_.channels, s_.patches.places, i % blocks,
                                             packed + i * kPackedOutputs * inner);
                    });
    return packed;
  }

  void sum_lines() const {
    const int64_t places = s_.patches.places, inner = s_.inner();
    typename ConvLines<T>::Weights weights{w(), group_weights(), inner, places, 1};
    if (step_.packed && is_by_channel(s_))
      weights = {w(), places * kPackedOutputs, 0, 0, kPackedOutputs, kPackedOutputs};
    else if (step_.packed)
      weights = {w(), group_weights(), 1, kPackedOutputs, s_.channels * kPackedOutputs};
    run_units(ConvLines<T>(s_, x(), weights, finish_));
  }

  const KernelArgs& args_;
  const ConvStep& step_;
  const ConvShape& s_;
  const T* w_;
  ConvFinish<T> finish_;
};

void conv(const KernelArgs& args) {
  if (args.out[0].element_count() == 0) return;
  dispatch_float(args.in[0].dtype, [&]<class T> { Convolution<T>(args).run(); });
}

REGISTER_CPU_KERNEL({.op = "Conv",
                     .name = "conv_cpu",
                     .dtypes = kAllFloats,
                     .run = conv,
                     .unsupported = convolution_dimensions_unsupported,
                     .workspace_bytes = conv_workspace,
                     .prepare = prepare_conv,
                     .priority = -1});
REGISTER_CPU_KERNEL({.op = "FusedConv",
                     .name = "fused_conv_cpu",
                     .dtypes = kAllFloats,
                     .run = conv,
                     .unsupported = convolution_dimensions_unsupported,
                     .workspace_bytes = conv_workspace,
                     .prepare = prepare_conv,
                     .inplace = true,
                     .inplace_operand = 3,
                     .priority = -1});

// --- weights ---------------------------------------------------------------------------------
void pack_conv_weights(const KernelArgs& args) {
  const TensorView &w = args.in[0], &packed = args.out[0];
  const int64_t channels = w.sizes[1], groups = args.facts.node().attrs.integer("group");
  int64_t places = 1;
  for (int d = 2; d < w.rank; ++d) places *= w.sizes[d];
  const int64_t blocks = packed.sizes[0], outputs = w.sizes[0] / groups;
  const int64_t block_elements = channels * places * kPackedOutputs;
  const auto pack = [&]<class T> {
    followed_ranges(
        args.context, blocks, grain_for(block_elements),
        block_elements * static_cast<int64_t>(sizeof(T)), [&](int64_t begin, int64_t end) {
          ReadRange read(args.context);
          for (int64_t i = begin; i < end; ++i) {
            if (outputs == 1 && channels == 1) {
              const int64_t first = i * kPackedOutputs * places;
              pack_channel_block(w.as<T>(), groups, places, i, packed.as<T>() + first);
              const int64_t last = std::min(groups, (i + 1) * kPackedOutputs) * places;
              read.has_read(w.as<T>() + first, w.as<T>() + last);
              continue;
            }
            const int64_t group = i / (blocks / groups), block = i % (blocks / groups);
            const T* from = w.as<T>() + group * outputs * channels * places;
            pack_weight_block<T>(from, outputs, channels, places, block,
                                 packed.as<T>() + i * block_elements);
            const int64_t last = std::min(outputs, (block + 1) * kPackedOutputs);
            read.has_read(from + block * block_elements, from + last * channels * places);
          }
        });
  };
  if (w.dtype == DType::Float64) return pack.template operator()<double>();
  if (w.dtype == DType::Float16) return pack.template operator()<uint16_t>();  // only moved
  pack.template operator()<float>();
}

REGISTER_CPU_KERNEL({.op = "PackConvWeights",
                     .name = "pack_conv_weights_cpu",
                     .dtypes = {DType::Float32, DType::Float64, DType::Float16},
                     .run = pack_conv_weights,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
