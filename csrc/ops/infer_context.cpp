#include "base/error.h"
#include "ops/op_def.h"

namespace ortmodule {

const Value& InferContext::input(size_t i) const {
  const Value* value = node_.input(i);
  if (!value) {
    const OpDef& def = op_def(node_.op);
    const std::string_view operand = i < def.inputs.size() ? def.inputs[i] : "?";
    fail(str("operand ", i, " '", operand, "' is required, but absent"));
  }
  return *value;
}

void InferContext::set(size_t output, DType dtype, Dims dims) {
  if (output >= node_.outputs().size()) return;  // an absent optional output
  Value* value = node_.output(output);
  value->dtype = dtype;
  value->dims = std::move(dims);
}

void InferContext::fail(const std::string& message) const {
  std::string where;
  if (!node_.origin.module.empty()) where = node_.origin.module;
  if (!node_.origin.source.empty()) where += (where.empty() ? "" : ", ") + node_.origin.source;
  throw Error(str("[", node_.op, "] ", message, where.empty() ? "" : " (" + where + ")"));
}

int64_t InferContext::axis(std::string_view attr, size_t rank) const {
  const int64_t given = attrs().integer(attr);
  const int64_t axis = given < 0 ? given + static_cast<int64_t>(rank) : given;
  if (axis < 0 || axis >= static_cast<int64_t>(rank))
    fail(str(attr, " must lie in [-", rank, ", ", rank, "), but found ", given));
  return axis;
}

}  // namespace ortmodule
