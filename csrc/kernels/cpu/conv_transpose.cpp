// ConvTranspose of x [N, I, ...] and w [I, O / groups, ...], for programs without torch and for
// padding that torch's does not take: every x[n, i, p] w[i, o, k] is added to y[n, o, q] with
// q = stride p + dilation k - pad.
// Method: outputs whose q leaves the same remainder modulo the strides (a phase) see the same
// places k of w, and neighbours among them neighbouring p. So each phase is a convolution of stride
// 1 with some of the places, and nothing is multiplied by zeros in between.
#include "kernels/cpu/conv_shape.h"

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
  PatchShape patches;           // stride 1; its pixels are the outputs of the phase
  std::vector<int64_t> places;  // of w, in the order of the patches' places
  std::vector<int64_t> first;   // output, along each dimension
};

struct TransposedShape {
  ConvShape conv;
  std::vector<int64_t> strides, out;  // along each dimension
  int64_t places = 1, pixels = 1;     // of w and y
  std::vector<Phase> phases;
};

struct AxisFacts {
  int64_t in, out, kernel, stride, pad, dilation;
};

std::vector<PhaseAxis> phases_along(const AxisFacts& f) {
  std::vector<PhaseAxis> phases;
  for (int64_t first = 0; first < std::min(f.stride, f.out); ++first) {
    PhaseAxis phase;
    phase.first = first;
    phase.patch = {f.in, ceil_div(f.out - first, f.stride), 1, {}};
    for (int64_t k = 0; k < f.kernel; ++k) {
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
  for (const auto& axis : along)
    if (axis.empty()) return phases;
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
    phase.patches = PatchShape(std::move(axes));
    phases.push_back(std::move(phase));
    more = false;
    for (size_t d = along.size(); d-- > 0 && !more;) {
      more = ++index[d] < along[d].size();
      if (!more) index[d] = 0;
    }
  }
  return phases;
}

std::shared_ptr<const void> prepare_transposed(const StepFacts& facts) {
  const Layout &x = facts.inputs[0].layout, &w = facts.inputs[1].layout,
               &y = facts.outputs[0].layout;
  const Attrs& attrs = facts.node().attrs;
  const std::vector<int64_t> pads = attrs.integers("pads"), dilations = attrs.integers("dilations");
  auto shape = std::make_shared<TransposedShape>();
  shape->strides = attrs.integers("strides");
  shape->conv.images = x.sizes[0];
  shape->conv.groups = std::max<int64_t>(attrs.integer("group"), 1);
  shape->conv.channels = x.sizes[1] / shape->conv.groups;
  shape->conv.outputs = w.sizes[1];
  std::vector<std::vector<PhaseAxis>> along;
  for (size_t d = 0; d + 2 < x.sizes.size(); ++d) {
    along.push_back(phases_along({x.sizes[d + 2], y.sizes[d + 2], w.sizes[d + 2], shape->strides[d],
                                  pads[d], dilations[d]}));
    shape->out.push_back(y.sizes[d + 2]);
    shape->places *= w.sizes[d + 2];
    shape->pixels *= y.sizes[d + 2];
  }
  shape->phases = combine(along, Sizes(w.sizes.begin() + 2, w.sizes.end()));
  // For the cost of a unit of work.
  if (!shape->phases.empty()) shape->conv.patches = shape->phases[0].patches;
  return shape;
}

template <class T>
class PhaseProduct {
 public:
  using C = ComputeOf<T>;

  PhaseProduct(const KernelArgs& args, const TransposedShape& s, const Phase& phase)
      : args_(args),
        s_(s),
        phase_(phase),
        chosen_(static_cast<int64_t>(phase.places.size())),
        product_(s.conv.outputs, phase.patches.pixels, s.conv.channels * chosen_) {}

  void run() const {
    for_each_group<T>(
        args_, s_.conv, product_.units(), [&](const ConvGroup<T>& at, int64_t begin, int64_t end) {
          product_.run(
              begin, end,
              [&](int64_t row, int64_t rows, int64_t first, int64_t inner, C* to) {
                pack_weights(at.group, row, rows, first, inner, to);
              },
              [&](int64_t first, int64_t inner, int64_t column, int64_t width, C* to) {
                pack_patches(phase_.patches, at.x, first, inner, column, width, to);
              },
              [&](int64_t row, int64_t rows, int64_t column, int64_t width, const C* sums,
                  int64_t stride) {
                for (int64_t r = 0; r < rows; ++r)
                  write_row(at.y + (row + r) * s_.pixels, column, width, sums + r * stride,
                            at.term(row + r));
              });
        });
  }

 private:
  /// Rows are outputs, the inner dimension channels and the places of the phase.
  void pack_weights(int64_t group, int64_t row, int64_t rows, int64_t first, int64_t inner,
                    C* to) const {
    const T* w = args_.in[1].as<T>();
    for (int64_t k = 0; k < inner; ++k, to += ProductTile<C>::kLeftStride) {
      const int64_t channel = group * s_.conv.channels + (first + k) / chosen_;
      const int64_t place = phase_.places[static_cast<size_t>((first + k) % chosen_)];
      const T* from = w + (channel * s_.conv.outputs + row) * s_.places + place;
      for (int64_t r = 0; r < rows; ++r) to[r] = computed(from[r * s_.places]);
    }
  }

  /// Outputs [column, column + width) of the phase, in a plane of y.
  void write_row(T* plane, int64_t column, int64_t width, const C* sums, C term) const {
    const size_t last = s_.out.size() - 1;
    phase_.patches.for_each_segment(column, width, [&](const PatchSegment& segment) {
      int64_t line = 0;
      for (size_t d = 0; d < last; ++d)
        line = line * s_.out[d] + phase_.first[d] + segment.outer[d] * s_.strides[d];
      const int64_t step = s_.strides[last];
      T* to = plane + line * s_.out[last] + phase_.first[last] + segment.first * step;
      const C* from = sums + segment.begin;
      for (int64_t i = 0; i < segment.count; ++i) to[i * step] = stored<T>(from[i] + term);
    });
  }

  const KernelArgs& args_;
  const TransposedShape& s_;
  const Phase& phase_;
  int64_t chosen_;
  TiledProduct<C> product_;
};

void conv_transpose(const KernelArgs& args) {
  const auto& s = *static_cast<const TransposedShape*>(args.prepared);
  dispatch_float(args.in[0].dtype, [&]<class T> {
    for (const Phase& phase : s.phases) PhaseProduct<T>(args, s, phase).run();
  });
}

REGISTER_CPU_KERNEL({.op = "ConvTranspose",
                     .name = "conv_transpose_cpu",
                     .dtypes = kAllFloats,
                     .run = conv_transpose,
                     .unsupported = convolution_dimensions_unsupported,
                     .prepare = prepare_transposed,
                     .priority = -1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
