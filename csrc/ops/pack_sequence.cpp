// PackSequence: the rows of torch's PackedSequence, [rows of all steps, ...], from a padded batch
// [T, B, ...] (layout 1: [B, T, ...]) and the number of sequences of each step, `batch_sizes`, in
// descending order. Steps behind batch_sizes are left out. PadSequence is the opposite, with
// `value` where a sequence has no step.

#include "ops/pack_sequence.h"

#include "ops/infer_rules.h"

namespace ortmodule {

std::string packed_mask(const OnnxRuleContext& c, const std::string& batch_sizes,
                        const DimExpr& batch) {
  const std::string sizes = c.op("Unsqueeze", {batch_sizes, c.b.integers({1})});
  const std::string rows =
      c.op("Range", {c.number(0, DType::Int64), c.b.size_scalar(batch), c.number(1, DType::Int64)});
  return c.op("Less", {rows, sizes});
}

std::string packed_positions(const OnnxRuleContext& c, const std::string& mask) {
  return c.op("Transpose", {c.op("NonZero", {mask})}, {{"perm", std::vector<int64_t>{1, 0}}});
}

std::string padded_batch(const OnnxRuleContext& c, const std::string& data,
                         const std::string& positions, const Dims& dims, double value,
                         DType dtype) {
  const OnnxTensor filling{dtype, {1}, encode_scalar(value, dtype)};
  const std::string filled = c.op("ConstantOfShape", {c.b.sizes(dims)}, {{"value", filling}});
  return c.op("ScatterND", {filled, positions, data});
}

namespace {

void check_batch_sizes(InferContext& c) {
  const Value& batch_sizes = c.input(1);
  if (batch_sizes.dtype != DType::Int64 || batch_sizes.rank() != 1)
    c.fail(str("batch_sizes must be int64 and have rank 1, but found ", name_of(batch_sizes.dtype),
               " and ", dims_text(batch_sizes.dims)));
}

void infer_packed_rows(InferContext& c) {
  const Value& x = c.input(0);
  check_batch_sizes(c);
  if (x.rank() < 2) c.fail(str("a padded batch must have rank 2, but found ", dims_text(x.dims)));
  Dims dims{c.attrs().dim("rows")};
  dims.insert(dims.end(), x.dims.begin() + 2, x.dims.end());
  c.set(0, x.dtype, std::move(dims));
}

void infer_pad(InferContext& c) {
  const Value& data = c.input(0);
  check_batch_sizes(c);
  if (data.rank() < 1) c.fail("a packed batch must have rows");
  Dims dims{c.attrs().dim("steps"), c.attrs().dim("batch")};
  if (c.attrs().flag("layout")) std::swap(dims[0], dims[1]);
  dims.insert(dims.end(), data.dims.begin() + 1, data.dims.end());
  c.set(0, data.dtype, std::move(dims));
}

Grads pack_grad(GradContext& c) {
  const int64_t layout = c.attrs().integer("layout");
  const Dims& dims = c.x(0).dims();
  return {c.emit(
      "PadSequence", {c.dy(), c.x(1)},
      {{"layout", layout}, {"steps", dims[layout ? 1 : 0]}, {"batch", dims[layout ? 0 : 1]}})};
}

Grads pad_grad(GradContext& c) {
  return {c.emit("PackSequence", {c.dy(), c.x(1)},
                 {{"layout", c.attrs().integer("layout")}, {"rows", c.x(0).dims()[0]}})};
}

// --- ONNX ---------------------------------------------------------------------------------------

std::string swapped(const OnnxRuleContext& c, const std::string& tensor, size_t rank) {
  std::vector<int64_t> perm(rank);
  for (size_t i = 0; i < rank; ++i) perm[i] = static_cast<int64_t>(i);
  std::swap(perm[0], perm[1]);
  return c.op("Transpose", {tensor}, {{"perm", perm}});
}

void export_pack(const OnnxRuleContext& c) {
  const Value& x = c.value(0);
  const bool batch_first = c.attrs().flag("layout");
  const std::string steps_first = batch_first ? swapped(c, c.in(0), x.rank()) : c.in(0);
  const std::string mask = packed_mask(c, c.in(1), x.dims[batch_first ? 0 : 1]);
  c.set(0, "GatherND", {steps_first, packed_positions(c, mask)});
}

void export_pad(const OnnxRuleContext& c) {
  const Value& data = c.value(0);
  Dims dims{c.attrs().dim("steps"), c.attrs().dim("batch")};
  dims.insert(dims.end(), data.dims.begin() + 1, data.dims.end());
  const std::string mask = packed_mask(c, c.in(1), dims[1]);
  const std::string padded = padded_batch(c, c.in(0), packed_positions(c, mask), dims,
                                          c.attrs().number("value"), data.dtype);
  c.set(0, "Identity", {c.attrs().flag("layout") ? swapped(c, padded, dims.size()) : padded});
}

// --- conversions ------------------------------------------------------------------------------

Values convert_pack(TorchCall& t) {
  return {t.emit("PackSequence", {t.tensor("input"), t.tensor("batch_sizes")},
                 {{"layout", int64_t{t.flag("batch_first")}}, {"rows", t.dim("rows")}})};
}

Values convert_pad(TorchCall& t) {
  return {t.emit("PadSequence", {t.tensor("data"), t.tensor("batch_sizes")},
                 {{"layout", int64_t{t.flag("batch_first")}},
                  {"steps", t.dim("steps")},
                  {"batch", t.dim("batch")},
                  {"value", t.number("padding_value")}})};
}

REGISTER_OP(PackSequence, {.domain = "com.microsoft",
                           .inputs = {"x", "batch_sizes"},
                           .outputs = {"data"},
                           .attrs = {{"layout", 0}},
                           .kind = OpKind::Data,
                           .infer = infer_packed_rows,
                           .grad = pack_grad,
                           .non_differentiable = {1},
                           .onnx = {export_pack},
                           .from_torch = {{"ortmodule_py.pack_sequence.default", convert_pack}}});

REGISTER_OP(PadSequence, {.domain = "com.microsoft",
                          .inputs = {"data", "batch_sizes"},
                          .outputs = {"x"},
                          .attrs = {{"layout", 0}, {"value", 0.0}},
                          .kind = OpKind::Data,
                          .infer = infer_pad,
                          .grad = pad_grad,
                          .non_differentiable = {1},
                          .onnx = {export_pad},
                          .from_torch = {{"ortmodule_py.pad_sequence.default", convert_pad}}});

}  // namespace
}  // namespace ortmodule
