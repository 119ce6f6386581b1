// Import of Resize and Upsample.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// How far each dimension is scaled. A scale of 0: the ratio of the sizes maps coordinates.
struct Target {
  Dims sizes;
  std::vector<double> scales;
  std::vector<double> roi;  // starts, then ends; empty: all of x
};

// size * scale, rounded down. In float64 ten times the float32 next to 2.3 were 22.
DimExpr scaled(OnnxCall& c, const DimExpr& size, double scale) {
  const double whole = std::floor(scale);
  if (whole == scale && scale >= 1) return size * DimExpr(static_cast<int64_t>(scale));
  const double parts = 1 / scale;
  if (std::floor(parts) == parts) return DimExpr::floor_div(size, static_cast<int64_t>(parts));
  return DimExpr(static_cast<int64_t>(
      std::floor(static_cast<float>(c.sizes().fix(size)) * static_cast<float>(scale))));
}

std::vector<int64_t> resized_axes(OnnxCall& c, size_t rank) {
  std::vector<int64_t> axes = c.integers("axes");
  if (!c.has_attr("axes")) {
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), 0);
  }
  for (int64_t& axis : axes) axis = c.axis(axis, rank);
  return axes;
}

void set_scales(OnnxCall& c, Target& target, const std::vector<int64_t>& axes,
                const std::vector<double>& scales) {
  if (scales.size() != axes.size())
    c.refuse(str("there must be ", axes.size(), " scales, but found ", scales.size()));
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(axes.at(i));
    if (!(scales.at(i) > 0)) c.refuse(str("a scale must be positive, but found ", scales.at(i)));
    target.sizes.at(axis) = scaled(c, target.sizes.at(axis), scales.at(i));
    target.scales.at(axis) = scales.at(i);
  }
}

// One scale for all axes, so that the result is not larger, or not smaller, than the sizes.
void keep_ratio(OnnxCall& c, Target& target, const std::vector<int64_t>& axes, const Dims& wanted,
                bool larger) {
  double scale = larger ? 0 : HUGE_VAL;
  for (size_t i = 0; i < axes.size(); ++i) {
    const double ratio =
        static_cast<double>(c.sizes().fix(wanted.at(i))) /
        static_cast<double>(c.sizes().fix(target.sizes[static_cast<size_t>(axes.at(i))]));
    scale = larger ? std::max(scale, ratio) : std::min(scale, ratio);
  }
  for (int64_t axis : axes) {
    DimExpr& size = target.sizes.at(static_cast<size_t>(axis));
    size = DimExpr(
        static_cast<int64_t>(std::floor(static_cast<double>(c.sizes().fix(size)) * scale + 0.5)));
    target.scales.at(static_cast<size_t>(axis)) = scale;
  }
}

void set_sizes(OnnxCall& c, Target& target, const std::vector<int64_t>& axes) {
  const Dims wanted = c.content_sizes(3);
  if (wanted.size() != axes.size())
    c.refuse(str("there must be ", axes.size(), " sizes, but found ", wanted.size()));
  const std::string policy =
      c.word("keep_aspect_ratio_policy", {"stretch", "not_larger", "not_smaller"});
  if (policy != "stretch") return keep_ratio(c, target, axes, wanted, policy == "not_smaller");
  for (size_t i = 0; i < axes.size(); ++i)
    target.sizes[static_cast<size_t>(axes.at(i))] = wanted.at(i);
}

Target read_target(OnnxCall& c) {
  Target target{c.dims(0), std::vector<double>(c.rank(0), 0.0), {}};
  const std::vector<int64_t> axes = resized_axes(c, target.sizes.size());
  const bool old = c.opset() < 11;
  const size_t scales = old ? 1 : 2;
  if (c.node().op == "Upsample" && c.opset() < 9) {
    set_scales(c, target, axes, c.numbers("scales"));
  } else if (!old && c.has(3)) {
    set_sizes(c, target, axes);
  } else {
    set_scales(c, target, axes, c.fixed_numbers(scales));
  }
  if (c.string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize" &&
      c.has(1)) {
    const std::vector<double> given = c.fixed_numbers(1);
    const size_t rank = target.sizes.size();
    target.roi.assign(2 * rank, 0.0);
    std::fill(target.roi.begin() + static_cast<int64_t>(rank), target.roi.end(), 1.0);
    if (given.size() != 2 * axes.size()) c.refuse("roi must have two numbers for each axis");
    for (size_t i = 0; i < axes.size(); ++i) {
      target.roi[static_cast<size_t>(axes.at(i))] = given.at(i);
      target.roi[rank + static_cast<size_t>(axes.at(i))] = given.at(axes.size() + i);
    }
  }
  return target;
}

bool is_untouched(const Target& target, const Value* x, size_t axis) {
  const size_t rank = x->rank();
  const bool whole =
      target.roi.empty() || (target.roi.at(axis) == 0 && target.roi.at(rank + axis) == 1);
  return target.sizes.at(axis) == x->dims.at(axis) && whole &&
         (target.scales.at(axis) == 0 || target.scales.at(axis) == 1);
}

Attrs resize_attrs(OnnxCall& c) {
  const bool old = c.opset() < 11;
  const std::string mode = c.word("mode", {"nearest", "linear", "cubic"});
  Attrs attrs{{"mode", mode}};
  attrs.set(
      "coordinate_transformation_mode",
      old ? "asymmetric"
          : c.word("coordinate_transformation_mode",
                   {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                    "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"}));
  if (mode == "nearest")
    attrs.set("nearest_mode", old ? "floor"
                                  : c.word("nearest_mode", {"round_prefer_floor",
                                                            "round_prefer_ceil", "floor", "ceil"}));
  if (mode == "cubic") attrs.set("cubic_coeff_a", c.number("cubic_coeff_a", -0.75));
  if (c.flag("exclude_outside")) attrs.set("exclude_outside", 1);
  if (c.flag("antialias")) attrs.set("antialias", 1);
  if (c.has_attr("extrapolation_value"))
    attrs.set("extrapolation_value", c.number("extrapolation_value", 0.0));
  return attrs;
}

Value* resized(OnnxCall& c, Value* x, const Target& target, Attrs attrs) {
  const size_t rank = x->rank();
  // The op has a batch and channels in front of the dimensions that it resizes.
  const bool images = rank >= 3 && is_untouched(target, x, 0) && is_untouched(target, x, 1);
  const size_t first = images ? 2 : 0;
  attrs.set("sizes", Dims(target.sizes.begin() + static_cast<int64_t>(first), target.sizes.end()));
  attrs.set("scales", std::vector<double>(target.scales.begin() + static_cast<int64_t>(first),
                                          target.scales.end()));
  if (!target.roi.empty()) {
    std::vector<double> roi;
    for (size_t i = 0; i < 2 * rank; ++i)
      if (i % rank >= first) roi.push_back(target.roi.at(i));
    attrs.set("roi", roi);
  }
  Value* images_of_x = x;
  if (!images) {
    Dims dims{1, 1};
    dims.insert(dims.end(), x->dims.begin(), x->dims.end());
    images_of_x = c.reshape(x, dims);
  }
  const bool integral = !is_floating(x->dtype);
  if (integral) images_of_x = c.cast(images_of_x, DType::Float32);
  Value* y = c.emit("Resize", {images_of_x}, std::move(attrs));
  if (integral) y = c.cast(y, x->dtype);
  return c.reshape(y, target.sizes);
}

// Operator set 10 takes the element before a place in an axis that grows, and the one behind it in
// an axis that shrinks, as onnxruntime does.
Value* resized_of_set_10(OnnxCall& c, Value* x, const Target& target) {
  Target grown = target;
  bool shrinks = false;
  for (size_t axis = 0; axis < x->rank(); ++axis) {
    if (target.scales[axis] >= 1) continue;
    shrinks = true;
    grown.sizes[axis] = x->dims[axis];
    grown.scales[axis] = 1;
  }
  const Attrs attrs = resize_attrs(c);
  Value* y = resized(c, x, shrinks ? grown : target, attrs);
  if (!shrinks) return y;
  Target shrunk = target;
  for (double& scale : shrunk.scales)
    if (scale >= 1) scale = 1;
  Attrs behind = attrs;
  behind.set("nearest_mode", "ceil");
  return resized(c, y, shrunk, std::move(behind));
}

// Integers are rounded behind each axis, the last one first, as Pillow does with images of bytes.
Value* smoothed_integers(OnnxCall& c, Value* x, const Target& target, const Attrs& attrs) {
  const DType dtype = x->dtype;
  const size_t rank = x->rank();
  const bool has_sign = dtype != DType::UInt8 && !is_wide_unsigned(dtype);
  const double numbers = std::ldexp(1.0, packed_bits(dtype)), least = has_sign ? -numbers / 2 : 0;
  Value* y = c.cast(x, DType::Float32);
  for (size_t axis = rank; axis-- > 0;) {
    if (is_untouched(target, x, axis)) continue;
    Target line{y->dims, std::vector<double>(rank, 1.0), {}};
    line.sizes.at(axis) = target.sizes.at(axis);
    line.scales.at(axis) = target.scales.at(axis);
    y = resized(c, y, line, attrs);
    y = c.emit("Floor", {c.emit("Add", {y, number(c, 0.5, y)})});
    y = c.emit("Min", {c.emit("Max", {y, number(c, least, y)}), number(c, least + numbers - 1, y)});
  }
  return c.cast(y, dtype);
}

Values import_resize(OnnxCall& c) {
  Value* x = c.in(0);
  const Target target = read_target(c);
  if (c.opset() < 11 && c.string("mode", "nearest") == "nearest")
    return {resized_of_set_10(c, x, target)};
  if (c.flag("antialias") && !is_floating(x->dtype) && target.roi.empty())
    return {smoothed_integers(c, x, target, resize_attrs(c))};
  return {resized(c, x, target, resize_attrs(c))};
}

REGISTER_ONNX({{"Resize", 10, import_resize}, {"Upsample", 7, import_resize}});

}  // namespace
}  // namespace ortmodule
