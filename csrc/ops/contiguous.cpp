// y = x in row-major layout; a view if x already has it

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

Grads contiguous_grad(GradContext& c) { return {c.dy()}; }

std::optional<Layout> view_contiguous(const Layout& in, const Attrs&, const Sizes&, size_t) {
  if (is_contiguous(in)) return in;
  return std::nullopt;
}

REGISTER_OP(Contiguous, {.domain = "com.microsoft",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .kind = OpKind::View,
                         .infer = infer_same_as_input,
                         .view = view_contiguous,
                         .grad = contiguous_grad,
                         .onnx = {export_identity}});

REGISTER_ROW_AXES(rows_elementwise, "Contiguous");
REGISTER_ROW_NUMBERS(numbers_of_operand, "Contiguous");

}  // namespace
}  // namespace ortmodule
