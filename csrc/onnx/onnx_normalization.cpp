#include "onnx/onnx_normalization.h"

namespace ortmodule {

std::vector<int64_t> axes_from(int64_t first, size_t rank) {
  std::vector<int64_t> axes;
  for (int64_t i = first; i < static_cast<int64_t>(rank); ++i) axes.push_back(i);
  return axes;
}

std::string mean_over(const OnnxRuleContext& c, const std::string& x,
                      const std::vector<int64_t>& axes, int64_t keep) {
  return c.op("ReduceMean", {x, c.b.integers(axes)}, {{"keepdims", keep}});
}

std::string in_type(const OnnxRuleContext& c, size_t i, DType inside) {
  return c.dtype(i) == inside ? c.in(i) : c.cast(c.in(i), inside);
}

void set_in_type(const OnnxRuleContext& c, const std::string& y, DType inside) {
  if (inside == c.dtype())
    c.set(0, "Identity", {y});
  else
    c.set(0, "Cast", {y}, {{"to", c.dtype()}});
}

std::string scale_or(const OnnxRuleContext& c, size_t operand, const Dims& dims, double value,
                     DType dtype) {
  if (c.has(operand)) return c.in(operand);
  const OnnxTensor one{dtype, {1}, encode_scalar(value, dtype)};
  return c.op("ConstantOfShape", {c.b.sizes(dims)}, {{"value", one}});
}

Dims normalized_dims(const OnnxRuleContext& c, int64_t axis) {
  const Dims& dims = c.value(0).dims;
  return Dims(dims.begin() + axis, dims.end());
}

Normalized normalized(const OnnxRuleContext& c, std::string x, const std::vector<int64_t>& axes,
                      DType inside, bool centered) {
  Normalized n;
  if (centered) {
    n.mean = mean_over(c, x, axes, 1);
    x = c.op("Sub", {x, n.mean});
  }
  const std::string variance = mean_over(c, c.op("Mul", {x, x}), axes, 1);
  const std::string shifted =
      c.op("Add", {variance, c.number(c.attrs().number("epsilon"), inside)});
  n.inverse = c.op("Reciprocal", {c.op("Sqrt", {shifted})});
  n.y = c.op("Mul", {x, n.inverse});
  return n;
}

void export_norm_in_parts(const OnnxRuleContext& c, int64_t axis, bool centered) {
  const DType inside = compute_dtype(c.dtype());
  const auto wide = [&](size_t i) { return in_type(c, i, inside); };
  const std::vector<int64_t> axes = axes_from(axis, c.value(0).rank());
  const Normalized n = normalized(c, wide(0), axes, inside, centered);
  std::string y = n.y;
  if (c.has(1)) y = c.op("Mul", {y, wide(1)});
  if (c.has(2)) y = c.op("Add", {y, wide(2)});
  const size_t statistics = centered ? 2 : 1;
  if (centered && c.wanted(1)) c.set(1, "Identity", {n.mean});
  if (c.wanted(statistics)) c.set(statistics, "Identity", {n.inverse});
  set_in_type(c, y, inside);
}

}  // namespace ortmodule
