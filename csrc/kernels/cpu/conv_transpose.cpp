// ConvTranspose of x [N, I, ...] and w [I, O / groups, ...], for programs without torch and for
// padding that torch's does not take: every x[n, i, p] w[i, o, k] is added to y[n, o, q] with
// q = stride p + dilation k - pad.
// Method: outputs whose q leaves the same remainder modulo the strides (a phase) see the same
// places k of w, and neighbours among them neighbouring p. So each phase is a convolution of stride
// 1 with some of the places, and nothing is multiplied by zeros in between. Images that
// prefer_channels_last marked have theirs channels-last in memory, and so has y. Weights are packed
// phase by phase, in workspace unless they come so (PackConvTransposeWeights).
#include "kernels/cpu/conv_pixels.h"
#include "kernels/cpu/conv_run.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Along one dimension: the outputs of one remainder, and the places of w that they see.
struct PhaseAxis {
  int64_t first = 0;  // output
  PatchAxis patch;
  std::vector<int64_t> places;
};

struct Phase {
  ConvShape conv;               // stride 1; its pixels are the outputs of the phase
  std::vector<int64_t> places;  // of w, in the order of the places of `conv`
  std::vector<int64_t> first;   // output, along each dimension
  int64_t packed_at = 0;        // the first of its packed weights
};

struct TransposedShape {
  int64_t images = 0, groups = 1, channels = 0, outputs = 0;  // the last two of a group
  std::vector<int64_t> strides, out;                          // along each dimension
  int64_t places = 1, pixels = 1;                             // of w and y
  std::vector<Phase> phases;
  int64_t packed = 0;  // elements of the packed weights of all phases

  int64_t blocks() const { return groups * ceil_div(outputs, kPackedOutputs); }
};

struct AxisFacts {
  int64_t in, out, kernel, stride, pad, dilation;
};

std::vector<PhaseAxis> phases_along(const AxisFacts& f) {
  std::vector<PhaseAxis> phases;
  for (int64_t first = 0; first < f.stride; ++first) {
    PhaseAxis phase;
    phase.first = first;
    phase.patch = {f.in, ceil_div(std::max<int64_t>(f.out - first, 0), f.stride), 1, {}};
    for (int64_t k = f.kernel - 1; k >= 0; --k) {  // offsets ascend
      const int64_t distance = first + f.pad - k * f.dilation;
      if (distance % f.stride != 0) continue;
      phase.patch.offsets.push_back(distance / f.stride);
      phase.places.push_back(k);
    }
    phases.push_back(std::move(phase));
  }
  return phases;
}

/// The phases of all dimensions together from those of each.
std::vector<Phase> combine(const std::vector<std::vector<PhaseAxis>>& along, const Sizes& kernel) {
  std::vector<Phase> phases;
  std::vector<size_t> index(along.size(), 0);
  for (bool more = true; more;) {
    Phase phase;
    std::vector<PatchAxis> axes;
    phase.places = {0};
    for (size_t d = 0; d < along.size(); ++d) {
      const PhaseAxis& axis = along[d][index[d]];
      axes.push_back(axis.patch);
      phase.first.push_back(axis.first);
      std::vector<int64_t> places;
      for (const int64_t outer : phase.places)
        for (const int64_t k : axis.places) places.push_back(outer * kernel[d] + k);
      phase.places = std::move(places);
    }
    phase.conv.patches = PatchShape(std::move(axes));
    phases.push_back(std::move(phase));
    more = false;
    for (size_t d = along.size(); d-- > 0 && !more;) {
      more = ++index[d] < along[d].size();
      if (!more) index[d] = 0;
    }
  }
  return phases;
}

/// w [I, O / groups, ...], or packed [blocks, ..., I / groups, outputs of a block].
struct WeightSizes {
  Sizes kernel;
  int64_t channels, outputs;  // of a group

  WeightSizes(const Sizes& w, const Attrs& attrs, int64_t groups) {
    if (attrs.has("packed_outputs")) {
      kernel.assign(w.begin() + 1, w.end() - 2);
      channels = w[w.size() - 2];
      outputs = attrs.integer("packed_outputs") / groups;
    } else {
      kernel.assign(w.begin() + 2, w.end());
      channels = w[0] / groups;
      outputs = w[1];
    }
  }
};

/// The phases of windows on x and y of these spatial sizes, and where their packed weights lie.
TransposedShape phases_of(const Attrs& attrs, const Sizes& w, const Sizes& in, const Sizes& out) {
  const std::vector<int64_t> pads = attrs.integers("pads"), dilations = attrs.integers("dilations");
  TransposedShape shape;
  shape.strides = attrs.integers("strides");
  shape.groups = std::max<int64_t>(attrs.integer("group"), 1);
  const WeightSizes weights(w, attrs, shape.groups);
  shape.channels = weights.channels;
  shape.outputs = weights.outputs;
  std::vector<std::vector<PhaseAxis>> along;
  for (size_t d = 0; d < in.size(); ++d) {
    along.push_back(
        phases_along({in[d], out[d], weights.kernel[d], shape.strides[d], pads[d], dilations[d]}));
    shape.out.push_back(out[d]);
    shape.places *= weights.kernel[d];
    shape.pixels *= out[d];
  }
  shape.phases = combine(along, weights.kernel);
  for (Phase& phase : shape.phases) {
    phase.conv.groups = shape.groups;
    phase.conv.channels = shape.channels;
    phase.conv.outputs = shape.outputs;
    phase.packed_at = shape.packed;
    shape.packed += shape.blocks() * kPackedOutputs * phase.conv.inner();
  }
  return shape;
}

/// The shape, whose phases are still to be planned.
TransposedShape unplanned_shape(const StepFacts& facts) {
  const Sizes &x = facts.inputs[0].layout.sizes, &y = facts.outputs[0].layout.sizes;
  TransposedShape shape = phases_of(facts.node().attrs, facts.inputs[1].layout.sizes,
                                    Sizes(x.begin() + 2, x.end()), Sizes(y.begin() + 2, y.end()));
  shape.images = x[0];
  for (Phase& phase : shape.phases) phase.conv.images = x[0];
  return shape;
}

/// Packed weights in the workspace, behind the scratch of all threads.
int64_t workspace_weights(const StepFacts& facts, const TransposedShape& shape) {
  return facts.node().attrs.has("packed_outputs") ? 0 : shape.packed;
}

TransposedShape shape_of(const StepFacts& facts) {
  TransposedShape shape = unplanned_shape(facts);
  for (Phase& phase : shape.phases)
    dispatch_float(facts.inputs[0].dtype,
                   [&]<class T> { plan_convolution<ComputeOf<T>>(phase.conv, slots(facts)); });
  return shape;
}

std::shared_ptr<const void> prepare_transposed(const StepFacts& facts) {
  return std::make_shared<const TransposedShape>(shape_of(facts));
}

/// Scratch of a thread: the most of all phases.
template <class T>
int64_t most_scratch(const TransposedShape& shape) {
  int64_t most = 0;
  for (const Phase& phase : shape.phases)
    if (phase.conv.patches.pixels > 0) most = std::max(most, conv_scratch_elements<T>(phase.conv));
  return most;
}

size_t transposed_workspace(const StepFacts& facts) {
  const TransposedShape shape = shape_of(facts);
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    const int64_t elements =
        slots(facts) * most_scratch<T>(shape) + workspace_weights(facts, shape);
    return static_cast<size_t>(elements) * sizeof(ComputeOf<T>);
  });
}

/// Writes lines of a phase to their places in y.
template <class T>
class PhaseFinish : public ConvFinish<T> {
 public:
  using C = ComputeOf<T>;

  PhaseFinish(const T* bias, T* y, const TransposedShape& shape, const Phase& phase)
      : ConvFinish<T>(bias, nullptr, y, ConvActivation()), shape_(shape), phase_(phase) {}

  bool is_direct() const { return false; }
  bool can_put() const { return false; }

  /// Outputs [at, at + count) of the phase, plane by plane; all of one plane.
  void write(const C* sums, int64_t at, int64_t count) const {
    const PatchShape& patches = phase_.conv.patches;
    const size_t last = shape_.out.size() - 1;
    const int64_t step = shape_.strides[last];
    T* plane = this->y() + at / patches.pixels * shape_.pixels;
    patches.for_each_segment(at % patches.pixels, count, [&](const PatchSegment& segment) {
      int64_t line = 0;
      for (size_t d = 0; d < last; ++d)
        line = line * shape_.out[d] + phase_.first[d] + segment.outer[d] * shape_.strides[d];
      T* to = plane + line * shape_.out[last] + phase_.first[last] + segment.first * step;
      const C* from = sums + segment.begin;
      for (int64_t i = 0; i < segment.count; ++i) to[i * step] = stored<T>(from[i]);
    });
  }

 private:
  const TransposedShape& shape_;
  const Phase& phase_;
};

/// Packs block `block` of the outputs of all groups, w [I, O / groups, places], for all phases.
template <class C, class T>
void pack_transposed_block(const TransposedShape& s, const T* w, int64_t block, C* packed) {
  const int64_t blocks_of_group = s.blocks() / s.groups;
  const int64_t group = block / blocks_of_group, first = block % blocks_of_group * kPackedOutputs;
  const int64_t count = std::min(kPackedOutputs, s.outputs - first);
  std::vector<C*> rows(static_cast<size_t>(s.places));  // of each place, for the first channel
  for (const Phase& phase : s.phases) {
    C* row = packed + phase.packed_at + block * kPackedOutputs * phase.conv.inner();
    for (const int64_t place : phase.places) {
      rows[static_cast<size_t>(place)] = row;
      row += s.channels * kPackedOutputs;
    }
  }
  for (int64_t channel = 0; channel < s.channels; ++channel) {
    const T* from = w + ((group * s.channels + channel) * s.outputs + first) * s.places;
    for (int64_t place = 0; place < s.places; ++place) {
      C* to = rows[static_cast<size_t>(place)] + channel * kPackedOutputs;
      for (int64_t o = 0; o < count; ++o) to[o] = computed(from[o * s.places + place]);
      for (int64_t o = count; o < kPackedOutputs; ++o) to[o] = C(0);
    }
  }
}

template <class C, class T>
void pack_transposed(const KernelContext& context, const TransposedShape& s, const T* w,
                     C* packed) {
  parallel_ranges(context, s.blocks(), grain_for(s.channels * s.places * kPackedOutputs),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t block = begin; block < end; ++block)
                      pack_transposed_block(s, w, block, packed);
                  });
}

/// The packed weights of all phases, which `memory` has room for if they do not come so.
template <class T>
const ComputeOf<T>* packed_phases(const KernelArgs& args, const TransposedShape& shape,
                                  ComputeOf<T>* memory) {
  if constexpr (std::is_same_v<T, ComputeOf<T>>)
    if (args.facts.node().attrs.has("packed_outputs")) return args.in[1].as<T>();
  pack_transposed(args.context, shape, args.in[1].as<T>(), memory);
  return memory;
}

template <class T>
class PhaseConvolution {
 public:
  using C = ComputeOf<T>;
  using Finish = PhaseFinish<T>;

  PhaseConvolution(const KernelArgs& args, const TransposedShape& shape, const Phase& phase,
                   const C* packed)
      : args_(args),
        phase_(phase),
        s_(phase.conv),
        packed_(packed + phase.packed_at),
        finish_(args.in.size() > 2 ? args.in[2].as<T>() : nullptr, args.out[0].as<T>(), shape,
                phase) {}

  void run() const {
    if (s_.patches.pixels == 0) return;
    if (s_.inner() == 0) return write_terms();
    C* memory = static_cast<C*>(args_.workspace);
    switch (s_.method) {
      case ConvMethod::Image:
        return run_units(args_, s_, ConvImage<T, Finish>(s_, x(), packed_, finish_), memory);
      case ConvMethod::Product:
        return run_units(args_, s_, ConvProduct<T, Finish>(s_, x(), packed_, finish_), memory);
      case ConvMethod::Lines:
        return run_units(
            args_, s_,
            ConvLines<T, C, Finish>(s_, x(),
                                    {packed_, packed_weight_elements(s_.outputs, s_.inner()), 1,
                                     kPackedOutputs, s_.channels * kPackedOutputs},
                                    finish_),
            memory);
    }
  }

 private:
  const T* x() const { return args_.in[0].as<T>(); }

  /// Of outputs that see no place of w.
  void write_terms() const {
    const int64_t outputs = s_.images * s_.groups * s_.outputs;
    C terms[kRowChunk];
    for (int64_t i = 0; i < outputs; ++i) {
      std::fill_n(terms, kRowChunk, finish_.term(i % (s_.groups * s_.outputs)));
      for (int64_t at = 0; at < s_.patches.pixels; at += kRowChunk)
        finish_.write(terms, i * s_.patches.pixels + at,
                      std::min(kRowChunk, s_.patches.pixels - at));
    }
  }

  const KernelArgs& args_;
  const Phase& phase_;
  const ConvShape& s_;
  const C* packed_;
  Finish finish_;
};

void conv_transpose(const KernelArgs& args) {
  if (args.out[0].element_count() == 0) return;
  const auto& shape = *static_cast<const TransposedShape*>(args.prepared);
  dispatch_float(args.in[0].dtype, [&]<class T> {
    auto* memory = static_cast<ComputeOf<T>*>(args.workspace);
    const ComputeOf<T>* packed =
        packed_phases<T>(args, shape, memory + slots(args.facts) * most_scratch<T>(shape));
    for (const Phase& phase : shape.phases) PhaseConvolution<T>(args, shape, phase, packed).run();
  });
}

REGISTER_CPU_KERNEL({.op = "ConvTranspose",
                     .name = "conv_transpose_cpu",
                     .dtypes = kAllFloats,
                     .run = conv_transpose,
                     .unsupported = convolution_dimensions_unsupported,
                     .workspace_bytes = transposed_workspace,
                     .prepare = prepare_transposed,
                     .priority = -1});

// --- channels-last -------------------------------------------------------------------------------
TransposedShape pixel_shape_of(const StepFacts& facts) {
  TransposedShape shape = unplanned_shape(facts);
  for (Phase& phase : shape.phases) {
    ConvShape& s = phase.conv;
    const int64_t width = shape.out[1], down = shape.strides[0] * width, right = shape.strides[1];
    s.y_first = phase.first[0] * width + phase.first[1];
    s.y_row_step = down;
    s.y_column_step = right;
    s.y_pixels = shape.pixels;
    plan_pixels(s, facts.inputs[0].layout, slots(facts));
  }
  return shape;
}

std::shared_ptr<const void> prepare_transposed_pixels(const StepFacts& facts) {
  return std::make_shared<const TransposedShape>(pixel_shape_of(facts));
}

int64_t most_pixel_scratch(const TransposedShape& shape) {
  int64_t most = 0;
  for (const Phase& phase : shape.phases)
    if (phase.conv.patches.pixels > 0)
      most = std::max(most, ConvPixels::scratch_elements(phase.conv));
  return most;
}

size_t transposed_pixel_workspace(const StepFacts& facts) {
  const TransposedShape shape = pixel_shape_of(facts);
  const int64_t elements =
      slots(facts) * most_pixel_scratch(shape) + workspace_weights(facts, shape);
  return static_cast<size_t>(elements) * sizeof(float);
}

void conv_transpose_pixels(const KernelArgs& args) {
  if (args.out[0].element_count() == 0) return;
  const auto& shape = *static_cast<const TransposedShape*>(args.prepared);
  const ConvFinish<float> finish(args.in.size() > 2 ? args.in[2].as<float>() : nullptr, nullptr,
                                 args.out[0].as<float>(), ConvActivation());
  auto* memory = static_cast<float*>(args.workspace);
  const float* packed =
      packed_phases<float>(args, shape, memory + slots(args.facts) * most_pixel_scratch(shape));
  for (const Phase& phase : shape.phases) {
    if (phase.conv.patches.pixels == 0) continue;
    const PackedWeights weights{packed + phase.packed_at};
    run_units(args, phase.conv, ConvPixels(phase.conv, args.in[0].as<float>(), weights, finish),
              memory);
  }
}

Reason not_transposed_pixels(const StepFacts& facts) {
  if (const Reason reason = pixels_unsupported(facts)) return reason;
  const TransposedShape shape = unplanned_shape(facts);
  for (const Phase& phase : shape.phases)
    if (phase.conv.inner() == 0) return "some outputs see no place of the window";
  return {};
}

REGISTER_CPU_KERNEL({.op = "ConvTranspose",
                     .name = "conv_transpose_pixels_cpu",
                     .dtypes = {DType::Float32},
                     .run = conv_transpose_pixels,
                     .unsupported = not_transposed_pixels,
                     .workspace_bytes = transposed_pixel_workspace,
                     .output_strides = pixel_strides,
                     .prepare = prepare_transposed_pixels,
                     .input_rules = {LayoutRule::Any},
                     .priority = 1});

// --- weights -------------------------------------------------------------------------------------
void pack_conv_transpose_weights(const KernelArgs& args) {
  const Sizes& w = args.facts.inputs[0].layout.sizes;
  const Sizes one(w.size() - 2, 1);  // the order of the weights does not depend on the image
  const TransposedShape shape = phases_of(args.facts.node().attrs, w, one, one);
  const auto pack = [&]<class T> {
    pack_transposed(args.context, shape, args.in[0].as<T>(), args.out[0].as<T>());
  };
  if (args.in[0].dtype == DType::Float64) return pack.template operator()<double>();
  pack.template operator()<float>();
}

REGISTER_CPU_KERNEL({.op = "PackConvTransposeWeights",
                     .name = "pack_conv_transpose_weights_cpu",
                     .dtypes = {DType::Float32, DType::Float64},
                     .run = pack_conv_transpose_weights,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
