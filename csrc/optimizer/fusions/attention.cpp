// Finds attention that a model writes as products and a softmax: softmax(scale q k' + mask) v. The
// op goes over the L x S matrix in pieces that stay in the cache and never holds it as a whole. It
// is in ops/scaled_dot_product_attention.cpp. For inference; training has fuse_trained_attention.

#include <cmath>
#include <limits>
#include <map>

#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"
#include "optimizer/spelled_attention.h"

namespace ortmodule {
namespace {

class Finder {
 public:
  explicit Finder(Graph& graph) : graph_(graph) {}

  static Reason cannot_fuse(const SpelledAttention& parts) {
    const DType dtype = parts.q->dtype;
    if (dtype != DType::Float32 && dtype != DType::Float64)
      return str(name_of(dtype), " rounds between the parts");
    if (parts.mask && parts.mask->dtype != dtype) return "the mask has another type";
    return cannot_be_one_op(parts);
  }

  Value* fused(const SpelledAttention& parts) {
    Value* k = attention_keys(graph_, parts);
    Value* mask = parts.seen ? mask_of(parts) : parts.mask;
    Attrs attrs{{"scale", parts.scale}, {"is_causal", int64_t{0}}, {"ratio", 0.0}};
    if (parts.softcap > 0) attrs.set("softcap", parts.softcap);
    if (mask && !parts.guarded) attrs.set("nan_if_blind", int64_t{1});
    return emit(graph_, "ScaledDotProductAttention", {parts.q, k, parts.v, mask}, std::move(attrs));
  }

 private:
  /// The condition as a mask; equal ones of several layers are one.
  Value* mask_of(const SpelledAttention& parts) {
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
  std::map<std::tuple<const Value*, double, bool>, Value*> masks_;
};

bool fuse_attention(Graph& graph, PassContext& context) {
  if (context.device() == Device::CUDA || context.training()) return false;
  Finder finder(graph);
  return fuse_spelled_attention(
      graph, context,
      {[](const Node&, const SpelledAttention& parts) { return Finder::cannot_fuse(parts); },
       [&](const SpelledAttention& parts) { return finder.fused(parts); }});
}

}  // namespace

REGISTER_FUSION(fuse_attention, fuse_attention);

}  // namespace ortmodule
