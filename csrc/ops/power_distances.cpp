// y[i, j] = sum over f of |x[i, f] - z[f, j]|^p, without the cancellation of x^2 - 2 x z + z^2.
// Also import of CDist of onnxruntime.
#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_power_distances(InferContext& c) {
  const Value &x = c.input(0), &z = c.input(1);
  if (x.rank() != 2 || z.rank() != 2 || x.dtype != z.dtype ||
      !may_equal(x.dims.at(1), z.dims.at(0)))
    c.fail(str("x [rows, columns] and z [columns, points] must fit, but found ", name_of(x.dtype),
               " ", dims_text(x.dims), " and ", name_of(z.dtype), " ", dims_text(z.dims)));
  c.set(0, x.dtype, {x.dims.at(0), z.dims.at(1)});
}

double power_distances_flops(const Attrs&, const std::vector<Sizes>& in,
                             const std::vector<Sizes>& out) {
  return 3.0 * static_cast<double>(element_count(out[0])) * static_cast<double>(in[0].at(1));
}

REGISTER_OP(PowerDistances, {.domain = "com.microsoft",
                             .inputs = {"x", "z"},
                             .outputs = {"y"},
                             .attrs = {{"p", 2.0}},
                             .kind = OpKind::MatMul,
                             .infer = infer_power_distances,
                             .non_differentiable = {0, 1},
                             .flops = power_distances_flops});

// The distances of each row of x to each row of z, or their squares
Values import_cdist(OnnxCall& c) {
  const std::string metric = c.string("metric", "sqeuclidean");
  if (metric != "euclidean" && metric != "sqeuclidean")
    c.refuse(str("metric must be euclidean or sqeuclidean, but found ", metric));
  Value *x = c.in(0), *z = c.in(1);
  if (z->rank() != 2) c.refuse("operands must have rank 2");
  Value* y = c.emit("PowerDistances", {x, c.transpose(z, {1, 0})}, {{"p", 2.0}});
  return {metric == "euclidean" ? c.emit("Sqrt", {y}) : y};
}

REGISTER_ONNX({{"CDist", 1, import_cdist, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
