#include "optimizer/spelled_attention.h"

#include <cmath>
#include <numeric>

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

/// A score that is replaced by less than this has no weight beside any other.
constexpr double kNegligible = -1e30;

bool is_read_once(const Value& value) {
  return value.uses().size() == 1 && !value.is_graph_output();
}

bool is_last_axis(int64_t axis, const Value& value) {
  return axis == -1 || axis + 1 == static_cast<int64_t>(value.rank());
}

const Node* producer_of(const Value* value, std::string_view op) {
  const Node* node = value ? value->producer() : nullptr;
  return node && node->op == op ? node : nullptr;
}

std::optional<double> literal_of(const Value* value) {
  if (!value) return {};
  const std::optional<Scalar> scalar = uniform_value(*value);
  return scalar ? number_of(*scalar) : std::nullopt;
}

/// Reads the parts from the last product to the first.
class Reader {
 public:
  explicit Reader(bool training) : training_(training) {}

  std::optional<SpelledAttention> read(const Node& product) {
    parts_.v = product.input(1);
    const Node* softmax = softmax_below(product.input(0));
    if (!softmax) return {};
    Value* scores = below_casts(softmax->input(0));
    if (!is_read_once(*scores)) return {};
    if (take_mask(&scores) && !is_read_once(*scores)) return {};
    if (blind_in_ && blind_in_ != parts_.mask) return {};
    scores = below_casts(scores);
    parts_.scale = take_scale(&scores, false);
    take_softcap(&scores);
    scores = below_casts(scores);
    const Node* inner = producer_of(scores, "MatMul");
    if (!inner || !is_read_once(*scores)) return {};
    parts_.q = inner->input(0);
    parts_.keys = inner->input(1);
    parts_.scale *= take_scale(&parts_.q, true);
    parts_.scale *= take_scale(&parts_.keys, true);
    return parts_;
  }

 private:
  Value* below_casts(Value* value) {
    for (const Node* cast = producer_of(value, "Cast"); training_ && cast;
         cast = producer_of(value, "Cast")) {
      if (!is_read_once(*value) || !is_floating(value->dtype) ||
          !is_floating(cast->input(0)->dtype))
        break;
      value = cast->input(0);
      parts_.casts = true;
    }
    return value;
  }

  /// Takes multiplications and divisions by numbers off `value`; returns their product.
  static double take_scale(Value** value, bool shared) {
    double scale = 1;
    for (;;) {
      const Node* node = (*value)->producer();
      if (!node || (node->op != "Mul" && node->op != "Div")) return scale;
      if (!shared && !is_read_once(**value)) return scale;
      for (size_t i = 0;; ++i) {
        if (i == 2) return scale;
        const std::optional<double> number = literal_of(node->input(i));
        Value* other = node->input(1 - i);
        if (!number || (node->op == "Div" && i == 0) || other->dims != (*value)->dims) continue;
        scale *= node->op == "Mul" ? *number : 1 / *number;
        *value = other;
        break;
      }
    }
  }

  /// Takes the cap of softcap tanh(scale q k' / softcap), whose factor `scale` holds, off the
  /// scores.
  void take_softcap(Value** scores) {
    const Node* tanh = producer_of(*scores, "Tanh");
    if (!tanh || training_ || !is_read_once(**scores)) return;
    Value* ratio = tanh->input(0);
    if (!is_read_once(*ratio)) return;
    parts_.softcap = parts_.scale;
    parts_.scale *= take_scale(&ratio, false);
    *scores = ratio;
  }

  /// Whether `condition` holds for rows without a key: their softmax is NaN, or their mask -inf.
  bool finds_blind_rows(const Value* condition, const Value* softmax) {
    if (const Node* is_nan = producer_of(condition, "IsNaN"))
      return is_nan->input(0) == softmax && softmax->uses().size() == 2;
    const Node* equal = producer_of(condition, "Equal");
    const Node* most = equal ? producer_of(equal->input(0), "ReduceMax") : nullptr;
    if (!most || literal_of(equal->input(1)) != -INFINITY || !is_read_once(*softmax)) return false;
    blind_in_ = most->input(0);
    const std::vector<int64_t> axes = most->attrs.integers("axes");
    return axes.size() == 1 && is_last_axis(axes[0], *blind_in_);
  }

  /// softmax, from Where (blind rows, 0, softmax) as well, below a dropout in training.
  const Node* softmax_below(Value* p) {
    p = below_casts(p);
    if (const Node* dropout = producer_of(p, "Dropout"); dropout && training_ && is_read_once(*p)) {
      parts_.dropout = dropout;
      p = below_casts(dropout->input(0));
    }
    if (const Node* where = producer_of(p, "Where")) {
      if (literal_of(where->input(1)) != 0.0 || !is_read_once(*p) ||
          !finds_blind_rows(where->input(0), where->input(2)))
        return nullptr;
      parts_.guarded = true;
      p = where->input(2);
    } else if (!is_read_once(*p)) {
      return nullptr;
    }
    const Node* softmax = producer_of(p, "Softmax");
    if (!softmax || p->is_graph_output()) return nullptr;
    return is_last_axis(softmax->attrs.integer("axis"), *p) ? softmax : nullptr;
  }

  /// Takes one mask off the scores; false if there is none.
  bool take_mask(Value** scores) {
    if (const Node* sum = producer_of(*scores, "Add")) {
      const size_t at = sum->input(0)->dims == (*scores)->dims && is_score(sum->input(0)) ? 0 : 1;
      if (sum->input(at)->dims != (*scores)->dims || sum->input(1 - at)->is_literal()) return false;
      parts_.mask = sum->input(1 - at);
      *scores = sum->input(at);
      return true;
    }
    const Node* where = producer_of(*scores, "Where");
    if (!where) return false;
    for (size_t i : {1, 2}) {
      const std::optional<double> number = literal_of(where->input(3 - i));
      if (!number || *number > kNegligible || where->input(i)->dims != (*scores)->dims) continue;
      parts_.seen = where->input(0);
      parts_.inverted = i == 2;
      parts_.hidden = *number;
      *scores = where->input(i);
      return true;
    }
    return false;
  }

  /// Whether a term of a sum can be the scores, and not their mask.
  bool is_score(const Value* term) const {
    const Node* cast = producer_of(term, "Cast");
    if (training_ && cast && is_floating(cast->input(0)->dtype)) return is_score(cast->input(0));
    return producer_of(term, "MatMul") || producer_of(term, "Mul") || producer_of(term, "Div");
  }

  bool training_;
  const Value* blind_in_ = nullptr;  // the mask that finds blind rows
  SpelledAttention parts_;
};

}  // namespace

std::optional<SpelledAttention> spelled_attention(const Node& product, bool training) {
  return Reader(training).read(product);
}

bool fuse_spelled_attention(Graph& graph, PassContext& context, const AttentionFusion& fusion) {
  std::vector<Node*> products;
  for (const auto& node : graph.nodes())
    if (node->op == "MatMul") products.push_back(node.get());
  bool changed = false;
  for (Node* product : products) {
    const std::optional<SpelledAttention> parts = spelled_attention(*product, context.training());
    if (!parts) continue;
    if (const Reason reason = fusion.cannot_fuse(*product, *parts)) {
      context.reject("ScaledDotProductAttention", *reason, *product, true);
      continue;
    }
    if (!context.take()) break;
    Graph::Inserting here(graph, product);
    graph.current_tag = product->tag;
    Value* y = fusion.fused(*parts);
    graph.current_tag.clear();
    supersede(graph, product->output(), y);
    changed = true;
  }
  return changed;
}

Reason cannot_be_one_op(const SpelledAttention& parts) {
  const Value &q = *parts.q, &k = *parts.keys, &v = *parts.v;
  const size_t rank = q.rank();
  if (rank < 3 || rank > 4) return str("the rank is ", rank, ", expected 3 or 4");
  if (k.dtype != q.dtype || v.dtype != q.dtype) return "operands have several types";
  const Dims batch(q.dims.begin(), q.dims.end() - 2);
  for (const Value* other : {&k, &v})
    if (other->rank() != rank || Dims(other->dims.begin(), other->dims.end() - 2) != batch)
      return "heads are broadcast";
  if (v.dims[rank - 2] != k.dims[rank - 1]) return "keys and values differ in number";
  if (!std::isfinite(parts.scale)) return "the scale is not finite";
  if (!std::isfinite(parts.softcap) || parts.softcap < 0)
    return str("the cap of the scores is ", parts.softcap, ", expected a positive number");
  const Value* mask = parts.seen ? parts.seen : parts.mask;
  if (!mask) return {};
  Dims scores = q.dims;
  scores[rank - 1] = k.dims[rank - 1];
  const std::optional<Dims> both = try_broadcast(mask->dims, scores);
  if (!both || *both != scores) return "the mask is larger than the scores";
  return {};
}

Value* attention_keys(Graph& graph, const SpelledAttention& parts) {
  const size_t rank = parts.keys->rank();
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[rank - 1], order[rank - 2]);
  return emit(graph, "Transpose", {parts.keys}, {{"perm", Dims(order.begin(), order.end())}});
}

}  // namespace ortmodule
