// Fuses what follows a convolution, a sum with a tensor of its size (a residual) and an activation,
// into FusedConv, and zeros around its operand into its padding: the kernel applies them to each
// block of the result while it is in the cache. The op is in ops/fused_conv.cpp. Written as code,
// since the steps may come in any number. Only for inference by kernels of our own; libraries have
// no such epilogue.

#include <algorithm>
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
      if (Node* padded = take_padding(*node)) {
        node = padded;
        changed = true;
      }
      while (Node* fused = fuse_reader(*node)) {
        node = fused;
        changed = true;
      }
    }
    return changed;
  }

 private:
  /// Zeros around the operand become padding of the convolution; returns the new node, or null.
  Node* take_padding(Node& node) {
    Value* x = node.input(0);
    const Node* pad = x->producer();
    if (!pad || pad->op != "Pad" || x->uses().size() != 1 || x->is_graph_output()) return nullptr;
    const Dims& around = pad->attrs.dims("pads");
    const bool zeros =
        pad->attrs.number("value") == 0 && pad->attrs.string("mode", "constant") == "constant";
    const auto is_padding = [](const DimExpr& pad) {
      return pad.is_constant() && pad.value() >= 0;
    };
    const size_t rank = x->rank();
    bool spatial = zeros && std::all_of(around.begin(), around.end(), is_padding);
    for (size_t d : {size_t{0}, size_t{1}})
      spatial = spatial && around[d] == DimExpr(0) && around[rank + d] == DimExpr(0);
    if (!spatial) {
      context_.reject("Pad", "the padding is not zeros around each channel", node, true);
      return nullptr;
    }
    if (!context_.take()) return nullptr;
    Dims pads = node.attrs.dims("pads");
    for (size_t d = 0; d + 2 < rank; ++d) {
      pads[d] = pads[d] + around[d + 2];
      pads[rank - 2 + d] = pads[rank - 2 + d] + around[rank + d + 2];
    }
    Values operands = node.inputs();
    operands[0] = pad->input(0);
    Attrs attrs = node.attrs;
    attrs.set("pads", pads);
    Graph::Inserting here(graph_, &node);
    graph_.current_tag = node.tag;
    Node* padded = emit_node(graph_, node.op, std::move(operands), std::move(attrs));
    graph_.current_tag.clear();
    place_[padded] = place_.at(&node);
    supersede(graph_, node.output(), padded->output());
    return padded;
  }

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
