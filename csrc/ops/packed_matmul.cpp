// y[.., n] = alpha sum_k x[.., k] w[k, n] + bias[n] with a weight that was packed before into the
// panels that the product reads (PackWeights), by the kernel of the same machine. Made by
// pack_weights, for weights that do not change. `columns`: the n of the weight, which its packed
// form only has as a number of elements. With x of float32 the weight may have 16 bits.

#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Panels have whole vectors, of 16 elements at most.
constexpr int64_t kVector = 16;

bool fits_packed(DType w, DType x) {
  return w == x || (x == DType::Float32 && (w == DType::Float16 || w == DType::BFloat16));
}

int64_t packed_elements(int64_t inner, int64_t columns) {
  return inner * ((columns + kVector - 1) / kVector * kVector);
}

void infer_pack_weights(InferContext& c) {
  const Value& w = c.input(0);
  if (w.rank() != 2 || !w.dims[0].is_constant() || !w.dims[1].is_constant())
    c.fail(str("w must be a matrix of a fixed size, but found ", dims_text(w.dims)));
  c.set(0, w.dtype, {packed_elements(w.dims[0].value(), w.dims[1].value())});
}

void infer_packed_matmul(InferContext& c) {
  const Value &x = c.input(0), &w = c.input(1);
  const int64_t columns = c.attrs().integer("columns");
  if (x.rank() < 2 || !x.dims.back().is_constant() || !fits_packed(w.dtype, x.dtype) ||
      !may_equal(w.dims, {packed_elements(x.dims.back().value(), columns)}))
    c.fail(str("x and the packed weight must match, but found ", dims_text(x.dims), " and ",
               dims_text(w.dims), " for ", columns, " columns"));
  if (c.has_input(2) && (c.input(2).dtype != x.dtype || !may_equal(c.input(2).dims, {columns})))
    c.fail(
        str("the bias must have ", columns, " elements, but found ", dims_text(c.input(2).dims)));
  Dims dims = x.dims;
  dims.back() = columns;
  c.set(0, x.dtype, std::move(dims));
}

REGISTER_OP(PackWeights, {.domain = "com.microsoft",
                          .inputs = {"w"},
                          .outputs = {"packed"},
                          .kind = OpKind::Data,
                          .infer = infer_pack_weights});

REGISTER_OP(PackedMatMul, {.domain = "com.microsoft",
                           .inputs = {"x", "packed", "bias?"},
                           .outputs = {"y"},
                           .attrs = {{"alpha", 1.0}},
                           .kind = OpKind::MatMul,
                           .infer = infer_packed_matmul,
                           .flops = row_product_flops});

}  // namespace
}  // namespace ortmodule
