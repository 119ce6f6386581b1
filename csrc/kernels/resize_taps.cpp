#include "kernels/resize_taps.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace ortmodule {
namespace {

using Kind = ResizeMode::Kind;

constexpr std::string_view kCoordinates[] = {
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
    "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"};
constexpr std::string_view kRoundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor",
                                           "ceil"};

template <size_t n>
bool contains(const std::string_view (&names)[n], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::optional<ResizeMode> onnx_mode(const Attrs& attrs, Kind kind) {
  ResizeMode mode;
  mode.kind = kind;
  mode.coordinates = attrs.string("coordinate_transformation_mode", mode.coordinates);
  mode.rounding = attrs.string("nearest_mode", mode.rounding);
  mode.cubic_a = attrs.number("cubic_coeff_a", mode.cubic_a);
  mode.exclude_outside = attrs.flag("exclude_outside");
  mode.antialias = attrs.flag("antialias") && kind != Kind::Nearest;
  if (!contains(kCoordinates, mode.coordinates) || !contains(kRoundings, mode.rounding)) return {};
  return mode;
}

/// One dimension in numbers of F.
template <class F>
struct Axis {
  int64_t in, out;
  F scale, inverse;  // of output to input, and of input to output
  F begin, end;      // of the part that is read, as fractions of the input

  Axis(const StepFacts& facts, size_t d)
      : in(facts.inputs[0].layout.sizes[d + 2]), out(facts.outputs[0].layout.sizes[d + 2]) {
    const Attrs& attrs = facts.node().attrs;
    const size_t spatial = facts.inputs[0].layout.sizes.size() - 2;
    const double given = attrs.has("scales") ? attrs.numbers("scales").at(d) : 0.0;
    scale = given != 0 ? static_cast<F>(given) : static_cast<F>(out) / static_cast<F>(in);
    inverse = given != 0 ? static_cast<F>(1.0 / given) : static_cast<F>(in) / static_cast<F>(out);
    begin = 0, end = 1;
    if (attrs.has("roi")) {
      begin = static_cast<F>(attrs.numbers("roi").at(d));
      end = static_cast<F>(attrs.numbers("roi").at(spatial + d));
    }
  }

  F scaled(const ResizeMode& mode, F x) const { return mode.by_inverse ? x * inverse : x / scale; }

  /// The coordinate in the input of output o.
  F coordinate(const ResizeMode& mode, int64_t o) const {
    const std::string& name = mode.coordinates;
    const F at = static_cast<F>(o), half = F(0.5), last = static_cast<F>(in - 1);
    if (scale == 1 && !mode.by_inverse) return at;  // onnxruntime: whatever the region says
    if (name == "asymmetric") return scaled(mode, at);
    if (name == "tf_half_pixel_for_nn") return scaled(mode, at + half);
    if (name == "align_corners") {
      if (out == 1) return 0;
      const F steps = static_cast<F>(out - 1);
      return mode.by_inverse ? at * (last / steps) : at * last / steps;
    }
    if (name == "tf_crop_and_resize") {
      if (out == 1) return half * (begin + end) * last;
      return begin * last + at * (end - begin) * last / static_cast<F>(out - 1);
    }
    if (name == "pytorch_half_pixel" && out == 1) return 0;
    const F x = scaled(mode, at + half) - half;
    if (name != "half_pixel_symmetric") return x;
    const F adjustment = static_cast<F>(out) / (scale * static_cast<F>(in));
    return static_cast<F>(in) / 2 * (1 - adjustment) + x;
  }
};

template <class F>
int64_t rounded(F x, const std::string& how) {
  const F below = std::floor(x);
  if (how == "floor") return static_cast<int64_t>(below);
  if (how == "ceil") return static_cast<int64_t>(std::ceil(x));
  const bool up = how == "round_prefer_ceil" ? x - below >= F(0.5) : x - below > F(0.5);
  return static_cast<int64_t>(below) + up;
}

/// Keys, "Cubic convolution interpolation for digital image processing", 1981.
double cubic_weight(double x, double a) {
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

/// Adds the elements within reach of coordinate x. Those beside the input are left out, or stand
/// for its first and last one.
void add_taps(const ResizeMode& mode, double x, double scale, ResizeTaps& taps) {
  // When it shrinks, an antialiased window grows with the input.
  const double squeeze = mode.antialias ? std::min(scale, 1.0) : 1.0;
  const double reach = (mode.kind == Kind::Cubic ? 2.0 : 1.0) / squeeze;
  const auto first = static_cast<int64_t>(std::ceil(x - reach));
  const auto last = static_cast<int64_t>(std::floor(x + reach));
  const size_t begin = taps.indices.size();
  double sum = 0;
  for (int64_t i = first; i <= last; ++i) {
    const bool outside = i < 0 || i >= taps.in;
    if (outside && mode.exclude_outside) continue;
    const double distance = (static_cast<double>(i) - x) * squeeze;
    const double weight = mode.kind == Kind::Cubic ? cubic_weight(distance, mode.cubic_a)
                                                   : std::max(0.0, 1.0 - std::fabs(distance));
    if (weight == 0) continue;
    sum += weight;
    const int64_t index = std::clamp<int64_t>(i, 0, taps.in - 1);
    if (taps.indices.size() > begin && taps.indices.back() == index) {
      taps.weights.back() += weight;
    } else {
      taps.indices.push_back(index);
      taps.weights.push_back(weight);
    }
  }
  if (mode.exclude_outside || mode.antialias)
    for (size_t t = begin; t < taps.weights.size(); ++t) taps.weights[t] /= sum;
}

template <class F>
ResizeTaps taps_along(const ResizeMode& mode, const Axis<F>& axis) {
  ResizeTaps taps{axis.in, axis.out, {0}, {}, {}};
  for (int64_t o = 0; o < axis.out; ++o, taps.begin.push_back(std::ssize(taps.indices))) {
    F x = axis.coordinate(mode, o);
    const F last = static_cast<F>(axis.in - 1);
    if (axis.in == 0 || (mode.coordinates == "tf_crop_and_resize" && (x < 0 || x > last))) continue;
    if (mode.kind == Kind::Nearest) {
      taps.indices.push_back(std::clamp<int64_t>(rounded(x, mode.rounding), 0, axis.in - 1));
      taps.weights.push_back(1);
      continue;
    }
    if (mode.kind == Kind::Linear && !mode.antialias) x = std::clamp<F>(x, 0, last);
    add_taps(mode, static_cast<double>(x), static_cast<double>(axis.scale), taps);
  }
  return taps;
}

}  // namespace

std::optional<ResizeMode> resize_mode(const Attrs& attrs) {
  const std::string& name = attrs.string("mode");
  if (name == "nearest") return onnx_mode(attrs, Kind::Nearest);
  if (name == "linear") return onnx_mode(attrs, Kind::Linear);
  if (name == "cubic") return onnx_mode(attrs, Kind::Cubic);
  // torch's operators, with their number of dimensions.
  ResizeMode mode;
  mode.by_inverse = true;
  if (attrs.flag("align_corners")) mode.coordinates = "align_corners";
  if (name.starts_with("nearest_exact")) {
    mode.coordinates = "tf_half_pixel_for_nn";
    mode.rounding = "floor";
  } else if (name.starts_with("nearest")) {
    mode.coordinates = "asymmetric";
    mode.rounding = "floor";
  } else if (name.starts_with("bicubic")) {
    mode.kind = Kind::Cubic;
  } else if (name.find("linear") != std::string::npos) {
    mode.kind = Kind::Linear;
  } else {
    return {};
  }
  if (!name.ends_with("_aa")) return mode;
  if (attrs.flag("align_corners")) return {};  // torch keeps the windows of half pixels there
  mode.antialias = mode.exclude_outside = true;
  mode.cubic_a = -0.5;
  return mode;
}

ResizeTaps resize_taps(const ResizeMode& mode, const StepFacts& facts, size_t d) {
  // torch's interpolation of doubles has coordinates of doubles.
  if (mode.by_inverse && mode.kind != Kind::Nearest && facts.inputs[0].dtype == DType::Float64)
    return taps_along(mode, Axis<double>(facts, d));
  return taps_along(mode, Axis<float>(facts, d));
}

}  // namespace ortmodule
