// MaxPool: the largest element of each window of an image or volume, its index in there as in
// torch, and its index in the window, the only saved activation. AveragePool: the mean of each
// window.

#include <algorithm>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"
#include "ops/window.h"

namespace ortmodule {
namespace {

// Indices in the window are bytes; one value marks empty windows (kernels/pool.h).
constexpr int64_t kMostPlaces = 255;

Dims pooled_dims(InferContext& c) {
  const Dims& x = c.input(0).dims;
  const Dims spatial = window_dims(c, c.attrs().dims("kernel_shape"));
  Dims dims = {x[0], x[1]};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return dims;
}

void infer_max_pool(InferContext& c) {
  const Dims dims = pooled_dims(c);
  c.set(0, c.input(0).dtype, dims);
  c.set(1, DType::Int64, dims);
  c.set(2, DType::UInt8, dims);
}

void infer_average_pool(InferContext& c) { c.set(0, c.input(0).dtype, pooled_dims(c)); }

Attrs with_input_shape(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("shape", c.x().dims());
  return attrs;
}

Grads max_pool_grad(GradContext& c) {
  return {c.emit("MaxPoolGrad", {c.dy(), c.y(2)}, with_input_shape(c))};
}

Grads average_pool_grad(GradContext& c) {
  return {c.emit("AveragePoolGrad", {c.dy()}, with_input_shape(c))};
}

/// Where `places`, indices in windows, lie in the image or volume of the gradient's sizes `shape`.
Handle plane_indices(GradContext& c, Handle places, const Dims& shape) {
  const Dims& kernel = c.attrs().dims("kernel_shape");
  const auto along = [&](size_t i, Handle at) {  // by output position and place in the window
    const Attrs& attrs = c.attrs();
    const Handle windows = c.emit(
        "Range", {},
        {{"start", 0}, {"limit", places.dims()[i + 2]}, {"delta", 1}, {"dtype", DType::Int64}});
    const auto size = [&](std::string_view name) {
      return c.size_literal(attrs.dims(name)[i], DType::Int64);
    };
    Handle starts = windows * size("strides") - size("pads");
    if (i + 1 < kernel.size()) {
      Dims column(kernel.size() - i, DimExpr(1));
      column[0] = places.dims()[i + 2];
      starts = c.reshape(starts, column);
    }
    return starts + at * size("dilations");
  };
  std::vector<Handle> at(kernel.size());  // along each axis
  Handle rest = places;
  for (size_t i = kernel.size() - 1; i > 0; --i) {
    const Handle size = c.size_literal(kernel[i], DType::Int64);
    const Handle outer = c.emit("Div", {rest, size});
    at[i] = rest - outer * size;
    rest = outer;
  }
  at[0] = rest;
  Handle index = along(0, at[0]);
  for (size_t i = 1; i < at.size(); ++i)
    index = index * c.size_literal(shape[i + 2], DType::Int64) + along(i, at[i]);
  return index;
}

/// The elements of an image or volume in one dimension.
Handle flattened(GradContext& c, Handle x) {
  const Dims& dims = x.dims();
  return c.reshape(x, {dims[0], dims[1], product(Dims(dims.begin() + 2, dims.end()))});
}

// Linear in dy; the gradient is read where the largest element of each window was.
Grads max_pool_grad_grad(GradContext& c) {
  constexpr double kNoPlace = 255;  // of an empty window
  const Dims &shape = c.attrs().dims("shape"), &pooled = c.x(0).dims();
  const Handle places = c.cast(c.x(1), DType::Int64);
  const Handle empty = c.emit("Equal", {places, c.literal(kNoPlace, DType::Int64)});
  const Handle indices =
      c.emit("Where", {empty, c.literal(0, DType::Int64), plane_indices(c, places, shape)});
  const Handle found = c.reshape(
      c.emit("GatherElements", {flattened(c, c.dy()), flattened(c, indices)}, {{"axis", 2}}),
      pooled);
  return {c.emit("Where", {empty, c.literal(0.0, found.dtype()), found})};
}

// Linear in dy; the gradient is the mean of each window.
Grads average_pool_grad_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.erase("shape");
  return {c.emit("AveragePool", {c.dy()}, std::move(attrs))};
}

void infer_pool_grad(InferContext& c) { c.set(0, c.input(0).dtype, c.attrs().dims("shape")); }

// --- conversions ------------------------------------------------------------------------------

// x with a batch dimension, of images or volumes
Value* pooled_input(TorchCall& t, size_t spatial = 2) {
  require_real(t, true);
  Value* x = t.tensor("self");
  if (x->rank() != spatial + 2) t.refuse("x must have a batch dimension");
  return x;
}

Attrs window_attrs(TorchCall& t, const Value& x, size_t spatial = 2) {
  const bool ceil_mode = t.flag("ceil_mode");
  const auto is_open = [](const DimExpr& size) { return !size.is_constant(); };
  if (ceil_mode && std::any_of(x.dims.begin() + 2, x.dims.end(), is_open))
    t.refuse("ceil_mode requires sizes known at capture");
  const Dims kernel = window_list(t, "kernel_size", spatial, {});
  const Dims padding = window_list(t, "padding", spatial, Dims(spatial, DimExpr(0)));
  return {{"kernel_shape", kernel},
          {"strides", window_list(t, "stride", spatial, kernel)},
          {"pads", symmetric_pads(padding)},
          {"ceil_mode", ceil_mode ? 1 : 0}};
}

Values convert_max_pool_of(TorchCall& t, size_t spatial) {
  Value* x = pooled_input(t, spatial);
  Attrs attrs = window_attrs(t, *x, spatial);
  const DimExpr places = product(attrs.dims("kernel_shape"));
  if (!places.is_constant() || places.value() > kMostPlaces)
    t.refuse("the window size must be known at capture, and its indices fit one byte");
  attrs.set("dilations", window_list(t, "dilation", spatial, Dims(spatial, DimExpr(1))));
  Values y = t.emit_all("MaxPool", {x}, std::move(attrs));
  y.resize(t.outputs().size());
  return y;
}

Values convert_max_pool(TorchCall& t) { return convert_max_pool_of(t, 2); }
Values convert_max_pool_of_volumes(TorchCall& t) { return convert_max_pool_of(t, 3); }

Values convert_avg_pool(TorchCall& t) {
  Value* x = pooled_input(t);
  if (!t.is_none("divisor_override")) t.refuse("divisor_override has no op");
  Attrs attrs = window_attrs(t, *x);
  attrs.set("count_include_pad", t.flag("count_include_pad", true) ? 1 : 0);
  return {t.emit("AveragePool", {x}, std::move(attrs))};
}

// A mean if the output size is 1; windows of equal size if it divides the input size.
Values convert_adaptive_avg_pool(TorchCall& t) {
  Value* x = pooled_input(t);
  const Dims size = window_list(t, "output_size", 2, {});
  if (size == Dims{1, 1})
    return {t.emit("ReduceMean", {x}, {{"axes", Dims{2, 3}}, {"keepdims", 1}})};
  Dims kernel;
  for (size_t i = 0; i < 2; ++i) {
    const DimExpr& in = x->dims[i + 2];
    if (!in.is_constant() || !size.at(i).is_constant() || size[i].value() == 0 ||
        in.value() % size[i].value() != 0)
      t.refuse("windows of several sizes have no op");
    kernel.push_back(in.value() / size[i].value());
  }
  return {t.emit("AveragePool", {x},
                 {{"kernel_shape", kernel}, {"strides", kernel}, {"pads", Dims(4, DimExpr(0))}})};
}

/// Along dimension `dim` of `rank`: the index in the window of the positions `at` of x.
std::string place_along(const OnnxRuleContext& c, size_t dim, size_t rank, const std::string& at) {
  const size_t i = dim - 2;
  const auto attr = [&](std::string_view name) { return c.b.size_scalar(c.attrs().dims(name)[i]); };
  const std::string windows =
      c.op("Range", {c.number(0, DType::Int64), c.b.size_scalar(c.node.output(0)->dims[dim]),
                     c.number(1, DType::Int64)});
  std::string starts = c.op("Sub", {c.op("Mul", {windows, attr("strides")}), attr("pads")});
  if (dim + 1 < rank) {
    std::vector<int64_t> column(rank - dim, 1);
    column[0] = -1;
    starts = c.op("Reshape", {starts, c.b.integers(column)});
  }
  return c.op("Div", {c.op("Sub", {at, starts}), attr("dilations")});
}

// Converts ONNX's indices into the whole tensor to indices into a plane and into a window.
void export_max_pool(const OnnxRuleContext& c) {
  const OnnxAttrs attrs = c.pick({"kernel_shape", "strides", "pads", "dilations", "ceil_mode"});
  if (!c.wanted(1) && !c.wanted(2)) return c.set(0, "MaxPool", {c.in(0)}, attrs);
  const std::string flat = c.b.fresh_name(c.out(0) + "/flat");
  c.b.add("MaxPool", {c.in(0)}, attrs, {c.out(0), flat});
  const Dims& dims = c.value(0).dims;
  const DimExpr plane = product(Dims(dims.begin() + 2, dims.end()));
  const std::string index = c.op("Mod", {flat, c.b.size_scalar(plane)});
  if (c.wanted(1)) c.set(1, "Identity", {index});
  if (!c.wanted(2)) return;
  std::string place, rest = index;  // from the innermost dimension out
  DimExpr step(1);
  for (size_t d = dims.size() - 1; d >= 2; --d) {
    std::string at = rest;
    if (d > 2) {
      const std::string size = c.b.size_scalar(dims[d]);
      at = c.op("Mod", {rest, size});
      rest = c.op("Div", {rest, size});
    }
    const std::string along = place_along(c, d, dims.size(), at);
    place =
        place.empty() ? along : c.op("Add", {c.op("Mul", {along, c.b.size_scalar(step)}), place});
    step = step * c.attrs().dims("kernel_shape")[d - 2];
  }
  c.set(2, "Cast", {place}, {{"to", DType::UInt8}});
}

REGISTER_OP(MaxPool, {.inputs = {"x"},
                      .outputs = {"y", "indices", "places"},
                      .attrs = {{"dilations", Dims{1, 1}}, {"ceil_mode", 0}},
                      .kind = OpKind::Data,
                      .infer = infer_max_pool,
                      .keeps_channels_last = always,
                      .grad = max_pool_grad,
                      .onnx = {export_max_pool},
                      .from_torch = {
                          {"aten.max_pool2d.default", convert_max_pool},
                          {"aten.max_pool2d_with_indices.default", convert_max_pool},
                          {"aten.max_pool3d.default", convert_max_pool_of_volumes},
                          {"aten.max_pool3d_with_indices.default", convert_max_pool_of_volumes}}});

REGISTER_OP(MaxPoolGrad, {.domain = "com.microsoft",
                          .inputs = {"dy", "places"},
                          .outputs = {"dx"},
                          .attrs = {{"dilations", Dims{1, 1}}, {"ceil_mode", 0}},
                          .kind = OpKind::Data,
                          .infer = infer_pool_grad,
                          .grad = max_pool_grad_grad,
                          .non_differentiable = {1}});

REGISTER_OP(AveragePool,
            {.inputs = {"x"},
             .outputs = {"y"},
             .attrs = {{"ceil_mode", 0}, {"count_include_pad", 1}},
             .kind = OpKind::Data,
             .infer = infer_average_pool,
             .keeps_channels_last = always,
             .grad = average_pool_grad,
             .onnx = {export_directly,
                      {"kernel_shape", "strides", "pads", "dilations", "ceil_mode",
                       "count_include_pad"}},
             .from_torch = {{"aten.avg_pool2d.default", convert_avg_pool},
                            {"aten.adaptive_avg_pool2d.default", convert_adaptive_avg_pool},
                            {"aten._adaptive_avg_pool2d.default", convert_adaptive_avg_pool}}});

REGISTER_OP(AveragePoolGrad, {.domain = "com.microsoft",
                              .inputs = {"dy"},
                              .outputs = {"dx"},
                              .attrs = {{"ceil_mode", 0}, {"count_include_pad", 1}},
                              .kind = OpKind::Data,
                              .infer = infer_pool_grad,
                              .grad = average_pool_grad_grad});

// Images and channels.
REGISTER_ROW_AXES(rows_before<2>, "MaxPool", "AveragePool");

}  // namespace
}  // namespace ortmodule
