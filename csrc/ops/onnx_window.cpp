// Import of convolutions and pooling: ONNX's automatic and unequal padding in terms of the ops.
#include "ops/onnx_window.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

std::vector<int64_t> per_dimension(OnnxCall& c, std::string_view name, size_t spatial,
                                   int64_t fallback) {
  std::vector<int64_t> list = c.integers(name);
  if (list.empty()) list.assign(spatial, fallback);
  if (list.size() != spatial)
    c.refuse(str("'", name, "' must have ", spatial, " numbers, but found ", list.size()));
  return list;
}

// auto_pad: as many outputs as ceil(size / stride); the odd element goes to the end (SAME_UPPER) or
// the begin.
void pad_same(OnnxCall& c, OnnxWindow& w, bool upper) {
  const Dims dims = c.dims(0);
  for (size_t i = 0; i < w.kernel.size(); ++i) {
    const int64_t reach = w.dilations.at(i) * (w.kernel.at(i) - 1) + 1;
    int64_t total = reach - 1;
    if (w.strides.at(i) != 1) {  // depends on the size
      const int64_t size = c.sizes().fix(dims.at(i + 2));
      const int64_t outputs = (size + w.strides.at(i) - 1) / w.strides.at(i);
      total = std::max<int64_t>((outputs - 1) * w.strides.at(i) + reach - size, 0);
    }
    const int64_t less = total / 2, more = total - less;
    w.begins.at(i) = upper ? less : more;
    w.ends.at(i) = upper ? more : less;
  }
}

}  // namespace

std::vector<int64_t> onnx_kernel(OnnxCall& c, const Dims& weights) {
  std::vector<int64_t> kernel;
  for (size_t d = 2; d < weights.size(); ++d) kernel.push_back(c.sizes().fix(weights[d]));
  const std::vector<int64_t> given = c.integers("kernel_shape");
  if (!given.empty() && given != kernel)
    c.refuse(str("kernel_shape must be that of the weights, ",
                 dims_text({kernel.begin(), kernel.end()}), ", but found ",
                 dims_text({given.begin(), given.end()})));
  return kernel;
}

OnnxWindow read_onnx_window(OnnxCall& c, std::vector<int64_t> kernel) {
  OnnxWindow w;
  const size_t spatial = kernel.size();
  if (spatial == 0) c.refuse("kernel_shape must be given");
  if (c.rank(0) != spatial + 2)
    c.refuse(str("x must have ", spatial, " spatial dimensions, but found rank ", c.rank(0)));
  w.kernel = std::move(kernel);
  w.strides = per_dimension(c, "strides", spatial, 1);
  w.dilations = per_dimension(c, "dilations", spatial, 1);
  constexpr int64_t kMost = 1 << 24;  // beyond, arithmetic on them could overflow
  for (const auto* list : {&w.kernel, &w.strides, &w.dilations})
    for (int64_t number : *list)
      if (number <= 0 || number > kMost)
        c.refuse(str("kernel_shape, strides and dilations must be from 1 to ", kMost));
  w.begins.assign(spatial, 0);
  w.ends.assign(spatial, 0);
  w.ceil_mode = c.flag("ceil_mode");
  const std::string automatic = c.string("auto_pad", "NOTSET");
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    pad_same(c, w, automatic == "SAME_UPPER");
  } else if (automatic == "NOTSET") {
    const std::vector<int64_t> pads = c.integers("pads");
    if (!pads.empty() && pads.size() != 2 * spatial)
      c.refuse(str("'pads' must have ", 2 * spatial, " numbers, but found ", pads.size()));
    for (int64_t pad : pads)
      if (std::abs(pad) > kMost) c.refuse(str("a pad must be at most ", kMost));
    for (size_t i = 0; i < spatial && !pads.empty(); ++i) {
      w.begins.at(i) = pads.at(i);
      w.ends.at(i) = pads.at(spatial + i);
    }
  } else if (automatic != "VALID") {
    c.refuse("auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID");
  }
  return w;
}

namespace {

Dims list(const std::vector<int64_t>& numbers) { return {numbers.begin(), numbers.end()}; }

// x padded by the window's padding, which is then none, unless begins and ends are equal and not
// negative: that the kernels do.
Value* padded(OnnxCall& c, Value* x, OnnxWindow& w, double value, bool always = false) {
  const bool negative =
      std::any_of(w.begins.begin(), w.begins.end(), [](int64_t p) { return p < 0; });
  if (!always && !negative && w.begins == w.ends) return x;
  const size_t spatial = w.kernel.size();
  Dims pads(2 * (spatial + 2), DimExpr(0));
  bool any = false;
  for (size_t i = 0; i < spatial; ++i) {
    pads.at(i + 2) = w.begins.at(i);
    pads.at(spatial + 4 + i) = w.ends.at(i);
    any = any || w.begins.at(i) != 0 || w.ends.at(i) != 0;
    w.begins.at(i) = w.ends.at(i) = 0;
  }
  return any ? c.emit("Pad", {x}, {{"pads", pads}, {"value", value}}) : x;
}

Attrs window_attrs(const OnnxWindow& w, bool with_kernel) {
  Attrs attrs{{"strides", list(w.strides)}, {"pads", w.pads()}};
  if (with_kernel) attrs.set("kernel_shape", list(w.kernel));
  return attrs;
}

// ---- convolutions ------------------------------------------------------------------------------

Values import_conv(OnnxCall& c) {
  Value *x = c.in(0), *weights = c.in(1);
  if (weights->rank() < 3) c.refuse("the weights must have a spatial dimension");
  OnnxWindow w = read_onnx_window(c, onnx_kernel(c, weights->dims));
  x = padded(c, x, w, 0.0);
  Attrs attrs = window_attrs(w, false);
  attrs.set("dilations", list(w.dilations));
  attrs.set("group", c.integer("group", 1));
  return {c.emit("Conv", {x, weights, c.optional(2)}, std::move(attrs))};
}

// The padding of a transposed convolution crops its result; `output_shape` gives the sizes instead.
// What no window reaches lies behind, as in TensorFlow and onnxruntime.
void crop_to_shape(OnnxCall& c, OnnxWindow& w, const std::vector<int64_t>& more,
                   const std::vector<int64_t>& shape) {
  const std::string automatic = c.string("auto_pad", "NOTSET");
  const Dims dims = c.dims(0);
  for (size_t i = 0; i < w.kernel.size(); ++i) {
    const int64_t reach = w.dilations.at(i) * (w.kernel.at(i) - 1) + 1;
    const int64_t size = c.sizes().fix(dims.at(i + 2));
    const int64_t wanted = shape.empty() ? size * w.strides.at(i) : shape.at(i);
    const int64_t total = w.strides.at(i) * (size - 1) + more.at(i) + reach - wanted;
    const int64_t cropped = std::max<int64_t>(total, 0), half = cropped / 2;
    w.begins.at(i) = automatic == "SAME_UPPER" ? half : cropped - half;
    w.ends.at(i) = total - w.begins.at(i);
  }
}

Values import_conv_transpose(OnnxCall& c) {
  Value *x = c.in(0), *weights = c.in(1);
  if (weights->rank() < 3) c.refuse("the weights must have a spatial dimension");
  const size_t spatial = weights->rank() - 2;
  OnnxWindow w = read_onnx_window(c, onnx_kernel(c, weights->dims));
  std::vector<int64_t> more = per_dimension(c, "output_padding", spatial, 0);
  std::vector<int64_t> shape = c.integers("output_shape");
  if (shape.size() > spatial)
    shape.erase(shape.begin(), shape.end() - static_cast<int64_t>(spatial));
  if (!shape.empty() || c.string("auto_pad", "NOTSET").starts_with("SAME"))
    crop_to_shape(c, w, more, shape);
  // What begins and ends have in common is padding of the op; the rest is cut or added behind it.
  std::vector<int64_t> common(spatial);
  bool same = true;
  for (size_t i = 0; i < spatial; ++i) {
    common[i] = std::max<int64_t>(0, std::min(w.begins.at(i), w.ends.at(i)));
    const bool fits = more.at(i) < std::max(w.strides.at(i), w.dilations.at(i));
    same = same && w.begins.at(i) == common[i] && w.ends.at(i) == common[i] && fits;
  }
  OnnxWindow inner = w;
  inner.begins = inner.ends = same ? common : std::vector<int64_t>(spatial, 0);
  Attrs attrs = window_attrs(inner, false);
  attrs.set("dilations", list(w.dilations));
  attrs.set("group", c.integer("group", 1));
  attrs.set("output_padding", list(same ? more : std::vector<int64_t>(spatial, 0)));
  Value* y =
      c.emit("ConvTranspose", {x, weights, same ? c.optional(2) : nullptr}, std::move(attrs));
  if (same) return {y};
  Dims pads(2 * y->rank(), DimExpr(0));
  for (size_t i = 0; i < spatial; ++i) {
    pads.at(i + 2) = -w.begins.at(i);
    pads.at(y->rank() + 2 + i) = more.at(i) - w.ends.at(i);
  }
  y = c.emit("Pad", {y}, {{"pads", pads}, {"value", 0.0}});
  if (!c.has(2)) return {y};
  Dims per_channel(y->rank() - 1, DimExpr(1));
  per_channel.at(0) = y->dims.at(1);
  return {c.emit("Add", {y, c.reshape(c.in(2), per_channel)})};
}

// ---- pools -------------------------------------------------------------------------------------

OnnxWindow read_pool_window(OnnxCall& c) {
  OnnxWindow w = read_onnx_window(c, c.integers("kernel_shape"));
  const Dims dims = c.dims(0);
  for (size_t i = 0; i < w.kernel.size() && !w.ceil_mode; ++i) {
    const int64_t reach = w.dilations.at(i) * (w.kernel.at(i) - 1) + 1;
    const DimExpr padded = dims.at(i + 2) + DimExpr(w.begins.at(i) + w.ends.at(i));
    if (c.sizes().at_most(reach, padded)) continue;
    // onnxruntime divides (size - reach) / stride towards zero: a window that is too large by less
    // than a stride is there once, and has what is inside.
    const int64_t size = c.sizes().fix(padded);
    if (size <= 0 || reach - size >= w.strides.at(i)) continue;
    w.kernel.at(i) = (size - 1) / w.dilations.at(i) + 1;
    w.strides.at(i) = std::max(w.strides.at(i), size);
  }
  return w;
}

// Sizes must be known where the last window may be partial.
void fix_sizes(OnnxCall& c, Value*& x, const OnnxWindow& w) {
  if (!w.ceil_mode) return;
  Dims dims = x->dims;
  for (size_t i = 2; i < dims.size(); ++i) dims.at(i) = c.sizes().fix(dims.at(i));
  x = c.reshape(x, dims);
}

// Indices into the plane of x as indices into all of x: ONNX counts the planes before.
Value* whole_indices(OnnxCall& c, Value* index, const Value* x) {
  const DimExpr planes = x->dims.at(0) * x->dims.at(1);
  const DimExpr area = product(Dims(x->dims.begin() + 2, x->dims.end()));
  Value* starts = c.emit(
      "Range", {},
      {{"start", DimExpr(0)}, {"limit", planes}, {"delta", DimExpr(1)}, {"dtype", DType::Int64}});
  Dims dims(x->rank(), DimExpr(1));
  dims.at(0) = x->dims.at(0);
  dims.at(1) = x->dims.at(1);
  Value* offset = c.emit("Mul", {c.reshape(starts, dims), c.graph().literal(area, DType::Int64)});
  return c.emit("Add", {index, offset});
}

// Row-major indices into the plane of `padded` as indices into that of x, which lies at `begins` in
// it: row-major or column-major ones (storage_order 1).
Value* plane_index(OnnxCall& c, Value* index, const Value* padded, const Value* x,
                   const std::vector<int64_t>& begins, bool column_major) {
  if (padded == x && !column_major) return index;
  Value* rest = index;
  Value* result = nullptr;
  for (size_t d = x->rank(); d-- > 2;) {
    Value* size = size_number(c, padded->dims.at(d));
    const auto place = x->dims.begin() + static_cast<std::ptrdiff_t>(d);
    const DimExpr stride =
        product(column_major ? Dims(x->dims.begin() + 2, place) : Dims(place + 1, x->dims.end()));
    Value* at = c.emit("Mod", {rest, size});
    if (padded != x && begins.at(d - 2) != 0)
      at = c.emit("Sub", {at, c.literal(static_cast<double>(begins.at(d - 2)), DType::Int64)});
    at = c.emit("Mul", {at, size_number(c, stride)});
    result = result ? c.emit("Add", {result, at}) : at;
    rest = c.emit("FloorDiv", {rest, size});
  }
  return result;
}

Values import_max_pool(OnnxCall& c) {
  Value* x = c.in(0);
  OnnxWindow w = read_pool_window(c);
  fix_sizes(c, x, w);
  const Value* given = x;
  const std::vector<int64_t> begins = w.begins;
  const double least = is_floating(x->dtype)     ? -std::numeric_limits<double>::infinity()
                       : x->dtype == DType::Int8 ? -128.0
                                                 : 0.0;
  x = padded(c, x, w, least);
  Attrs attrs = window_attrs(w, true);
  attrs.set("dilations", list(w.dilations));
  attrs.set("ceil_mode", w.ceil_mode ? 1 : 0);
  const Values y = c.emit_all("MaxPool", {x}, std::move(attrs));
  if (!c.wants_output(1)) return {y.at(0), nullptr};
  Value* index = plane_index(c, y.at(1), x, given, begins, c.flag("storage_order"));
  return {y.at(0), whole_indices(c, index, given)};
}

// Pads the end so far that the windows that ceil_mode adds are whole. A window that would begin in
// this padding is not added.
void pad_last_windows(OnnxCall& c, const Value* x, OnnxWindow& w) {
  for (size_t i = 0; i < w.kernel.size(); ++i) {
    const int64_t size = c.sizes().fix(x->dims.at(i + 2));
    const int64_t padded = size + w.begins.at(i) + w.ends.at(i);
    const int64_t reach = w.dilations.at(i) * (w.kernel.at(i) - 1) + 1;
    int64_t windows = (padded - reach + w.strides.at(i) - 1) / w.strides.at(i) + 1;
    if ((windows - 1) * w.strides.at(i) >= size + w.begins.at(i)) --windows;
    w.ends.at(i) +=
        (windows - 1) * w.strides.at(i) + reach - padded;  // fewer if a window is not added
  }
  w.ceil_mode = false;
}

// The sum over each window of a padded x: means of equal windows, times their places.
Value* window_sum(OnnxCall& c, Value* x, OnnxWindow w, double places) {
  x = padded(c, x, w, 0.0, true);
  Attrs attrs = window_attrs(w, true);
  attrs.set("dilations", list(w.dilations));
  attrs.set("count_include_pad", 1);
  return c.emit("Mul", {c.emit("AveragePool", {x}, std::move(attrs)), c.literal(places, x->dtype)});
}

double places_of(const OnnxWindow& w) {
  double places = 1;
  for (int64_t size : w.kernel) places *= static_cast<double>(size);
  return places;
}

// The mean where padding is unequal: sums of x, over sums of ones.
Values average_of_padded(OnnxCall& c, Value* x, const OnnxWindow& given, bool counts_padding) {
  fix_sizes(c, x, given);
  OnnxWindow w = given;
  if (w.ceil_mode) pad_last_windows(c, x, w);
  Value* ones = c.full(1.0, x->dims, x->dtype);
  OnnxWindow counted = w;
  if (counts_padding) {  // but not what the last windows have beyond it
    OnnxWindow inside = given;
    ones = padded(c, ones, inside, 1.0, true);
    for (size_t i = 0; i < w.kernel.size(); ++i) {
      counted.begins.at(i) = 0;
      counted.ends.at(i) = w.ends.at(i) - given.ends.at(i);
    }
  }
  const double places = places_of(w);
  return {c.emit("Div", {window_sum(c, x, w, places), window_sum(c, ones, counted, places)})};
}

Values import_average_pool(OnnxCall& c) {
  Value* x = c.in(0);
  OnnxWindow w = read_pool_window(c);
  const bool counts_padding = c.flag("count_include_pad");
  if (w.begins != w.ends) return average_of_padded(c, x, w, counts_padding);
  fix_sizes(c, x, w);
  Attrs attrs = window_attrs(w, true);
  attrs.set("dilations", list(w.dilations));
  attrs.set("ceil_mode", w.ceil_mode ? 1 : 0);
  attrs.set("count_include_pad", counts_padding ? 1 : 0);
  return {c.emit("AveragePool", {x}, std::move(attrs))};
}

template <OpName op>
Values import_global_pool(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() < 3) c.refuse("x must have a spatial dimension");
  std::vector<int64_t> axes(x->rank() - 2);
  std::iota(axes.begin(), axes.end(), 2);
  return {c.reduce(op.text, x, axes, true)};
}

// (mean of |x|^p)^(1/p) without the division
Values import_global_lp_pool(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() < 3) c.refuse("x must have a spatial dimension");
  std::vector<int64_t> axes(x->rank() - 2);
  std::iota(axes.begin(), axes.end(), 2);
  const double p = static_cast<double>(c.integer("p", 2));
  Value* power = c.emit("Pow", {c.emit("Abs", {x}), c.literal(p, x->dtype)});
  return {c.emit("Pow", {c.reduce("ReduceSum", power, axes, true), c.literal(1 / p, x->dtype)})};
}

Values import_lp_pool(OnnxCall& c) {
  Value* x = c.in(0);
  OnnxWindow w = read_pool_window(c);
  const double p = static_cast<double>(c.integer("p", 2));
  fix_sizes(c, x, w);
  if (w.ceil_mode) pad_last_windows(c, x, w);
  Value* power = c.emit("Pow", {c.emit("Abs", {x}), c.literal(p, x->dtype)});
  Value* sum = window_sum(c, power, w, places_of(w));
  return {c.emit("Pow", {sum, c.literal(1 / p, x->dtype)})};
}

// A transposed convolution with the pads as an operand, in front of the bias.
Values import_conv_transpose_with_pads(OnnxCall& c) {
  OnnxAttrs attrs = pick_attrs(
      c, {"auto_pad", "dilations", "group", "kernel_shape", "output_padding", "strides"});
  if (c.has(2)) attrs.push_back({"pads", c.fixed_integers(2)});
  return call_nested(c, "ConvTranspose", {c.in(0), c.in(1), c.optional(3)}, std::move(attrs));
}

REGISTER_ONNX({{"Conv", 1, import_conv},
               {"ConvTranspose", 1, import_conv_transpose},
               {"ConvTransposeWithDynamicPads", 1, import_conv_transpose_with_pads, nullptr,
                "com.microsoft"},
               {"MaxPool", 1, import_max_pool},
               {"AveragePool", 1, import_average_pool},
               {"LpPool", 1, import_lp_pool},
               {"GlobalMaxPool", 1, import_global_pool<"ReduceMax">},
               {"GlobalAveragePool", 1, import_global_pool<"ReduceMean">},
               {"GlobalLpPool", 1, import_global_lp_pool}});

}  // namespace
}  // namespace ortmodule
