// loss = SoftmaxCrossEntropyLoss(x w' + bias, labels) for rows x [N, C], without materializing all
// logits. It also computes the gradients for dloss = 1, which backward only scales. For 16-bit x
// and w these are float32, since they can be tiny before they are scaled. Similar to "Cut Your
// Losses in Large-Vocabulary Language Models" (Wijmans et al. 2024) and Liger Kernel (Hsu et al.
// 2024).

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/spelled_out.h"

namespace ortmodule {
namespace {

void infer_head(InferContext& c) {
  const Value& x = c.input(0);
  const Value& w = c.input(1);
  const bool trans_b = c.attrs().flag("transB");
  if (x.rank() != 2 || w.rank() != 2)
    c.fail(
        str("x and w must have rank 2, but found ", dims_text(x.dims), " and ", dims_text(w.dims)));
  if (x.dtype != w.dtype)
    c.fail(str("x and w must have the same type, but found ", name_of(x.dtype), " and ",
               name_of(w.dtype)));
  if (!may_equal(Dims{x.dims[1]}, Dims{w.dims[trans_b ? 1 : 0]}))
    c.fail(str("the inner dims of x and w must be equal, but found ", dims_text(x.dims), " and ",
               dims_text(w.dims)));
  if (!may_equal(c.input(3).dims, Dims{x.dims[0]}))
    c.fail(str("labels must have the shape ", dims_text({x.dims[0]}), ", but found ",
               dims_text(c.input(3).dims)));
  const Dims classes{w.dims[trans_b ? 0 : 1]};
  for (size_t i : {2, 4})  // bias and class weights
    if (c.has_input(i) && !may_equal(c.input(i).dims, classes))
      c.fail(str("operand ", i, " must have the shape ", dims_text(classes), ", but found ",
                 dims_text(c.input(i).dims)));
  const DType wide = compute_dtype(x.dtype);
  c.set(0, c.attrs().dtype("dtype"), {});
  c.set(1, wide, x.dims);
  c.set(2, wide, w.dims);
  c.set(3, wide, classes);
}

Grads head_grad(GradContext& c) {
  Grads grads(5);
  for (size_t i = 0; i < 3; ++i)
    if (c.needs(i) && c.x(i)) {
      const Handle unit = c.y(i + 1);
      grads[i] = unit * c.cast(c.dy(), unit.dtype());
    }
  return grads;
}

// With all logits, whose gradients have gradients.
Values spell_out_head(Graph& graph, const Node& node, const Values& operands) {
  const DType wide = compute_dtype(node.input(0)->dtype);
  const auto widened = [&](size_t i) {
    return operands[i] ? emit_cast(graph, operands[i], wide) : nullptr;
  };
  Value* logits = emit(graph, "Gemm", {widened(0), widened(1), widened(2)},
                       {{"transB", node.attrs.integer("transB", 1)}});
  Attrs attrs;
  for (const char* name : {"ignore_index", "reduction", "label_smoothing"})
    attrs.set(name, *node.attrs.find(name));
  Values loss_operands{logits, operands[3]};
  if (operands.size() > 4) loss_operands.push_back(operands[4]);
  Value* loss = emit_node(graph, "SoftmaxCrossEntropyLoss", loss_operands, attrs, 2)->output(0);
  return {emit_cast(graph, loss, node.attrs.dtype("dtype"))};
}

// The products for the logits, dx and dw.
double head_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return 3 * 2.0 * static_cast<double>(in.at(0).at(0)) *
         static_cast<double>(element_count(in.at(1)));
}

REGISTER_OP(LinearCrossEntropy, {.domain = "com.microsoft",
                                 .inputs = {"x", "w", "bias?", "labels", "weights?"},
                                 .outputs = {"loss", "unit_dx", "unit_dw", "unit_dbias"},
                                 .attrs = {{"ignore_index", -100},
                                           {"reduction", "mean"},
                                           {"label_smoothing", 0.0},
                                           {"transB", 1}},
                                 .kind = OpKind::MatMul,
                                 .infer = infer_head,
                                 .grad = head_grad,
                                 .non_differentiable = {3, 4},
                                 .flops = head_flops});

[[maybe_unused]] const bool kHeadIsSpelledOut =
    register_spelled_out("LinearCrossEntropy", spell_out_head);

}  // namespace
}  // namespace ortmodule
