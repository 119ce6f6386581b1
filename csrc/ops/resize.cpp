// y = x resampled to other spatial sizes. `mode` is the name of the torch operator without
// "upsample_": interpolation and number of dimensions; or "nearest", "linear" or "cubic", with the
// other attributes of ONNX's Resize (`roi`: starts, then ends, of the spatial dimensions). A
// nonzero number in `scales` maps coordinates of y to x; for 0 the ratio of the sizes does.

#include <algorithm>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_resize(InferContext& c) {
  const Value& x = c.input(0);
  const Dims& sizes = c.attrs().dims("sizes");
  if (x.rank() < 3 || sizes.size() != x.rank() - 2)
    c.fail(str("x must have a batch, channels and as many dimensions as `sizes`, but found x ",
               dims_text(x.dims), " and sizes ", dims_text(sizes)));
  Dims dims = {x.dims[0], x.dims[1]};
  dims.insert(dims.end(), sizes.begin(), sizes.end());
  c.set(0, x.dtype, std::move(dims));
}

void infer_resize_grad(InferContext& c) { c.set(0, c.input(0).dtype, c.attrs().dims("shape")); }

Grads resize_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.set("shape", c.x().dims());
  return {c.emit("ResizeGrad", {c.dy()}, std::move(attrs))};
}

// Linear in dy; the gradient is resampled as x was.
Grads resize_grad_grad(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.erase("shape");
  return {c.emit("Resize", {c.dy()}, std::move(attrs))};
}

Values convert_resize(TorchCall& t) {
  require_real(t, true);
  const std::string_view packet = t.target();
  const size_t begin = packet.find("upsample_") + std::string_view("upsample_").size();
  const std::string mode(packet.substr(begin, packet.find('.', begin) - begin));
  Value* x = t.tensor("self");
  const Dims sizes = t.dims("output_size");
  std::vector<double> scales;
  for (const std::string_view name : {"scales", "scales_d", "scales_h", "scales_w"})
    if (t.has(name)) scales.push_back(t.number_or(name, 0.0));
  if (x->rank() != sizes.size() + 2 || scales.size() != sizes.size())
    t.refuse("sizes and scales must match the rank of x");
  return {t.emit("Resize", {x},
                 {{"mode", mode},
                  {"sizes", sizes},
                  {"scales", scales},
                  {"align_corners", t.flag("align_corners") ? 1 : 0}})};
}

bool has_onnx_mode(const OnnxRuleContext& c) {
  const std::string& mode = c.attrs().string("mode");
  return mode == "nearest" || mode == "linear" || mode == "cubic";
}

// ONNX's attributes of a torch operator.
OnnxAttrs attrs_of_torch_mode(const OnnxRuleContext& c) {
  const std::string mode = c.attrs().string("mode");
  const bool nearest = mode.starts_with("nearest"), exact = mode.starts_with("nearest_exact");
  const std::string corners = nearest && !exact                 ? "asymmetric"
                              : c.attrs().flag("align_corners") ? "align_corners"
                                                                : "half_pixel";
  const bool antialias = mode.ends_with("_aa");
  OnnxAttrs attrs = {{"mode", std::string(nearest                       ? "nearest"
                                          : mode.starts_with("bicubic") ? "cubic"
                                                                        : "linear")},
                     {"coordinate_transformation_mode", corners}};
  if (nearest)
    attrs.push_back({"nearest_mode", std::string(exact ? "round_prefer_ceil" : "floor")});
  if (mode.starts_with("bicubic")) attrs.push_back({"cubic_coeff_a", antialias ? -0.5 : -0.75});
  if (antialias) {  // torch clips the windows at the border of the image
    attrs.push_back({"antialias", int64_t{1}});
    attrs.push_back({"exclude_outside", int64_t{1}});
  }
  return attrs;
}

// A part of x for each dimension: the whole batch and all channels.
std::string export_roi(const OnnxRuleContext& c) {
  if (!c.attrs().has("roi")) return "";
  const std::vector<double>& roi = c.attrs().numbers("roi");
  std::string bytes;
  for (size_t i = 0; i < roi.size(); ++i) {
    const double whole = i < roi.size() / 2 ? 0.0 : 1.0;
    if (i % (roi.size() / 2) == 0)
      for (int n = 0; n < 2; ++n) bytes += encode_scalar(whole, DType::Float32);
    bytes += encode_scalar(roi[i], DType::Float32);
  }
  return c.b.constant({DType::Float32, {static_cast<int64_t>(roi.size()) + 4}, bytes});
}

// Maps coordinates of y to x by scales if torch had them, else by sizes.
void export_resize(const OnnxRuleContext& c) {
  const OnnxAttrs attrs =
      has_onnx_mode(c)
          ? c.pick({"mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a",
                    "exclude_outside", "extrapolation_value", "antialias"})
          : attrs_of_torch_mode(c);
  const std::string roi = has_onnx_mode(c) ? export_roi(c) : "";
  const std::vector<double>& scales = c.attrs().numbers("scales");
  const bool by_scales = std::all_of(scales.begin(), scales.end(), [](double s) { return s != 0; });
  if (by_scales) {
    std::string bytes = encode_scalar(1.0, DType::Float32) + encode_scalar(1.0, DType::Float32);
    for (const double scale : scales) bytes += encode_scalar(scale, DType::Float32);
    const std::string factors =
        c.b.constant({DType::Float32, {static_cast<int64_t>(scales.size()) + 2}, bytes});
    return c.set(0, "Resize", {c.in(0), roi, factors}, attrs);
  }
  Dims dims(c.value(0).dims.begin(), c.value(0).dims.begin() + 2);
  const Dims& sizes = c.attrs().dims("sizes");
  dims.insert(dims.end(), sizes.begin(), sizes.end());
  c.set(0, "Resize", {c.in(0), roi, "", c.b.sizes(dims)}, attrs);
}

REGISTER_OP(Resize, {.inputs = {"x"},
                     .outputs = {"y"},
                     .attrs = {{"align_corners", 0}},
                     .kind = OpKind::Data,
                     .infer = infer_resize,
                     .keeps_channels_last = always,
                     .grad = resize_grad,
                     .onnx = {export_resize},
                     .from_torch = {{"aten.upsample_nearest1d.default", convert_resize},
                                    {"aten.upsample_nearest2d.default", convert_resize},
                                    {"aten.upsample_nearest3d.default", convert_resize},
                                    {"aten._upsample_nearest_exact1d.default", convert_resize},
                                    {"aten._upsample_nearest_exact2d.default", convert_resize},
                                    {"aten._upsample_nearest_exact3d.default", convert_resize},
                                    {"aten.upsample_linear1d.default", convert_resize},
                                    {"aten.upsample_bilinear2d.default", convert_resize},
                                    {"aten.upsample_trilinear3d.default", convert_resize},
                                    {"aten.upsample_bicubic2d.default", convert_resize},
                                    {"aten._upsample_bilinear2d_aa.default", convert_resize},
                                    {"aten._upsample_bicubic2d_aa.default", convert_resize}}});

REGISTER_OP(ResizeGrad, {.domain = "com.microsoft",
                         .inputs = {"dy"},
                         .outputs = {"dx"},
                         .attrs = {{"align_corners", 0}},
                         .kind = OpKind::Data,
                         .infer = infer_resize_grad,
                         .grad = resize_grad_grad});

// Images and channels.
REGISTER_ROW_AXES(rows_before<2>, "Resize");

}  // namespace
}  // namespace ortmodule
