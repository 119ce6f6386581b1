// No kernel on the host computes in float16: each widens its operands and rounds its results, and
// convolutions in float16 have none of the layouts of those in float32. So a network in float16 is
// computed in float32, as onnxruntime does; sums beyond float16's range stay finite then. Weights
// stay in 16 bits where the kernels that read them widen them (fuse_small_weights,
// pack_conv_weights).
#include "optimizer/layout/widen_halves.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ops/emit.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

bool is_product(const Node& node) {
  static const std::unordered_set<std::string_view> kProducts = {
      "Conv", "ConvTranspose", "MatMul", "FusedMatMul", "Gemm", "ScaledDotProductAttention"};
  return kProducts.contains(node.op);
}

// Products, and sums of what was computed: the squares of a variance may round to nothing.
bool needs_more_bits(const Node& node) {
  const Value* x = node.inputs().empty() ? nullptr : node.input(0);
  if (!x || x->dtype != DType::Float16) return false;
  const Node* made = x->producer();
  return is_product(node) || (op_def(node.op).kind == OpKind::Reduction && made &&
                              op_def(made->op).kind == OpKind::Pointwise);
}

class HalfWidener {
 public:
  explicit HalfWidener(Graph& graph) : graph_(graph) {}

  void run() {
    for (Node* node : graph_.node_pointers()) {
      if (is_wide_alike(*node))
        widen(*node);
      else
        give_halves(*node);
    }
    const Graph::Inserting here(graph_, nullptr);
    for (size_t i = 0; i < graph_.outputs().size(); ++i)
      if (Value* value = graph_.outputs()[i].value; widened_.contains(value))
        graph_.replace_output(i, cast(value, DType::Float16));
  }

 private:
  /// Whether the node is the same in float32: nothing but the types of its operands says what the
  /// types of its results are.
  static bool is_wide_alike(const Node& node) {
    static const std::unordered_set<std::string_view> kOthers = {"Cast", "NarrowCast", "BitCast"};
    const OpDef& def = op_def(node.op);
    if (is_impure(node) || def.random || kOthers.contains(node.op)) return false;
    if (def.kind == OpKind::Opaque || (def.kind == OpKind::MatMul && !is_product(node)))
      return false;
    const auto& attrs = node.attrs.entries();
    return std::none_of(attrs.begin(), attrs.end(), [](const auto& attr) {
      return std::holds_alternative<DType>(attr.second);
    });
  }

  void widen(Node& node) {
    const Graph::Inserting here(graph_, &node);
    for (size_t i = 0; i < node.inputs().size(); ++i)
      if (Value* x = node.input(i); x && x->dtype == DType::Float16)
        graph_.set_input(&node, i, cast(x, DType::Float32));
    for (Value* y : node.outputs())
      if (y->dtype == DType::Float16) {
        y->dtype = DType::Float32;
        widened_.insert(y);
      }
  }

  void give_halves(Node& node) {
    const Graph::Inserting here(graph_, &node);
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      Value* x = node.input(i);
      if (!x || !widened_.contains(x)) continue;
      // A Cast reads what was not rounded, as onnxruntime's does.
      if (node.op != "Cast") graph_.set_input(&node, i, cast(x, DType::Float16));
    }
  }

  /// Before the first node that asks for it.
  Value* cast(Value* x, DType dtype) {
    if (x->is_literal()) return emit_cast(graph_, x, dtype);
    Value*& there = cast_[x];
    if (!there) there = emit(graph_, "Cast", {x}, {{"to", dtype}});
    return there;
  }

  Graph& graph_;
  std::unordered_set<const Value*> widened_;
  std::unordered_map<const Value*, Value*> cast_;
};

}  // namespace

bool widen_halves(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  const auto& nodes = graph.nodes();
  const bool needs = std::ranges::any_of(nodes, [](const auto& n) { return needs_more_bits(*n); });
  if (!needs || !context.take()) return false;
  HalfWidener(graph).run();
  return true;
}

}  // namespace ortmodule
