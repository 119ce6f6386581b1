// Import of ai.onnx.preview's FlexAttention, whose subgraphs change scores and probabilities.
#include <cmath>

#include "base/error.h"
#include "importer/importer.h"
#include "onnx/onnx_types.h"
#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

// Each head `times` times, in place: [h0, h0, h1, h1]
Value* repeated_heads(Graph& graph, Value* x, int64_t times) {
  if (times == 1) return x;
  const Dims d = x->dims;
  Value* split =
      emit(graph, "Reshape", {x}, {{"shape", Dims{d.at(0), d.at(1), 1, d.at(2), d.at(3)}}});
  Value* wide =
      emit(graph, "Expand", {split}, {{"shape", Dims{d.at(0), d.at(1), times, d.at(2), d.at(3)}}});
  return emit(graph, "Reshape", {wide},
              {{"shape", Dims{d.at(0), d.at(1) * DimExpr(times), d.at(2), d.at(3)}}});
}

// What a subgraph of one input makes of x; x without it.
Value* modified(const ControlCall& c, std::string_view name, Value* x) {
  if (!c.find(name)) return x;
  const std::vector<ImportedRef> results =
      c.importer.import_subgraph(c.subgraph(name), c.scope, {Importer::of_tensor(x)});
  if (results.size() != 1 || results[0]->failed)
    c.refuse(str("'", name, "' must have one output, whose nodes can be imported"));
  Value* y = c.importer.tensor_of(*results[0]);
  if (y->dims != x->dims || y->dtype != x->dtype)
    c.refuse(str("'", name, "' must keep sizes and type"));
  return y;
}

std::vector<ImportedRef> import_flex_attention(const ControlCall& c) {
  Graph& graph = c.importer.graph();
  Value* q = c.importer.tensor_of(c.operand(0));
  Value* k = c.importer.tensor_of(c.operand(1));
  Value* v = c.importer.tensor_of(c.operand(2));
  for (const Value* operand : {q, k, v})
    if (operand->rank() != 4 || operand->dtype != q->dtype || !is_floating(q->dtype))
      c.refuse("q, k and v must be floats of one type and of rank 4");
  SizeGuards& sizes = c.importer.sizes();
  const auto must_agree = [&](const Value* a, const Value* b, size_t axis) {
    if (!sizes.equal(a->dims.at(axis), b->dims.at(axis)))
      c.refuse(str("axis ", axis, " of its operands must agree, but found ", dims_text(a->dims),
                   " and ", dims_text(b->dims)));
  };
  must_agree(q, k, 0);
  must_agree(k, v, 0);
  must_agree(k, v, 1);
  must_agree(k, v, 2);
  must_agree(q, k, 3);
  const int64_t heads = sizes.fix(q->dims.at(1)), shared = sizes.fix(k->dims.at(1));
  if (shared == 0 || heads % shared != 0)
    c.refuse(str("the number of heads must be a multiple of ", shared, ", but found ", heads));
  k = repeated_heads(graph, k, heads / shared);
  v = repeated_heads(graph, v, heads / shared);
  const DType wide = c.find("softmax_precision")  ? onnx_dtype(c.integer("softmax_precision", 0))
                     : q->dtype == DType::Float64 ? DType::Float64
                                                  : DType::Float32;
  if (!is_floating(wide)) c.refuse("softmax_precision must be a type of floats");
  const OnnxAttr* given = c.find("scale");
  const double* number = given ? std::get_if<double>(given) : nullptr;
  const double scale =
      number ? *number : 1 / std::sqrt(static_cast<double>(sizes.fix(q->dims.at(3))));
  Value* turned = emit(graph, "Transpose", {k}, {{"perm", Dims{0, 1, 3, 2}}});
  Value* scores = emit_cast(graph, emit(graph, "MatMul", {q, turned}), wide);
  scores = emit(graph, "Mul", {scores, graph.literal(scale, wide)});
  scores = modified(c, "score_mod", scores);
  Value* probabilities = emit(graph, "Softmax", {scores}, {{"axis", -1}});
  probabilities = modified(c, "prob_mod", probabilities);
  return {
      Importer::of_tensor(emit(graph, "MatMul", {emit_cast(graph, probabilities, q->dtype), v}))};
}

const ControlRegistrar kRows({{"FlexAttention", import_flex_attention, "ai.onnx.preview"}});

}  // namespace
}  // namespace ortmodule
