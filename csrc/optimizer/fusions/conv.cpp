// Fuses what follows a convolution, a sum with a tensor of its size (a residual) and an activation,
// into FusedConv: the kernel applies them to each block of the result while it is in the cache. The
// op is in ops/fused_conv.cpp. Written as code, since the steps may come in any number. Only for
// inference by kernels of our own; libraries have no such epilogue.

#include <limits>
#include <unordered_map>

#include "ops/emit.h"
#include "ops/op_def.h"
#include "optimizer/edit.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

constexpr std::string_view kRule = "FusedConv";

/// An activation as attributes of FusedConv; nullopt for other nodes.
std::optional<Attrs> activation_of(const Node& node) {
  Attrs attrs{{"activation", node.op}};
  if (node.op == "Relu" || node.op == "Sigmoid" || node.op == "Tanh" || node.op == "Silu" ||
      node.op == "HardSigmoid" || node.op == "HardSwish" || node.op == "Mish")
    return attrs;
  if (node.op == "LeakyRelu" || node.op == "Elu") {
    attrs.set("alpha", node.attrs.number("alpha"));
    return attrs;
  }
  if (node.op != "Clip") return {};
  const double infinity = std::numeric_limits<double>::infinity();
  attrs.set("alpha", node.attrs.number("min", -infinity));
  attrs.set("beta", node.attrs.number("max", infinity));
  return attrs;
}

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context) : graph_(graph), context_(context) {
    int place = 0;
    for (const auto& node : graph.nodes()) place_[node.get()] = place++;
  }

  bool run() {
    std::vector<Node*> convolutions;  // a list of all nodes would hold erased ones
    for (const auto& node : graph_.nodes())
      if (node->op == "Conv" || node->op == "FusedConv") convolutions.push_back(node.get());
    bool changed = false;
    for (Node* node : convolutions) {
      while (Node* fused = fuse_reader(*node)) {
        node = fused;
        changed = true;
      }
    }
    return changed;
  }

 private:
  /// Fuses the only reader of the result; returns the new node, or null.
  Node* fuse_reader(Node& node) {
    const Value& y = *node.output();
    if (y.uses().size() != 1 || y.is_graph_output()) return nullptr;
    if (node.op == "FusedConv" && !node.attrs.string("activation").empty()) return nullptr;
    Node& reader = *y.uses()[0].node;
    if (reader.op == "Add") return fuse_sum(node, reader);
    const std::optional<Attrs> activation = activation_of(reader);
    if (!activation || !context_.take()) return nullptr;
    Attrs attrs = node.attrs;
    for (const auto& [name, value] : activation->entries()) attrs.set(name, value);
    return replace(reader, node.inputs(), std::move(attrs));
  }

  Node* fuse_sum(Node& node, Node& sum) {
    const Value& y = *node.output();
    Value* z = sum.input(0) == &y ? sum.input(1) : sum.input(0);
    if (const Reason reason = cannot_add(node, sum, *z)) {
      context_.reject(kRule, *reason, node, true);
      return nullptr;
    }
    if (!context_.take()) return nullptr;
    Values operands = node.inputs();
    operands.resize(3);
    operands.push_back(z);
    return replace(sum, std::move(operands), node.attrs);
  }

  Reason cannot_add(const Node& node, const Node& sum, const Value& z) const {
    const Value& y = *node.output();
    if (node.input(3)) return "it adds a tensor already";
    if (&z == &y) return "the result is added to itself";
    if (z.is_literal() || z.dtype != y.dtype || z.dims != y.dims || sum.output()->dims != y.dims)
      return str(z.name, " has not the size of the result");
    // Else the operands of the convolution would be held until z is computed.
    const auto producer = place_.find(z.producer());
    if (producer != place_.end() && producer->second > place_.at(&node))
      return str(z.name, " is computed after the convolution");
    return {};
  }

  Node* replace(Node& reader, Values operands, Attrs attrs) {
    Graph::Inserting here(graph_, &reader);
    graph_.current_tag = reader.tag;
    Node* fused = emit_node(graph_, "FusedConv", std::move(operands), std::move(attrs));
    graph_.current_tag.clear();
    place_[fused] = place_.at(&reader);
    supersede(graph_, reader.output(), fused->output());
    return fused;
  }

  Graph& graph_;
  PassContext& context_;
  std::unordered_map<const Node*, int> place_;  // in program order
};

bool fuse_conv(Graph& graph, PassContext& context) {
  if (context.device() != Device::Host || context.training()) return false;
  return Fuser(graph, context).run();
}

}  // namespace

REGISTER_FUSION(fuse_conv, fuse_conv);

}  // namespace ortmodule
