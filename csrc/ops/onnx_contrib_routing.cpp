// Import of com.microsoft's operators of language models that are spelled out: rotations by three
// positions, and routers of experts by groups.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Which of the three positions (time, height, width) each column of the cosines belongs to.
std::vector<int64_t> streams_of_columns(OnnxCall& c, int64_t half) {
  const std::vector<int64_t> sections = c.integers("mrope_section");
  if (sections.size() != 3 || *std::ranges::min_element(sections) < 0 ||
      sections[0] + sections[1] + sections[2] != half)
    c.refuse(str("mrope_section must be three numbers that add up to ", half));
  std::vector<int64_t> streams(static_cast<size_t>(half), 0);
  if (c.integer("mrope_layout", 0) == 0) {
    std::fill(streams.begin() + sections[0], streams.end() - sections[2], 1);
    std::fill(streams.end() - sections[2], streams.end(), 2);
    return streams;
  }
  for (int64_t stream = 1; stream < 3; ++stream)
    for (int64_t i = stream; i < std::min(3 * sections[static_cast<size_t>(stream)], half); i += 3)
      streams[static_cast<size_t>(i)] = stream;
  return streams;
}

// x, position_ids [3, batch, length], and caches of cosines and sines
Values import_m_rotary_embedding(OnnxCall& c) {
  Value* positions = c.cast(c.in(1), DType::Int64);
  if (positions->rank() != 3 || c.rank(2) != 2)
    c.refuse("position_ids must have three dimensions, and the caches two");
  const int64_t half = c.sizes().fix(c.dims(2)[1]);
  const double scale = c.number("scale", 1.0);
  KnownValue columns{DType::Int64, {half}, {}};
  const std::vector<int64_t> streams = streams_of_columns(c, half);
  for (size_t i = 0; i < streams.size(); ++i)
    columns.elements.emplace_back(streams[i] * half + static_cast<int64_t>(i));
  const auto rows = [&](size_t cache) {
    Values each;
    for (int64_t stream = 0; stream < 3; ++stream) {
      Value* at = c.reshape(c.slice(positions, 0, stream, stream + 1),
                            {positions->dims[1], positions->dims[2]});
      each.push_back(c.emit("Gather", {c.in(cache), at}, {{"axis", 0}}));
    }
    Value* all = c.emit("Gather", {c.concat(each, 2), c.constant(columns)}, {{"axis", 2}});
    return scale == 1 ? all : c.emit("Mul", {all, number(c, scale, all)});
  };
  OnnxAttrs attrs = pick_attrs(c, {"interleaved", "rotary_embedding_dim"});
  if (c.rank(0) == 3) {
    const int64_t heads = c.integer("num_heads", 0);
    if (heads <= 0) c.refuse("num_heads must be given for an input of three dimensions");
    attrs.emplace_back("num_heads", heads);
  }
  return call_nested(c, "RotaryEmbedding", {c.in(0), rows(2), rows(3)}, std::move(attrs));
}

Value* top_places(OnnxCall& c, Value* x, int64_t k) {
  return c
      .emit_all("TopK", {x},
                {{"k", DimExpr(k)}, {"axis", 1}, {"largest", 1}, {"sorted", 1}, {"stable", 1}})
      .at(1);
}

// x [rows, columns], with `value` at its places [rows, count].
Value* with_value_at(OnnxCall& c, Value* x, Value* places, Value* values) {
  return c.emit("ScatterElements", {x, places, values}, {{"axis", 1}, {"reduction", "none"}});
}

// Scores of which only those of the best groups are left, the others lowest.
Value* of_best_groups(OnnxCall& c, Value* scores, int64_t experts) {
  const int64_t groups = c.integer("n_group", 1), active = c.integer("topk_group", 1);
  if (groups < 1 || experts % groups != 0 || active < 1 || active > groups)
    c.refuse(str("n_group must divide ", experts, " experts, and topk_group be at most ", groups));
  if (active == groups) return scores;
  const DimExpr tokens = scores->dims[0];
  const int64_t size = experts / groups, summed = std::min(c.integer("group_topk", 2), size);
  Value* each = c.reshape(scores, {tokens * DimExpr(groups), size});
  Value* best = c.emit("GatherElements", {each, top_places(c, each, summed)}, {{"axis", 1}});
  Value* sums = c.reshape(c.reduce("ReduceSum", best, {1}, false), {tokens, groups});
  Value* chosen = top_places(c, sums, active);
  const double lowest = -std::numeric_limits<double>::infinity();
  Value* penalty = with_value_at(c, c.full(lowest, sums->dims, DType::Float32), chosen,
                                 c.full(0.0, {tokens, active}, DType::Float32));
  penalty = c.reshape(penalty, {tokens, groups, 1});
  Value* left = c.pointwise("Add", {c.reshape(scores, {tokens, groups, size}), penalty});
  return c.reshape(left, {tokens, experts});
}

// logits, expert_bias: for each token the logarithms of its experts' shares, a number elsewhere.
Values import_moe_group_router(OnnxCall& c) {
  if (c.has(2)) c.unsupported("projection_weight has no rule");
  const DType dtype = c.dtype(0);
  Value* x = c.cast(c.in(0), DType::Float32);
  if (x->rank() == 0) c.refuse("logits must have a dimension of experts");
  const int64_t experts = c.sizes().fix(x->dims.back()), k = c.integer("top_k");
  x = c.reshape(x, {product({x->dims.begin(), x->dims.end() - 1}), experts});
  Value* shares = c.emit("Sigmoid", {x});
  Value* scores = c.pointwise("Add", {shares, c.cast(c.in(1), DType::Float32)});
  if (c.wants_output(1) || c.wants_output(2)) {
    if (c.wants_output(0)) c.refuse("router_probs must be absent beside selection_scores");
    return {nullptr, scores, shares};
  }
  if (k < 1 || k > experts) c.refuse(str("top_k must be from 1 to ", experts, ", but found ", k));
  Value* chosen = top_places(c, of_best_groups(c, scores, experts), k);
  Value* kept = c.emit("GatherElements", {shares, chosen}, {{"axis", 1}});
  kept = c.emit("Log", {c.emit("Max", {kept, number(c, 1e-20, kept)})});
  Value* others = c.full(c.number("router_sentinel", -1e4), x->dims, DType::Float32);
  return {c.cast(with_value_at(c, others, chosen, kept), dtype)};
}

REGISTER_ONNX({{"MRotaryEmbedding", 1, import_m_rotary_embedding, nullptr, "com.microsoft"},
               {"MoEGroupRouter", 1, import_moe_group_router, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
