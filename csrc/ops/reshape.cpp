// y = x with other sizes and the same elements in row-major order: Reshape, Unsqueeze, Squeeze

#include <algorithm>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

// A run of input dimensions that can be merged into one.
struct Block {
  int64_t size = 1;
  int64_t stride = 1;
};

// Merges adjacent dimensions whose strides nest, innermost first.
std::vector<Block> merge_dims(const Layout& in) {
  std::vector<Block> blocks;
  for (size_t i = in.sizes.size(); i-- > 0;) {
    if (in.sizes[i] == 1) continue;
    if (!blocks.empty() && in.strides[i] == blocks.back().size * blocks.back().stride)
      blocks.back().size *= in.sizes[i];
    else
      blocks.push_back({in.sizes[i], in.strides[i]});
  }
  if (blocks.empty()) blocks.push_back({});
  return blocks;
}

// Fills the blocks with output dimensions from the right. A dimension that crosses two blocks would
// have no single stride, so a view is not legal.
std::optional<Layout> reshape_view(const Layout& in, const Attrs&, const Sizes& out_sizes, size_t) {
  Layout out{out_sizes, contiguous_strides(out_sizes), in.offset};
  if (element_count(in.sizes) == 0) return out;
  size_t d = out_sizes.size();
  for (const Block& block : merge_dims(in)) {
    int64_t filled = 1;
    while (d > 0 && (filled < block.size || out_sizes[d - 1] == 1)) {
      --d;
      out.strides[d] = filled * block.stride;
      filled *= out_sizes[d];
    }
    if (filled != block.size) return std::nullopt;
  }
  return out;
}

// A new dimension of size 1 has the stride of splitting it off the next dimension.
std::optional<Layout> unsqueeze_view(const Layout& in, const Attrs& attrs, const Sizes& out_sizes,
                                     size_t) {
  Layout out{out_sizes, Sizes(out_sizes.size(), 1), in.offset};
  std::vector<int64_t> axes = attrs.integers("axes");
  for (int64_t& axis : axes)
    if (axis < 0) axis += static_cast<int64_t>(out_sizes.size());
  size_t from = in.sizes.size();
  for (size_t d = out_sizes.size(); d-- > 0;) {
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) == axes.end())
      out.strides[d] = in.strides[--from];
    else if (d + 1 < out_sizes.size())
      out.strides[d] = out_sizes[d + 1] * out.strides[d + 1];
  }
  return out;
}

std::optional<Layout> squeeze_view(const Layout& in, const Attrs& attrs, const Sizes& out_sizes,
                                   size_t) {
  Layout out{out_sizes, {}, in.offset};
  const std::vector<int64_t> axes = reduced_axes(attrs, in.sizes.size());
  for (size_t d = 0; d < in.sizes.size(); ++d)
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d)))
      out.strides.push_back(in.strides[d]);
  return out;
}

// --- shapes -----------------------------------------------------------------------------------

void infer_reshape(InferContext& c) {
  const Dims& shape = c.attrs().dims("shape");
  const DimExpr from = product(c.input(0).dims);
  const DimExpr to = product(shape);
  if (from.is_constant() && to.is_constant() && !(from == to))
    c.fail(str("the number of elements must not change, but found ", dims_text(c.input(0).dims),
               " to ", dims_text(shape)));
  c.set(0, c.input(0).dtype, shape);
}

void infer_unsqueeze(InferContext& c) {
  Dims dims = c.input(0).dims;
  const auto rank = static_cast<int64_t>(dims.size() + c.attrs().dims("axes").size());
  std::vector<int64_t> axes = c.attrs().integers("axes");
  for (int64_t& axis : axes) {
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) c.fail(str("axes must be within rank ", rank));
  }
  std::sort(axes.begin(), axes.end());
  for (int64_t axis : axes) dims.insert(dims.begin() + axis, DimExpr(1));
  c.set(0, c.input(0).dtype, std::move(dims));
}

void infer_squeeze(InferContext& c) {
  const Value& x = c.input(0);
  const std::vector<int64_t> axes = reduced_axes(c.attrs(), x.rank());
  Dims dims;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d)))
      dims.push_back(x.dims[d]);
    else if (!(x.dims[d] == DimExpr(1)))
      c.fail(str("a squeezed dimension must have size 1, but found ", x.dims[d].text()));
  }
  c.set(0, x.dtype, std::move(dims));
}

Grads reshape_grad(GradContext& c) { return {c.reshape(c.dy(), c.x().dims())}; }

// --- conversions ------------------------------------------------------------------------------

Values convert_view(TorchCall& t) {
  if (t.tensor("self")->dtype != t.output().dtype)
    t.refuse("it reinterprets bytes as another type");
  return {t.emit("Reshape", {t.tensor("self")}, {{"shape", t.output().dims}})};
}

Values convert_unsqueeze(TorchCall& t) {
  Value* x = t.tensor("self");
  return {t.emit("Unsqueeze", {x}, {{"axes", Dims{t.axis("dim", x->rank() + 1)}}})};
}

// squeeze(), squeeze(dim) and squeeze(dims): drops only dimensions of size 1.
Values convert_squeeze(TorchCall& t) {
  Value* x = t.tensor("self");
  std::vector<int64_t> wanted;
  if (t.has("dim"))
    wanted = t.axes("dim", x->rank());
  else
    for (size_t d = 0; d < x->rank(); ++d) wanted.push_back(static_cast<int64_t>(d));
  std::sort(wanted.begin(), wanted.end());
  Dims axes;
  for (int64_t axis : wanted)
    if (x->rank() > 0 && x->dims[static_cast<size_t>(axis)] == DimExpr(1)) axes.push_back(axis);
  if (axes.empty()) return {t.emit("Identity", {x})};
  return {t.emit("Squeeze", {x}, {{"axes", axes}})};
}

void export_reshape(const OnnxRuleContext& c) {
  const Dims& shape = c.attrs().dims("shape");
  bool may_be_zero = false;  // by default, ONNX's Reshape reads 0 as "copy from the input"
  for (const DimExpr& dim : shape) may_be_zero |= !dim.is_constant() || dim.value() == 0;
  OnnxAttrs attrs;
  if (may_be_zero) attrs.emplace_back("allowzero", int64_t{1});
  c.set(0, "Reshape", {c.in(0), c.b.sizes(shape)}, attrs);
}

void export_with_axes(const OnnxRuleContext& c) {
  c.set(0, c.node.op, {c.in(0), c.b.sizes(c.attrs().dims("axes"))});
}

void export_squeeze(const OnnxRuleContext& c) {
  if (c.attrs().dims("axes").empty()) return c.set(0, "Identity", {c.in(0)});
  export_with_axes(c);
}

REGISTER_OP(Reshape, {.inputs = {"x"},
                      .outputs = {"y"},
                      .kind = OpKind::View,
                      .infer = infer_reshape,
                      .view = reshape_view,
                      .grad = reshape_grad,
                      .onnx = {export_reshape},
                      .from_torch = {{"aten.view.default", convert_view},
                                     {"aten._unsafe_view.default", convert_view},
                                     {"aten.reshape.default", convert_view},
                                     {"aten._reshape_copy.default", convert_view},
                                     {"aten.view_as.default", convert_view},
                                     {"aten.flatten.using_ints", convert_view},
                                     {"aten.unflatten.int", convert_view}}});

REGISTER_OP(Unsqueeze, {.inputs = {"x"},
                        .outputs = {"y"},
                        .kind = OpKind::View,
                        .infer = infer_unsqueeze,
                        .view = unsqueeze_view,
                        .grad = reshape_grad,
                        .onnx = {export_with_axes},
                        .from_torch = {{"aten.unsqueeze.default", convert_unsqueeze}}});

REGISTER_OP(Squeeze, {.inputs = {"x"},
                      .outputs = {"y"},
                      .kind = OpKind::View,
                      .infer = infer_squeeze,
                      .view = squeeze_view,
                      .grad = reshape_grad,
                      .onnx = {export_squeeze},
                      .from_torch = {{"aten.squeeze.default", convert_squeeze},
                                     {"aten.squeeze.dim", convert_squeeze},
                                     {"aten.squeeze.dims", convert_squeeze}}});

// The elements before each row, of all blocks.
int64_t elements_before_rows(const RowQuery& query) {
  int64_t before = query.blocks[0];
  for (int d = 0; d < query.axis(0); ++d)
    before *= query.each(query.dims(0)[static_cast<size_t>(d)]);
  return before;
}

// How many blocks of rows axis `axis` of the output has; 0 if the rows do not lie so.
int64_t reshape_blocks(const RowQuery& query, int axis) {
  const Dims& to = query.node.output()->dims;
  int64_t above = 1;
  for (int d = 0; d < axis; ++d) above *= query.each(to[static_cast<size_t>(d)]);
  const int64_t before = elements_before_rows(query);
  if (above == 0 || before % above != 0) return above == before ? 1 : 0;
  const int64_t blocks = before / above;
  return blocks > 0 && query.each(to[static_cast<size_t>(axis)]) % blocks == 0 ? blocks : 0;
}

// Rows stay apart where the number of elements before them does not change.
RowAxes reshape_rows(const RowQuery& query) {
  if (query.axis(0) == kWhole) return std::nullopt;
  const Dims& to = query.node.output()->dims;
  for (size_t d = 0; d < to.size(); ++d)
    if (const int axis = static_cast<int>(d); query.scales(to[d]))
      return reshape_blocks(query, axis) > 0 ? RowAxes(std::vector<int>{axis}) : std::nullopt;
  return std::nullopt;
}
REGISTER_ROW_AXES(reshape_rows, "Reshape", "Squeeze", "Unsqueeze");
REGISTER_ROW_BLOCKS(reshape_blocks, "Reshape", "Squeeze", "Unsqueeze");
REGISTER_ROW_NUMBERS(numbers_of_operand, "Reshape", "Squeeze", "Unsqueeze");

}  // namespace
}  // namespace ortmodule
