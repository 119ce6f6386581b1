// Fuses LayerNormalization(x + skip): the sum is written once and shared by the norm, the residual
// stream and the gradient. On CUDA the sum stays with the pointwise ops that make an addend, which
// then need not write it. The op is in ops/layer_norm.cpp.

#include "ops/op_def.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject(const Match& match) {
  if (match.dims("x") != match.dims("sum")) return "x is broadcast";
  if (match.dims("skip") != match.dims("sum")) return "skip is broadcast";
  // The sum may reuse the memory of an operand of its size, but these are still read after it.
  for (const char* operand : {"scale", "bias"})
    if (match.has(operand) && match.dims(operand) == match.dims("sum"))
      return str(operand, " is as large as x");
  return {};
}

bool is_product(const Value* value) {
  const Node* node = value->producer();
  return node && op_def(node->op).kind == OpKind::MatMul;
}

/// Whether `node` adds the bias of a product or multiplies it by a number, as products can.
bool joins_product(const Node& node) {
  const bool adds = node.op == "Add";
  if (!adds && node.op != "Mul" && node.op != "Div") return false;
  for (size_t i = 0; i < 2; ++i) {
    const Value& other = *node.input(1 - i);
    if (is_product(node.input(i)) && (adds ? other.rank() == 1 : other.is_literal())) return true;
  }
  return false;
}

Reason reject_on_cuda(const Match& match) {
  if (Reason reason = reject(match)) return reason;
  // The group writes the sum instead of the addend and the norm reads one tensor: three passes over
  // memory in place of four.
  for (const char* operand : {"x", "skip"}) {
    const Value& addend = *match.value(operand);
    if (is_made_for_one_reader(addend) && !joins_product(*addend.producer()))
      return str("the pointwise op that makes ", operand, " adds it, too");
  }
  return {};
}

const RuleSet kRules = {
    {.name = "SkipLayerNormalization", .fused_op = "SkipLayerNormalization", .reject = reject}};

const RuleSet kRulesOnCUDA = {{.name = "SkipLayerNormalization",
                               .fused_op = "SkipLayerNormalization",
                               .reject = reject_on_cuda}};

bool fuse_skip_layer_norm(Graph& graph, PassContext& context) {
  return apply_rules(graph, context.device() == Device::CUDA ? kRulesOnCUDA : kRules, context);
}

}  // namespace

REGISTER_FUSION(fuse_skip_layer_norm, fuse_skip_layer_norm);

}  // namespace ortmodule
