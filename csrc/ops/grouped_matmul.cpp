// Products of groups of rows, as a mixture of experts has them: rows ends[e - 1] to ends[e] belong
// to group e. GroupedMatMul: y[s] = x[s] w[e], with x [S, K], w [E, K, N]; rows of no group give 0.
// GroupedOuterProduct: y[e] = the sum of a[s]^T b[s] over the rows of e, with a [S, K], b [S, N].
#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

void check_ends(InferContext& c, const Value& ends) {
  if (ends.rank() != 1 || (ends.dtype != DType::Int32 && ends.dtype != DType::Int64))
    c.fail(str("ends must be i32 or i64 of rank 1, but found ", name_of(ends.dtype),
               dims_text(ends.dims)));
}

void infer_grouped_matmul(InferContext& c) {
  const Value &x = c.input(0), &w = c.input(1);
  check_ends(c, c.input(2));
  if (!is_floating(x.dtype) || x.dtype != w.dtype || x.rank() != 2 || w.rank() != 3 ||
      !may_equal(x.dims[1], w.dims[1]) || !may_equal(w.dims[0], c.input(2).dims[0]))
    c.fail(str("x [S, K] and w [E, K, N] must be of one floating type, for E ends, but found ",
               name_of(x.dtype), dims_text(x.dims), " and ", name_of(w.dtype), dims_text(w.dims)));
  c.set(0, x.dtype, {x.dims[0], w.dims[2]});
}

void infer_outer_product(InferContext& c) {
  const Value &a = c.input(0), &b = c.input(1);
  check_ends(c, c.input(2));
  if (!is_floating(a.dtype) || a.dtype != b.dtype || a.rank() != 2 || b.rank() != 2 ||
      !may_equal(a.dims[0], b.dims[0]))
    c.fail(str("a [S, K] and b [S, N] must be of one floating type, but found ", name_of(a.dtype),
               dims_text(a.dims), " and ", name_of(b.dtype), dims_text(b.dims)));
  c.set(0, a.dtype, {c.input(2).dims[0], a.dims[1], b.dims[1]});
}

// If every row has a group.
double grouped_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>& out) {
  return 2.0 * static_cast<double>(element_count(in.at(0))) * static_cast<double>(out.at(0).back());
}
double outer_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return 2.0 * static_cast<double>(element_count(in.at(0))) * static_cast<double>(in.at(1).back());
}

Handle flip(GradContext& c, Handle w) { return c.transpose(w, {0, 2, 1}); }

// As that of a matrix product: a transposed weight has a gradient in the layout of what is viewed.
Handle weight_grad(GradContext& c) {
  const Node* producer = c.x(1).value()->producer();
  if (producer && producer->op == "Transpose")
    return flip(c, c.emit("GroupedOuterProduct", {c.dy(), c.x(0), c.x(2)}));
  return c.emit("GroupedOuterProduct", {c.x(0), c.dy(), c.x(2)});
}

Grads grouped_matmul_grad(GradContext& c) {
  Handle dx, dw;
  if (c.needs(0)) dx = c.emit("GroupedMatMul", {c.dy(), flip(c, c.x(1)), c.x(2)});
  if (c.needs(1)) dw = weight_grad(c);
  return {dx, dw, {}};
}

Grads outer_product_grad(GradContext& c) {
  Handle da, db;
  if (c.needs(0)) da = c.emit("GroupedMatMul", {c.x(1), flip(c, c.dy()), c.x(2)});
  if (c.needs(1)) db = c.emit("GroupedMatMul", {c.x(0), c.dy(), c.x(2)});
  return {da, db, {}};
}

Values convert_grouped(TorchCall& t, Value* x, Value* w, Value* ends) {
  if (x->rank() != 2 || w->rank() != 3 || x->dtype != w->dtype || !ends || ends->rank() != 1)
    t.refuse("a grouped product must be of rows and one matrix for each group, of one type");
  return {t.emit("GroupedMatMul", {x, w, ends})};
}

Values convert_grouped_mm(TorchCall& t) {
  if (!t.is_none("bias") || t.output().dtype != t.tensor("self")->dtype)
    t.refuse("a grouped product with a bias or another type of results has no op");
  return convert_grouped(t, t.tensor("self"), t.tensor("mat2"), t.optional_tensor("offs"));
}

// The operator that transformers has where torch's does not take a type.
Values convert_fallback(TorchCall& t) {
  return convert_grouped(t, t.tensor("input"), t.tensor("weight"), t.tensor("offs"));
}

void export_grouped(const OnnxRuleContext&) {
  throw Error(
      "[save_onnx] nodes must have a form in ONNX's operators, but products of groups of rows have "
      "none");
}

REGISTER_OP(GroupedMatMul,
            {.domain = "com.microsoft",
             .inputs = {"x", "w", "ends"},
             .outputs = {"y"},
             .kind = OpKind::MatMul,
             .infer = infer_grouped_matmul,
             .grad = grouped_matmul_grad,
             .flops = grouped_flops,
             .onnx = {export_grouped},
             .from_torch = {{"aten._grouped_mm.default", convert_grouped_mm},
                            {"transformers.grouped_mm_fallback.default", convert_fallback}}});

REGISTER_OP(GroupedOuterProduct, {.domain = "com.microsoft",
                                  .inputs = {"a", "b", "ends"},
                                  .outputs = {"y"},
                                  .kind = OpKind::MatMul,
                                  .infer = infer_outer_product,
                                  .grad = outer_product_grad,
                                  .flops = outer_flops,
                                  .onnx = {export_grouped}});

}  // namespace
}  // namespace ortmodule
