#include "optimizer/dequantized.h"

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

bool is_small(DType dtype) {
  return dtype == DType::Int8 || dtype == DType::UInt8 || dtype == DType::Float16 ||
         dtype == DType::BFloat16;
}

const Node* made_by(const Value* value, std::string_view op) {
  const Node* node = value->producer();
  return node && node->op == op ? node : nullptr;
}

// The operand of a cast, through casts that widen.
Value* before_casts(Value* value) {
  while (const Node* cast = made_by(value, "Cast")) {
    if (is_floating(cast->input(0)->dtype) && value->dtype != DType::Float32) break;
    value = cast->input(0);
  }
  return value;
}

// q, or q less its zero point, in 32 bits.
bool read_centred(Value* value, Dequantized& found) {
  Value* source = before_casts(value);
  if (const Node* sub = made_by(source, "Sub"); sub && sub->input(1)) {
    // A zero point is reshaped before or behind its cast.
    Value* zero = sub->input(1);
    found.zero_dims = zero->dims;
    zero = before_casts(zero);
    if (const Node* view = zero->producer(); view && view->op == "Reshape")
      zero = before_casts(view->input(0));
    if (zero->is_literal()) return false;
    found.zero = zero;
    source = before_casts(sub->input(0));
  }
  found.q = source;
  return is_small(source->dtype) && (!found.zero || found.zero->dtype == source->dtype);
}

}  // namespace

std::optional<Dequantized> read_dequantized(Value* value) {
  if (value->dtype != DType::Float32) return std::nullopt;
  Dequantized found;
  if (made_by(value, "Cast") || made_by(value, "Sub"))
    return read_centred(value, found) ? std::optional(found) : std::nullopt;
  const Node* mul = made_by(value, "Mul");
  for (size_t i = 0; mul && i < 2; ++i) {
    Value *scale = mul->input(1 - i), *centred = mul->input(i);
    if (centred->is_literal() || centred->dims != value->dims) continue;
    const std::optional<double> number =
        scale->is_literal() ? number_of(scale->literal()) : std::nullopt;
    if (scale->is_literal() ? !number : scale->dtype != DType::Float32) continue;
    found = Dequantized();
    if (!read_centred(centred, found)) continue;
    if (number)
      found.number = *number;
    else
      found.scale = scale;
    return found;
  }
  return std::nullopt;
}

std::optional<int64_t> channel_axis(const Dims& dims, const Dims& q) {
  if (product(dims) == DimExpr(1)) return -1;
  if (dims.size() > q.size()) return std::nullopt;
  const size_t missing = q.size() - dims.size();
  std::optional<int64_t> axis;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == DimExpr(1)) continue;
    if (axis || dims[d] != q[missing + d]) return std::nullopt;
    axis = static_cast<int64_t>(missing + d);
  }
  return axis;
}

Value* as_channels(Graph& graph, Value* value) {
  if (!value) return nullptr;
  const Dims dims = product(value->dims) == DimExpr(1) ? Dims{} : Dims{product(value->dims)};
  return value->dims == dims ? value : emit(graph, "Reshape", {value}, {{"shape", dims}});
}

}  // namespace ortmodule
