// What the imports of ONNX's and com.microsoft's attention operators share: numbers, ranges and
// heads.
#pragma once

#include <limits>

#include "ops/onnx_call.h"

namespace ortmodule::onnx_heads {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// `start`, `start + 1`, ..., `size` of them, as int64 of shape `dims`.
inline Value* range(OnnxCall& c, const DimExpr& start, const DimExpr& size, const Dims& dims) {
  Value* values = c.emit(
      "Range", {},
      {{"start", start}, {"limit", start + size}, {"delta", DimExpr(1)}, {"dtype", DType::Int64}});
  return c.reshape(values, dims);
}

/// [B, L, heads * E] as [B, heads, L, E]; `heads` is positive.
inline Value* split_heads(OnnxCall& c, Value* x, int64_t heads) {
  const DimExpr width = DimExpr::floor_div(x->dims.at(2), heads);
  return c.transpose(c.reshape(x, {x->dims.at(0), x->dims.at(1), heads, width}), {0, 2, 1, 3});
}

/// [B, heads, L, E] as [B, L, heads * E]
inline Value* join_heads(OnnxCall& c, Value* x) {
  const Dims d = x->dims;
  return c.reshape(c.transpose(x, {0, 2, 1, 3}), {d.at(0), d.at(2), d.at(1) * d.at(3)});
}

}  // namespace ortmodule::onnx_heads
