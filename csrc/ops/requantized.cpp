#include "ops/requantized.h"

#include "ir/text.h"

namespace ortmodule {

DType requantized_type(InferContext& c, size_t first) {
  if (c.has_input(first) != c.has_input(first + 1)) c.fail("y_scale and y_zero belong together");
  if (!c.has_input(first)) return DType::Float32;
  const Value &scale = c.input(first), &zero = c.input(first + 1);
  if (scale.dtype != DType::Float32 || product(scale.dims) != DimExpr(1) ||
      (zero.dtype != DType::Int8 && zero.dtype != DType::UInt8) || product(zero.dims) != DimExpr(1))
    c.fail(str("y_scale must be one f32 and y_zero one i8 or u8, but found ", name_of(scale.dtype),
               dims_text(scale.dims), " and ", name_of(zero.dtype), dims_text(zero.dims)));
  return zero.dtype;
}

std::string add_requantized(const Node& node, std::string real, size_t first, std::string& lines) {
  if (node.attrs.integer("relu", 0) != 0) {
    lines += str("  bent = Relu (", real, ")\n");
    real = "bent";
  }
  if (!node.input(first)) return real;
  const bool is_signed = node.input(first + 1)->dtype == DType::Int8;
  lines += str("  steps = Div (", real, ", y_scale)\n  rounded = Round (steps)\n",
               "  point = Cast<to=f32> (y_zero)\n  moved = Add (rounded, point)\n");
  lines += is_signed ? "  clamped = Clip<min=-128.0, max=127.0> (moved)\n"
                     : "  clamped = Clip<min=0.0, max=255.0> (moved)\n";
  lines += str("  quantized = Cast<to=", is_signed ? "i8" : "u8", "> (clamped)\n");
  return "quantized";
}

}  // namespace ortmodule
