// y[..., m, n] = sum_k a[..., m, k] * b[..., k, n]: MatMul, and FusedMatMul = alpha * op(a) op(b),
// where op transposes the last two dimensions

#include <numeric>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

double matmul_flops(const Attrs& attrs, const std::vector<Sizes>& in,
                    const std::vector<Sizes>& out) {
  const Sizes& a = in.at(0);
  const int64_t k = a[a.size() - (attrs.flag("transA") ? 2 : 1)];
  return 2.0 * static_cast<double>(element_count(out.at(0))) * static_cast<double>(k);
}

// --- gradients --------------------------------------------------------------------------------

Handle flip(GradContext& c, Handle value) {  // swaps the last two dimensions
  std::vector<int64_t> perm(value.dims().size());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 2], perm[perm.size() - 1]);
  return c.transpose(value, perm);
}

Handle rows(GradContext& c, Handle value) {  // [..., m, k] as [rows, k]
  const Dims& dims = value.dims();
  return c.reshape(value, {product(Dims(dims.begin(), dims.end() - 1)), dims.back()});
}

// One product over all rows. If the weight is a transposed view, the gradient has the layout of the
// viewed tensor, so that a parameter's gradient is dense.
Handle weight_grad(GradContext& c) {
  const Handle a = rows(c, c.x(0));
  const Handle dy = rows(c, c.dy());
  const Node* producer = c.x(1).value()->producer();
  if (producer && producer->op == "Transpose") return flip(c, c.emit("MatMul", {flip(c, dy), a}));
  return c.emit("MatMul", {flip(c, a), dy});
}

Grads matmul_grad(GradContext& c) {  // build_gradient sums over broadcast batch dimensions
  Handle da;
  Handle db;
  if (c.needs(0)) da = c.emit("MatMul", {c.dy(), flip(c, c.x(1))});
  if (c.needs(1))
    db = c.x(1).dims().size() == 2 ? weight_grad(c) : c.emit("MatMul", {flip(c, c.x(0)), c.dy()});
  return {da, db};
}

Grads fused_matmul_grad(GradContext& c) {
  const int64_t trans_a = c.attrs().integer("transA");
  const int64_t trans_b = c.attrs().integer("transB");
  const Attr alpha = *c.attrs().find("alpha");
  auto product = [&](Handle a, Handle b, int64_t flip_a, int64_t flip_b) {
    return c.emit("FusedMatMul", {a, b},
                  {{"alpha", alpha}, {"transA", flip_a}, {"transB", flip_b}});
  };
  Handle da;
  Handle db;
  if (c.needs(0))
    da = trans_a ? product(c.x(1), c.dy(), trans_b, 1) : product(c.dy(), c.x(1), 0, !trans_b);
  if (c.needs(1))
    db = trans_b ? product(c.dy(), c.x(0), 1, trans_a) : product(c.x(0), c.dy(), !trans_a, 0);
  return {da, db};
}

// --- conversions ------------------------------------------------------------------------------

Value* flipped(TorchCall& t, Value* value) {
  Dims perm(value->rank());
  for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
  std::swap(perm[perm.size() - 2], perm[perm.size() - 1]);
  return t.emit("Transpose", {value}, {{"perm", perm}});
}

// alpha * a @ b. A vector becomes a row (a) or a column (b), and its dimension is dropped from the
// result.
Value* product(TorchCall& t, Value* a, Value* b, double alpha = 1.0) {
  if (a->dtype != b->dtype) t.refuse("operands of a matrix product must have the same type");
  require_real(t);
  if (a->rank() == 0 || b->rank() == 0) t.refuse("operands of a matrix product must have dims");
  if (a->rank() == 1) a = t.emit("Unsqueeze", {a}, {{"axes", Dims{0}}});
  if (b->rank() == 1) b = t.emit("Unsqueeze", {b}, {{"axes", Dims{1}}});
  Value* y =
      alpha == 1.0 ? t.emit("MatMul", {a, b}) : t.emit("FusedMatMul", {a, b}, {{"alpha", alpha}});
  return t.reshape(y, t.output().dims);
}

template <OpName first, OpName second>
Values convert_matmul(TorchCall& t) {
  return {product(t, t.tensor(first.text), t.tensor(second.text))};
}

// Only in float16, adds the bias before rounding, as eager PyTorch does: the rounded product could
// overflow. In other types, which do not overflow so soon, the sum can fuse with later ops.
Value* linear_rows(TorchCall& t, Value* x, Value* w, Value* bias) {
  const DimExpr rows = product(Dims(x->dims.begin(), x->dims.end() - 1));
  Value* y = t.emit("Gemm", {t.reshape(x, {rows, x->dims.back()}), w, bias}, {{"transB", 1}});
  return t.reshape(y, t.output().dims);
}

Values convert_linear(TorchCall& t) {
  Value* x = t.tensor("input");
  Value* w = t.tensor("weight");
  Value* bias = t.optional_tensor("bias");
  if (w->rank() != 2) t.refuse("the weight must have rank 2");
  if (x->dtype != w->dtype || (bias && bias->dtype != w->dtype))
    t.refuse("input, weight and bias must have the same type");
  require_real(t);
  if (x->rank() == 2) return {t.emit("Gemm", {x, w, bias}, {{"transB", 1}})};
  if (bias && bias->rank() == 1 && x->rank() > 0 && x->dtype == DType::Float16)
    return {linear_rows(t, x, w, bias)};
  Value* y = product(t, x, flipped(t, w));
  return {bias ? t.emit("Add", {y, bias}) : y};
}

// beta * self + alpha * a @ b in 32 or 64 bits
Values convert_sum(TorchCall& t, Value* a, Value* b) {
  const DType dtype = t.output().dtype;
  const double alpha = t.number_or("alpha", 1.0);
  Value* y = product(t, a, b, is_floating(dtype) ? alpha : 1.0);
  if (!is_floating(dtype) && alpha != 1.0) y = t.emit("Mul", {y, t.operand("alpha", dtype)});
  const double beta = t.number_or("beta", 1.0);
  if (beta == 0.0) t.refuse("with beta = 0 torch does not read self, nan included");
  Value* self = t.operand("self", dtype);
  if (beta != 1.0) self = t.emit("Mul", {self, t.operand("beta", dtype)});
  return {t.emit("Add", {y, self})};
}

bool is_16_bits(const TorchCall& t) {
  const DType dtype = t.output().dtype;
  return compute_dtype(dtype) != dtype;
}

Values convert_baddbmm(TorchCall& t) {
  if (is_16_bits(t) && t.number_or("beta", 1.0) != 0.0)
    t.refuse("in 16 bits a batch of products and its sum would round twice");
  return convert_sum(t, t.tensor("batch1"), t.tensor("batch2"));
}

// In 16 bits, a Gemm with one column, which rounds the sum once.
Values convert_addmv(TorchCall& t) {
  Value *self = t.tensor("self"), *mat = t.tensor("mat"), *vec = t.tensor("vec");
  const double beta = t.number_or("beta", 1.0);
  if (!is_16_bits(t) || beta == 0.0) return convert_sum(t, mat, vec);
  if (mat->dtype != vec->dtype || self->dtype != mat->dtype)
    t.refuse("operands must have the same type");
  const Attrs column = {{"axes", Dims{1}}};
  if (self->rank() == 1) self = t.emit("Unsqueeze", {self}, column);
  Value* y = t.emit("Gemm", {mat, t.emit("Unsqueeze", {vec}, column), self},
                    {{"alpha", t.number_or("alpha", 1.0)}, {"beta", beta}});
  return {t.reshape(y, t.output().dims)};
}

void export_fused_matmul(const OnnxRuleContext& c) {
  auto flipped = [&](size_t i, std::string_view flag) {
    if (!c.attrs().flag(flag)) return c.in(i);
    std::vector<int64_t> perm(c.value(i).rank());
    std::iota(perm.begin(), perm.end(), 0);
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    return c.op("Transpose", {c.in(i)}, {{"perm", perm}});
  };
  const std::vector<std::string> inputs{flipped(0, "transA"), flipped(1, "transB")};
  const double alpha = c.attrs().number("alpha", 1.0);
  if (alpha == 1.0) return c.set(0, "MatMul", inputs);
  c.set(0, "Mul", {c.op("MatMul", inputs), c.number(alpha, c.dtype())});
}

REGISTER_OP(MatMul, {.inputs = {"a", "b"},
                     .outputs = {"y"},
                     .kind = OpKind::MatMul,
                     .infer = infer_matmul,
                     .grad = matmul_grad,
                     .flops = matmul_flops,
                     .onnx = {export_directly},
                     .from_torch = {{"aten.linear.default", convert_linear},
                                    {"aten.matmul.default", convert_matmul<"self", "other">},
                                    {"aten.mm.default", convert_matmul<"self", "mat2">},
                                    {"aten.bmm.default", convert_matmul<"self", "mat2">},
                                    {"aten.mv.default", convert_matmul<"self", "vec">},
                                    {"aten.dot.default", convert_matmul<"self", "tensor">},
                                    {"aten.baddbmm.default", convert_baddbmm},
                                    {"aten.addmv.default", convert_addmv}}});

REGISTER_OP(FusedMatMul, {.domain = "com.microsoft",
                          .inputs = {"a", "b"},
                          .outputs = {"y"},
                          .attrs = {{"alpha", 1.0}, {"transA", 0}, {"transB", 0}},
                          .kind = OpKind::MatMul,
                          .infer = infer_matmul,
                          .grad = fused_matmul_grad,
                          .flops = matmul_flops,
                          .onnx = {export_fused_matmul}});

// Rows are dimensions of the batch, the rows of `a`, or the columns of `b`.
RowAxes product_rows(const RowQuery& query) {
  const auto rank = static_cast<int>(query.node.output()->rank());
  if (query.rank(0) < 2 || query.rank(1) < 2) return std::nullopt;
  int found = kWhole;
  for (size_t i = 0; i < 2; ++i) {
    const int axis = query.axis(i), own = query.rank(i);
    if (axis == kWhole) continue;
    if (axis == (i == 0 ? own - 1 : own - 2)) return std::nullopt;  // summed over
    const int place = axis + rank - own;
    if (found != kWhole && (place != found || place >= rank - 2)) return std::nullopt;
    found = place;
  }
  for (size_t i = 2; i < query.node.inputs().size(); ++i)
    if (query.axis(i) != kWhole) return std::nullopt;
  return found == kWhole ? std::nullopt : RowAxes(std::vector<int>{found});
}
REGISTER_ROW_AXES(product_rows, "MatMul");

}  // namespace
}  // namespace ortmodule
