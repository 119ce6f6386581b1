// Finds attention that a model writes as products and a softmax: softmax(scale q k' + mask) v. The
// op goes over the L x S matrix in pieces that stay in the cache and never holds it as a whole. It
// is in ops/scaled_dot_product_attention.cpp. For inference on the host: in training the parts keep
// clusters of their own. Written as code, since scale, transposes and masks stand in any order.

#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "ops/emit.h"
#include "ops/infer_rules.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "ScaledDotProductAttention";
/// A score that is replaced by less than this has no weight beside any other.
constexpr double kNegligible = -1e30;

struct Parts {
  Value* q = nullptr;
  Value* keys = nullptr;  // transposed: [.., E, S]
  Value* v = nullptr;
  double scale = 1;
  Value* mask = nullptr;
  Value* seen = nullptr;  // a condition instead of a mask
  double hidden = 0;      // what replaces a score where `seen` is false
  bool inverted = false;  // where it is true
  bool guarded = false;   // NaN of rows without a key are replaced by zeros
};

bool is_read_once(const Value& value) {
  return value.uses().size() == 1 && !value.is_graph_output();
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

/// Takes multiplications and divisions by numbers off `value`; returns their product.
double take_scale(Value** value, bool shared) {
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

/// softmax, from Where (IsNaN (softmax), 0, softmax) as well.
const Node* softmax_below(Value* p, Parts& parts) {
  if (const Node* where = producer_of(p, "Where")) {
    const Node* is_nan = producer_of(where->input(0), "IsNaN");
    const bool guards = is_nan && is_nan->input(0) == where->input(2) &&
                        literal_of(where->input(1)) == 0.0 && is_read_once(*p);
    if (!guards || where->input(2)->uses().size() != 2) return nullptr;
    parts.guarded = true;
    p = where->input(2);
  } else if (!is_read_once(*p)) {
    return nullptr;
  }
  const Node* softmax = producer_of(p, "Softmax");
  if (!softmax || p->is_graph_output()) return nullptr;
  const int64_t axis = softmax->attrs.integer("axis");
  return axis == -1 || axis + 1 == static_cast<int64_t>(p->rank()) ? softmax : nullptr;
}

/// Takes one mask off the scores; false if there is none.
bool take_mask(Value** scores, Parts& parts) {
  if (const Node* sum = producer_of(*scores, "Add")) {
    const size_t at =
        sum->input(0)->dims == (*scores)->dims &&
                (producer_of(sum->input(0), "MatMul") || producer_of(sum->input(0), "Mul") ||
                 producer_of(sum->input(0), "Div"))
            ? 0
            : 1;
    if (sum->input(at)->dims != (*scores)->dims || sum->input(1 - at)->is_literal()) return false;
    parts.mask = sum->input(1 - at);
    *scores = sum->input(at);
    return true;
  }
  const Node* where = producer_of(*scores, "Where");
  if (!where) return false;
  for (size_t i : {1, 2}) {
    const std::optional<double> number = literal_of(where->input(3 - i));
    if (!number || *number > kNegligible || where->input(i)->dims != (*scores)->dims) continue;
    parts.seen = where->input(0);
    parts.inverted = i == 2;
    parts.hidden = *number;
    *scores = where->input(i);
    return true;
  }
  return false;
}

class Finder {
 public:
  Finder(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool run() {
    std::vector<Node*> products;
    for (const auto& node : graph_.nodes())
      if (node->op == "MatMul") products.push_back(node.get());
    bool changed = false;
    for (Node* node : products) {
      std::optional<Parts> parts = find(*node);
      if (!parts) continue;
      if (const Reason reason = cannot_fuse(*parts)) {
        context_.reject(kRule, *reason, *node, true);
        continue;
      }
      if (!context_.take()) break;
      fuse(*node, *parts);
      changed = true;
    }
    return changed;
  }

 private:
  static std::optional<Parts> find(const Node& product) {
    Parts parts;
    parts.v = product.input(1);
    const Node* softmax = softmax_below(product.input(0), parts);
    if (!softmax) return {};
    Value* scores = softmax->input(0);
    if (!is_read_once(*scores)) return {};
    if (take_mask(&scores, parts) && !is_read_once(*scores)) return {};
    parts.scale = take_scale(&scores, false);
    const Node* inner = producer_of(scores, "MatMul");
    if (!inner || !is_read_once(*scores)) return {};
    parts.q = inner->input(0);
    parts.keys = inner->input(1);
    parts.scale *= take_scale(&parts.q, true);
    parts.scale *= take_scale(&parts.keys, true);
    return parts;
  }

  Reason cannot_fuse(const Parts& parts) const {
    const Value &q = *parts.q, &k = *parts.keys, &v = *parts.v;
    const size_t rank = q.rank();
    if (rank < 3 || rank > 4) return str("the rank is ", rank, ", expected 3 or 4");
    if (q.dtype != DType::Float32 && q.dtype != DType::Float64)
      return str(name_of(q.dtype), " rounds between the parts");
    const Dims batch(q.dims.begin(), q.dims.end() - 2);
    for (const Value* other : {&k, &v})
      if (other->rank() != rank || Dims(other->dims.begin(), other->dims.end() - 2) != batch)
        return "heads are broadcast";
    if (v.dims[rank - 2] != k.dims[rank - 1]) return "keys and values differ in number";
    if (!std::isfinite(parts.scale)) return "the scale is not finite";
    const Value* mask = parts.seen ? parts.seen : parts.mask;
    if (!mask) return {};
    Dims scores = q.dims;
    scores[rank - 1] = k.dims[rank - 1];
    const std::optional<Dims> both = try_broadcast(mask->dims, scores);
    if (!both || *both != scores) return "the mask is larger than the scores";
    if (parts.mask && parts.mask->dtype != q.dtype) return "the mask has another type";
    return {};
  }

  void fuse(Node& product, const Parts& parts) {
    Graph::Inserting here(graph_, &product);
    graph_.current_tag = product.tag;
    const size_t rank = parts.q->rank();
    std::vector<int64_t> order(rank);
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[rank - 1], order[rank - 2]);
    Value* k =
        emit(graph_, "Transpose", {parts.keys}, {{"perm", Dims(order.begin(), order.end())}});
    Value* mask = parts.seen ? mask_of(parts) : parts.mask;
    Attrs attrs{{"scale", parts.scale}, {"is_causal", int64_t{0}}, {"ratio", 0.0}};
    if (mask && !parts.guarded) attrs.set("nan_if_blind", int64_t{1});
    Node* fused = emit_node(graph_, kRule, {parts.q, k, parts.v, mask}, std::move(attrs));
    graph_.current_tag.clear();
    supersede(graph_, product.output(), fused->output());
  }

  /// The condition as a mask; equal ones of several layers are one.
  Value* mask_of(const Parts& parts) {
    const bool infinite = std::isinf(parts.hidden);
    Value* seen = parts.seen;
    const DType dtype = parts.q->dtype;
    if (infinite && !parts.inverted) return seen;
    Value*& mask = masks_[{seen, parts.hidden, parts.inverted}];
    if (mask) return mask;
    if (infinite) return mask = emit(graph_, "Not", {seen});
    Value* zero = graph_.literal(0.0, dtype);
    Value* hidden = graph_.literal(parts.hidden, dtype);
    return mask = emit(graph_, "Where",
                       {seen, parts.inverted ? hidden : zero, parts.inverted ? zero : hidden});
  }

  Graph& graph_;
  PassContext& context_;
  std::map<std::tuple<const Value*, double, bool>, Value*> masks_;
};

bool fuse_attention(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  return Finder(graph, context).run();
}

}  // namespace

REGISTER_FUSION(fuse_attention, fuse_attention);

}  // namespace ortmodule
