// Attention that a model in training writes as products and a softmax becomes one op, which keeps
// nothing of the size of the scores for backward: our own on the CPU, and torch's fused operator on
// CUDA with its own backward (Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory", 2021).
// Casts and a dropout may stand between the parts. Only where the options ask for it.

#include <cmath>
#include <map>
#include <set>

#include "base/dtype.h"
#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"
#include "optimizer/spelled_attention.h"

namespace ortmodule {
namespace {

/// The largest number of a float type.
double largest(DType dtype) {
  switch (dtype) {
    case DType::Float16: return 65504.0;
    case DType::BFloat16: return 3.3895313892515355e38;
    case DType::Float32: return 3.4028234663852886e38;
    default: return 1.7976931348623157e308;
  }
}

/// Whether a gradient of `value` may reach an input of the graph.
bool may_need_gradient(const Graph& graph, const Value* value) {
  std::vector<const Value*> open{value};
  std::set<const Value*> seen;
  while (!open.empty()) {
    const Value* next = open.back();
    open.pop_back();
    if (!next || !is_floating(next->dtype) || !seen.insert(next).second) continue;
    if (next->is_input() && graph.inputs()[static_cast<size_t>(next->input_index())].requires_grad)
      return true;
    const Node* node = next->producer();
    if (node && node->op != "Detach")
      open.insert(open.end(), node->inputs().begin(), node->inputs().end());
  }
  return false;
}

/// A call of torch's dispatcher with tensors and other arguments.
class TorchCallNode {
 public:
  explicit TorchCallNode(std::string_view target) { attrs_.set("operator", std::string(target)); }

  void tensor(const std::string& name, Value* value) {
    if (!value) return set(name, std::string("none"));
    set(name, str("tensor:", operands_.size()));
    operands_.push_back(value);
  }
  void set(const std::string& name, Attr value) { attrs_.set("arg_" + name, std::move(value)); }
  void flag(const std::string& name, bool value) {
    set(name, std::string(value ? "true" : "false"));
  }
  void draws() { attrs_.set("random", DimExpr(1)); }

  /// Adds the node, whose results have the types and sizes of `results`.
  Node* add(Graph& graph, const std::vector<std::pair<DType, Dims>>& results) && {
    Node* node = graph.add_node("ATen", operands_, results.size(), std::move(attrs_));
    for (size_t i = 0; i < results.size(); ++i) {
      node->output(i)->dtype = results[i].first;
      node->output(i)->dims = results[i].second;
    }
    return node;
  }

 private:
  Values operands_;
  Attrs attrs_;
};

/// Operands of attention of four dimensions, [batch, heads, rows, width].
struct Operands {
  Value *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  double scale = 1, ratio = 0;
  bool on_cuda = true;

  const char* mask_name() const { return on_cuda ? "attn_bias" : "attn_mask"; }
};

/// torch's forward. On CUDA the results are y, the logarithms of the rows' sums, and the state of
/// the generator; on the CPU the first two.
Node* call_forward(Graph& graph, const Operands& x) {
  TorchCallNode call(x.on_cuda ? "aten._scaled_dot_product_efficient_attention.default"
                               : "aten._scaled_dot_product_flash_attention_for_cpu.default");
  call.tensor("query", x.q);
  call.tensor("key", x.k);
  call.tensor("value", x.v);
  call.tensor(x.mask_name(), x.mask);
  if (x.on_cuda) call.flag("compute_log_sumexp", true);
  call.set("dropout_p", x.ratio);
  call.flag("is_causal", false);
  call.set("scale", x.scale);
  call.draws();
  Dims y = x.q->dims;
  y[3] = x.v->dims[3];
  const DimExpr& rows = x.q->dims[2];
  if (!x.on_cuda)
    return std::move(call).add(
        graph, {{x.q->dtype, y}, {DType::Float32, {x.q->dims[0], x.q->dims[1], rows}}});
  // The kernel pads rows to 32.
  const DimExpr padded = DimExpr::floor_div(rows + 31, 32) * 32;
  return std::move(call).add(graph, {{x.q->dtype, y},
                                     {DType::Float32, {x.q->dims[0], x.q->dims[1], padded}},
                                     {DType::Int64, {}},
                                     {DType::Int64, {}}});
}

/// torch's backward of `forward` as a graph: from the gradient of y, then the values that
/// backward_operands() lists, to those of q, k and v.
std::shared_ptr<const Graph> backward_graph(const Operands& x, const Values& saved) {
  auto body = std::make_shared<Graph>();
  const Value& y = *saved[3];
  Value* dy = body->add_input("dy", y.dtype, y.dims, InputKind::GradOutput, false, 0);
  Values in;
  for (const Value* value : saved)
    in.push_back(body->add_input(value->name, value->dtype, value->dims, InputKind::User));
  TorchCallNode call(x.on_cuda
                         ? "aten._scaled_dot_product_efficient_attention_backward.default"
                         : "aten._scaled_dot_product_flash_attention_for_cpu_backward.default");
  call.tensor(x.on_cuda ? "grad_out_" : "grad_out", dy);
  const char* names[] = {"query", "key", "value", "out", "logsumexp"};
  for (size_t i = 0; i < std::size(names); ++i) call.tensor(names[i], in[i]);
  size_t next = std::size(names);
  if (x.on_cuda) {
    call.tensor("philox_seed", in[next++]);
    call.tensor("philox_offset", in[next++]);
    call.set("grad_input_mask", std::string("flags:1110"));
  }
  call.tensor(x.mask_name(), x.mask ? in[next] : nullptr);
  call.set("dropout_p", x.ratio);
  call.flag("is_causal", false);
  call.set("scale", x.scale);
  std::vector<std::pair<DType, Dims>> results;
  for (const Value* operand : {x.q, x.k, x.v}) results.emplace_back(operand->dtype, operand->dims);
  if (x.on_cuda) results.emplace_back(DType::Undefined, Dims{});
  Node* node = std::move(call).add(*body, results);
  for (size_t i = 0; i < 3; ++i)
    body->add_output(node->output(i), OutputKind::Output, static_cast<int>(i));
  return body;
}

/// y of torch's operator, with its backward.
Value* torch_attention(Graph& graph, const Operands& x) {
  const Node* forward = call_forward(graph, x);
  Values saved{x.q, x.k, x.v};
  saved.insert(saved.end(), forward->outputs().begin(), forward->outputs().end());
  if (x.mask) saved.push_back(x.mask);
  Values operands{forward->output(), x.q, x.k, x.v};
  operands.insert(operands.end(), saved.begin(), saved.end());
  Attrs attrs{{"outputs", DimExpr(1)}, {"inputs", DimExpr(3)}, {"traced", DimExpr(1)}};
  attrs.set("body", backward_graph(x, saved));
  return emit_node(graph, "CustomGradient", operands, std::move(attrs), 1)->output();
}

class TrainedFuser {
 public:
  TrainedFuser(Graph& graph, TrainedAttention form) : graph_(graph), form_(form) {}

  Reason cannot_fuse(const Node& product, const SpelledAttention& parts) const {
    if (parts.guarded) return "rows without keys are replaced";
    if (parts.dropout && !parts.dropout->attrs.has("rng")) return "its dropout has no stream";
    if (product.output()->dtype != parts.q->dtype) return "the result has another type";
    if (may_need_gradient(graph_, parts.mask)) return "the mask needs a gradient";
    if (const Reason reason = cannot_be_one_op(parts)) return reason;
    if (form_ == TrainedAttention::Own) return {};
    if (parts.dropout && form_ == TrainedAttention::TorchOnCPU)
      return "torch's operator on the CPU has no dropout";
    if (parts.q->dtype == DType::Float64) return "torch's operator does not take float64";
    for (const Value* operand : {parts.q, parts.v}) {
      const DimExpr& width = operand->dims.back();
      if (!width.is_constant() || width.value() % 8 != 0)
        return str("the heads are ", width, " wide, not a multiple of 8");
    }
    return {};
  }

  Value* fused(const SpelledAttention& parts) {
    Value* k = attention_keys(graph_, parts);
    Value* mask = mask_of(parts);
    return form_ == TrainedAttention::Own ? own(parts, k, mask) : of_torch(parts, k, mask);
  }

 private:
  static double ratio_of(const SpelledAttention& parts) {
    return parts.dropout ? parts.dropout->attrs.number("ratio") : 0.0;
  }

  /// The op draws the dropout of the same stream, by the same places of the scores.
  Value* own(const SpelledAttention& parts, Value* k, Value* mask) {
    Attrs attrs{{"scale", parts.scale}, {"is_causal", int64_t{0}}, {"ratio", ratio_of(parts)}};
    if (parts.dropout) attrs.set("rng", parts.dropout->attrs.integer("rng"));
    return emit(graph_, "ScaledDotProductAttention", {parts.q, k, parts.v, mask}, std::move(attrs));
  }

  Value* of_torch(const SpelledAttention& parts, Value* k, Value* mask) {
    const bool flat = parts.q->rank() == 3;
    const Attrs first{{"axes", Dims{0}}};
    const auto raised = [&](Value* x) { return flat ? emit(graph_, "Unsqueeze", {x}, first) : x; };
    Operands x{raised(parts.q), raised(k), raised(parts.v)};
    x.scale = parts.scale;
    x.ratio = ratio_of(parts);
    x.on_cuda = form_ == TrainedAttention::TorchCUDA;
    if (mask) x.mask = aligned(mask, x);
    Value* y = torch_attention(graph_, x);
    return flat ? emit(graph_, "Squeeze", {y}, first) : y;
  }

  /// The mask with the sizes of the scores, in memory whose rows begin at multiples of 16 numbers,
  /// as the kernel demands.
  Value* aligned(Value* mask, const Operands& x) {
    Value*& known = aligned_[mask];
    const DimExpr& keys = x.k->dims[2];
    if (!known) {
      Dims shape(4, DimExpr(1));
      std::copy_backward(mask->dims.begin(), mask->dims.end(), shape.end());
      Value* whole = mask->rank() == 4 ? mask : emit(graph_, "Reshape", {mask}, {{"shape", shape}});
      shape[3] = keys;
      if (whole->dims[3] != keys) whole = emit(graph_, "Expand", {whole}, {{"shape", shape}});
      Dims pads(8, DimExpr(0));
      pads[7] = DimExpr::floor_div(keys + 15, 16) * 16 - keys;
      if (pads[7] != DimExpr(0)) {
        whole = emit(graph_, "Pad", {whole}, {{"pads", pads}, {"value", 0.0}});
        whole = emit(graph_, "Slice", {whole}, {{"axis", 3}, {"start", DimExpr(0)}, {"end", keys}});
      }
      known = whole;
    }
    const Dims scores{x.q->dims[0], x.q->dims[1], x.q->dims[2], keys};
    return known->dims == scores ? known : emit(graph_, "Expand", {known}, {{"shape", scores}});
  }

  /// The mask that is added to the scores, in the type of the operands; equal ones of several
  /// layers are one. No number is below least(): minus infinity would give NaN in rows that hide
  /// all keys.
  Value* mask_of(const SpelledAttention& parts) {
    const DType dtype = parts.q->dtype;
    if (!parts.seen && !parts.mask) return nullptr;
    Value*& mask =
        masks_[{parts.seen ? parts.seen : parts.mask, parts.hidden, parts.inverted, dtype}];
    if (mask) return mask;
    if (!parts.seen) return mask = added(parts.mask, dtype);
    Value *zero = graph_.literal(0.0, dtype),
          *hidden = graph_.literal(std::max(parts.hidden, least(dtype)), dtype);
    return mask =
               emit(graph_, "Where",
                    {parts.seen, parts.inverted ? hidden : zero, parts.inverted ? zero : hidden});
  }

  Value* added(Value* mask, DType dtype) {
    if (form_ == TrainedAttention::Own && mask->dtype == dtype) return mask;
    Value* bound = graph_.literal(least(dtype), mask->dtype);
    return emit_cast(graph_, emit(graph_, "Max", {mask, bound}), dtype);
  }

  /// torch's operators keep log(sum(exp(score))) of a row for backward, from which a number as
  /// large as the type's largest takes all digits of the sum. exp(-10000) is 0, too.
  double least(DType dtype) const {
    return form_ == TrainedAttention::Own ? -largest(dtype) : -10000.0;
  }

  Graph& graph_;
  TrainedAttention form_;
  std::map<std::tuple<const Value*, double, bool, DType>, Value*> masks_;
  std::map<const Value*, Value*> aligned_;
};

bool fuse_trained_attention(Graph& graph, PassContext& context) {
  if (!context.training() || context.attention() == TrainedAttention::Spelled) return false;
  TrainedFuser fuser(graph, context.attention());
  return fuse_spelled_attention(
      graph, context,
      {[&](const Node& product, const SpelledAttention& parts) {
         return fuser.cannot_fuse(product, parts);
       },
       [&](const SpelledAttention& parts) { return fuser.fused(parts); }});
}

}  // namespace

REGISTER_FUSION(fuse_trained_attention, fuse_trained_attention);

}  // namespace ortmodule
