// Decompositions of var = sum((x - mean)^2) / (n - correction) and std = sqrt(var)

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

struct Moments {
  Value* variance = nullptr;
  Value* mean = nullptr;
};

// The first element along `axes`, with dims of size 1. Subtracting it does not change the variance
// and makes that of equal elements exactly 0, as torch's running update does.
Value* first_element(TorchCall& t, Value* x, const std::vector<int64_t>& axes) {
  for (int64_t axis : axes) {
    if (x->dims[static_cast<size_t>(axis)] == DimExpr(0)) return t.literal(0.0, x->dtype);
    x = t.emit("Slice", {x}, {{"axis", axis}, {"start", 0}, {"end", 1}, {"step", 1}});
  }
  return t.emit("Detach", {x});
}

// Computes 16-bit floats in 32 bits, as torch does. The deviations sum to zero, so the variance has
// no gradient through the mean; its gradient has one.
Moments moments(TorchCall& t) {
  require_real(t, true);
  const DType dtype = compute_dtype(t.output().dtype);
  Value* x = t.operand("self", dtype);
  if (x->rank() == 0) t.refuse("a scalar has no variance");
  const std::vector<int64_t> given = t.axes("dim", x->rank());
  const Attrs kept = {{"axes", Dims(given.begin(), given.end())}, {"keepdims", 1}};
  Attrs attrs = kept;
  attrs.set("keepdims", t.flag("keepdim") ? 1 : 0);
  DimExpr count = 1;
  const std::vector<int64_t> axes = reduced_axes(kept, x->rank());
  for (int64_t axis : axes) count = count * x->dims[static_cast<size_t>(axis)];
  const DimExpr freedom = count - DimExpr(t.integer_or("correction", 1));
  Value* mean = t.emit("ReduceMean", {x}, kept);
  Value* shifted = t.emit("Sub", {x, first_element(t, x, axes)});
  Value* shifted_mean =
      t.emit("Detach", {t.emit("ReduceMean", {shifted}, kept)}, {{"stationary", 1}});
  Value* deviation = t.emit("Sub", {shifted, shifted_mean});
  Value* sum = t.emit("ReduceSum", {t.emit("Mul", {deviation, deviation})}, attrs);
  const DimExpr divisor = DimExpr::max(freedom, 0);
  return {t.emit("Div", {sum, t.size_literal(divisor, dtype)}), t.reshape(mean, sum->dims)};
}

// The derivative of a square root at 0 is infinite; torch's std uses 0.
Value* safe_sqrt(TorchCall& t, Value* x) {
  Value* zero = t.literal(0.0, x->dtype);
  Value* at_zero = t.emit("Equal", {x, zero});
  Value* root = t.emit("Sqrt", {t.emit("Where", {at_zero, t.literal(1.0, x->dtype), x})});
  return t.emit("Where", {at_zero, zero, root});
}

Values convert_var(TorchCall& t) { return {t.cast(moments(t).variance, t.output().dtype)}; }

Values convert_std(TorchCall& t) {
  return {t.cast(safe_sqrt(t, moments(t).variance), t.output().dtype)};
}

Values convert_var_mean(TorchCall& t) {
  const Moments both = moments(t);
  return {t.cast(both.variance, t.output(0).dtype), t.cast(both.mean, t.output(1).dtype)};
}

Values convert_std_mean(TorchCall& t) {
  const Moments both = moments(t);
  return {t.cast(safe_sqrt(t, both.variance), t.output(0).dtype),
          t.cast(both.mean, t.output(1).dtype)};
}

REGISTER_TORCH({{"aten.var.correction", convert_var},
                {"aten.std.correction", convert_std},
                {"aten.var_mean.correction", convert_var_mean},
                {"aten.std_mean.correction", convert_std_mean}});

}  // namespace
}  // namespace ortmodule
