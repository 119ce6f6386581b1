// RoiAlign: means, or the largest, of samples in the bins of regions [x1, y1, x2, y2], each of the
// image that `batch` names. MaxRoiPool: the largest whole element of each bin, 0 of an empty one;
// a region there is (image, x1, y1, x2, y2). Import of both from ONNX.
#include <algorithm>

#include "base/error.h"
#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// Bins or samples of a region.
constexpr int64_t kMostBins = 4096;

void check_regions(InferContext& c, int64_t numbers) {
  const Value &x = c.input(0), &rois = c.input(1);
  if (x.rank() != 4 || rois.rank() != 2 || rois.dtype != x.dtype ||
      !may_equal(rois.dims.at(1), numbers))
    c.fail(str("x must be [N, C, H, W] and rois [regions, ", numbers, "] of its type, but found ",
               name_of(x.dtype), dims_text(x.dims), " and ", name_of(rois.dtype),
               dims_text(rois.dims)));
}

void infer_roi_align(InferContext& c) {
  check_regions(c, 4);
  const Value &x = c.input(0), &rois = c.input(1), &batch = c.input(2);
  if (batch.rank() != 1 || !may_equal(batch.dims[0], rois.dims[0]))
    c.fail(str("batch must have an image for each of the regions ", dims_text(rois.dims),
               ", but found ", dims_text(batch.dims)));
  c.set(0, x.dtype,
        {rois.dims[0], x.dims[1], c.attrs().integer("output_height"),
         c.attrs().integer("output_width")});
}

void infer_max_roi_pool(InferContext& c) {
  check_regions(c, 5);
  const std::vector<int64_t> bins = c.attrs().integers("pooled_shape");
  c.set(0, c.input(0).dtype, {c.input(1).dims[0], c.input(0).dims[1], bins.at(0), bins.at(1)});
}

void export_roi_align(const OnnxRuleContext& c) {
  OnnxAttrs attrs =
      c.pick({"mode", "output_height", "output_width", "sampling_ratio", "spatial_scale"});
  attrs.push_back({"coordinate_transformation_mode",
                   std::string(c.attrs().flag("half_pixel") ? "half_pixel" : "output_half_pixel")});
  c.set(0, "RoiAlign", {c.in(0), c.in(1), c.in(2)}, std::move(attrs));
}

void export_max_roi_pool(const OnnxRuleContext& c) {
  c.set(0, "MaxRoiPool", {c.in(0), c.in(1)}, c.pick({"pooled_shape", "spatial_scale"}));
}

REGISTER_OP(RoiAlign, {.inputs = {"x", "rois", "batch"},
                       .outputs = {"y"},
                       .infer = infer_roi_align,
                       .non_differentiable = {0, 1, 2},
                       .onnx = {export_roi_align}});
REGISTER_OP(MaxRoiPool, {.inputs = {"x", "rois"},
                         .outputs = {"y"},
                         .infer = infer_max_roi_pool,
                         .non_differentiable = {0, 1},
                         .onnx = {export_max_roi_pool}});

void require_images(OnnxCall& c, int64_t numbers) {
  for (size_t i = 0; i < 2; ++i)
    if (c.in(i)->rank() != (i == 0 ? 4 : 2))
      c.refuse(str("operand ", i, " must have rank ", i == 0 ? 4 : 2, ", but found rank ",
                   c.in(i)->rank()));
  if (!c.sizes().equal(c.in(1)->dims.at(1), numbers))
    c.refuse(str("rois must have ", numbers, " numbers each"));
}

Values import_roi_align(OnnxCall& c) {
  const int64_t samples = c.integer("sampling_ratio", 0);
  const int64_t bins[2] = {c.integer("output_height", 1), c.integer("output_width", 1)};
  if (std::min(bins[0], bins[1]) <= 0 || samples < 0 ||
      std::max({bins[0], bins[1], samples}) > kMostBins)
    c.refuse(str("output sizes and sampling_ratio must be at most ", kMostBins,
                 " and not negative, sizes not 0"));
  require_images(c, 4);
  const std::string mode = c.word("mode", {"avg", "max"});
  const bool half_pixel =
      c.opset() >= 16 &&
      c.word("coordinate_transformation_mode", {"half_pixel", "output_half_pixel"}) == "half_pixel";
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value* y = c.emit("RoiAlign",
                    {c.cast(c.in(0), wide), c.cast(c.in(1), wide), c.cast(c.in(2), DType::Int64)},
                    {{"mode", mode},
                     {"output_height", bins[0]},
                     {"output_width", bins[1]},
                     {"sampling_ratio", samples},
                     {"spatial_scale", c.number("spatial_scale", 1.0)},
                     {"half_pixel", half_pixel ? 1 : 0}});
  return {c.cast(y, dtype)};
}

Values import_max_roi_pool(OnnxCall& c) {
  const std::vector<int64_t> bins = c.integers("pooled_shape");
  if (bins.size() != 2 || std::min(bins[0], bins[1]) <= 0 || std::max(bins[0], bins[1]) > kMostBins)
    c.refuse(str("pooled_shape must have two numbers from 1 to ", kMostBins));
  require_images(c, 5);
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value* y = c.emit("MaxRoiPool", {c.cast(c.in(0), wide), c.cast(c.in(1), wide)},
                    {{"pooled_shape", Dims{bins[0], bins[1]}},
                     {"spatial_scale", c.number("spatial_scale", 1.0)}});
  return {c.cast(y, dtype)};
}

REGISTER_ONNX({{"RoiAlign", 10, import_roi_align}, {"MaxRoiPool", 1, import_max_roi_pool}});

}  // namespace
}  // namespace ortmodule
