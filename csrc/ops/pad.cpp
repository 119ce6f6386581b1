// y = x padded with `value` by `pads` elements: the begins of all dimensions, then the ends.
// Negative pads crop.

#include <algorithm>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void infer_plain_pad(InferContext& c) {
  Dims dims = c.input(0).dims;
  const Dims& pads = c.attrs().dims("pads");
  if (pads.size() != 2 * dims.size())
    c.fail(str("pads must have two numbers per dimension, but found ", pads.size(), " for ",
               dims_text(dims)));
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = pads[d] + dims[d] + pads[dims.size() + d];
  c.set(0, c.input(0).dtype, std::move(dims));
}

// Slices away the padding; cropped elements get zeros.
Grads plain_pad_grad(GradContext& c) {
  const Dims& dims = c.x().dims();
  Dims pads = c.attrs().dims("pads");
  if (!std::all_of(pads.begin(), pads.end(),
                   [](const DimExpr& pad) { return pad.is_constant() && pad.value() >= 0; })) {
    for (DimExpr& pad : pads) pad = DimExpr(0) - pad;
    return {c.emit("Pad", {c.dy()}, {{"pads", pads}, {"value", 0.0}})};
  }
  Handle dx = c.dy();
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dx.dims()[d] == dims[d] && pads[d] == DimExpr(0)) continue;
    dx =
        c.emit("Slice", {dx},
               {{"axis", static_cast<int64_t>(d)}, {"start", pads[d]}, {"end", pads[d] + dims[d]}});
  }
  return {dx};
}

// torch lists (before, after) from the last dimension backwards.
Values convert_plain_pad(TorchCall& t) {
  Value* x = t.tensor("self");
  const Dims given = t.dims("pad");
  Dims pads(2 * x->rank(), DimExpr(0));
  for (size_t i = 0; i + 1 < given.size(); i += 2) {
    const size_t d = x->rank() - 1 - i / 2;
    pads[d] = given[i];
    pads[x->rank() + d] = given[i + 1];
  }
  const double value = t.is_none("value") ? 0.0 : t.number("value");
  return {t.emit("Pad", {x}, {{"pads", pads}, {"value", value}})};
}

void export_plain_pad(const OnnxRuleContext& c) {
  const double value = c.attrs().number("value", 0.0);
  c.set(0, "Pad", {c.in(0), c.b.sizes(c.attrs().dims("pads")), c.number(value, c.dtype())},
        c.pick({"mode"}));
}

REGISTER_OP(Pad, {.inputs = {"x"},
                  .outputs = {"y"},
                  .attrs = {{"value", 0.0}},
                  .kind = OpKind::Data,
                  .infer = infer_plain_pad,
                  .grad = plain_pad_grad,
                  .onnx = {export_plain_pad},
                  .from_torch = {{"aten.constant_pad_nd.default", convert_plain_pad}}});

RowAxes pad_rows(const RowQuery& query) {
  const Dims& pads = query.node.attrs.dims("pads");
  const auto axis = static_cast<size_t>(query.axis(0)), rank = query.dims(0).size();
  if (query.axis(0) == kWhole || !(pads[axis] == DimExpr(0)) || !(pads[axis + rank] == DimExpr(0)))
    return std::nullopt;
  return rows_beside(query, kWhole);
}
REGISTER_ROW_AXES(pad_rows, "Pad");

}  // namespace
}  // namespace ortmodule
