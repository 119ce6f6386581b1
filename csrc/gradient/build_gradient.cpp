#include "gradient/build_gradient.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "ops/differentiated.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

class GradientBuilder {
 public:
  explicit GradientBuilder(Graph& joint) : graph_(joint), differentiated_(joint) {}

  void build() {
    const std::vector<Node*> forward = graph_.node_pointers();
    seed_outputs();
    for (size_t i = forward.size(); i-- > 0;) differentiate(*forward[i]);
    const size_t inputs = graph_.inputs().size();
    for (size_t i = 0; i < inputs; ++i) {
      const GraphInput input = graph_.inputs()[i];
      if (input.requires_grad && is_differentiable(input.value->dtype))
        graph_.add_output(gradient_of(input.value), OutputKind::Gradient, static_cast<int>(i));
    }
  }

 private:
  void seed_outputs() {
    graph_.current_region = Region::Backward;
    const std::vector<GraphOutput> outputs = graph_.outputs();
    for (const GraphOutput& output : outputs) {
      if (output.kind != OutputKind::Output || !output.value) continue;
      if (!differentiated_.contains(output.value)) continue;
      Value* dy = graph_.add_input("d_" + output.value->name, output.value->dtype,
                                   output.value->dims, InputKind::GradOutput, false, output.index);
      accumulate(output.value, dy);
    }
  }

  Value* gradient_of(const Value* value) const {
    auto found = gradients_.find(value);
    return found == gradients_.end() ? nullptr : found->second;
  }

  // Adds a contribution as soon as it exists, which ends its live range early.
  void accumulate(const Value* value, Value* contribution) {
    Value*& slot = gradients_[value];
    if (!slot)
      slot = contribution;
    else
      slot = is_complex(value->dtype) ? complex_sum(slot, contribution)
                                      : emit(graph_, "Add", {slot, contribution});
  }

  // Add computes in real types only.
  Value* complex_sum(Value* a, Value* b) {
    Attrs attrs;
    attrs.set("operator", std::string("aten.add.Tensor"));
    attrs.set("arg_self", std::string("tensor:0"));
    attrs.set("arg_other", std::string("tensor:1"));
    attrs.set("arg_alpha", DimExpr(1));
    Node* node = graph_.add_node("ATen", {a, b}, 1, std::move(attrs));
    node->output(0)->dtype = a->dtype;
    node->output(0)->dims = a->dims;
    return node->output(0);
  }

  void differentiate(const Node& node) {
    Values output_grads;
    for (const Value* output : node.outputs()) output_grads.push_back(gradient_of(output));
    const bool reached = std::any_of(output_grads.begin(), output_grads.end(),
                                     [](const Value* grad) { return grad != nullptr; });
    if (!reached) return;
    const OpDef& def = op_def(node.op);
    std::vector<bool> needs(node.inputs().size(), false);
    bool any = false;
    for (size_t i = 0; i < needs.size(); ++i) {
      const Value* input = node.inputs()[i];
      needs[i] = input && differentiated_.contains(input) && flows_through(def, i);
      any = any || needs[i];
    }
    if (!any) return;
    graph_.current_origin = node.origin;
    graph_.current_tag = node.tag;
    if (def.grad) {
      apply_rule(node, def, output_grads, needs);
    } else if (has_body(def)) {
      differentiate_body(node, output_grads);
    } else {
      const std::string torch_name = node.attrs.string("operator", node.op);
      throw Error(str("[gradient] every op on a differentiated path needs a gradient rule, but ",
                      torch_name, " has none (", node.origin.module, ", ", node.origin.source,
                      ")"));
    }
  }

  void apply_rule(const Node& node, const OpDef& def, const Values& output_grads,
                  const std::vector<bool>& needs) {
    GradContext context(graph_, node, output_grads, needs);
    const Grads grads = def.grad(context);
    if (const int unread = context.unread_output(); unread >= 0) {
      if (has_body(def)) return differentiate_body(node, output_grads);
      throw Error(str("[gradient] a rule must use the gradient of every output, but that of ",
                      node.op, " has none for ", node.output(static_cast<size_t>(unread))->name,
                      " (", node.origin.module, ", ", node.origin.source, ")"));
    }
    for (size_t i = 0; i < grads.size() && i < needs.size(); ++i) {
      if (!needs[i] || !grads[i]) continue;
      const Value* operand = node.inputs()[i];
      Value* grad = grads[i].value();
      ORTM_ASSERT(is_complex(grad->dtype) == is_complex(operand->dtype), "the gradient of a ",
                  name_of(operand->dtype), " is a ", name_of(grad->dtype));
      if (grad->dims != operand->dims) grad = emit_sum_to(graph_, grad, operand->dims);
      accumulate(operand, emit_cast(graph_, grad, operand->dtype));
    }
  }

  // Recomputes the body in the backward region from the node's operands and differentiates its
  // nodes.
  void differentiate_body(const Node& node, const Values& output_grads) {
    const std::unique_ptr<Graph> body = instantiate_body(node);
    const auto before = std::prev(graph_.nodes().end());
    Values operands = node.inputs();
    operands.resize(body->inputs().size());  // trailing absent operands are not listed
    const Values results = graph_.inline_graph(*body, operands);
    std::vector<Node*> inlined;
    for (auto each = std::next(before); each != graph_.nodes().end(); ++each)
      inlined.push_back(each->get());
    for (const Node* copy : inlined) differentiated_.propagate(*copy);
    for (size_t i = 0; i < output_grads.size() && i < results.size(); ++i)
      if (output_grads[i] && results[i]) accumulate(results[i], output_grads[i]);
    for (size_t i = inlined.size(); i-- > 0;) differentiate(*inlined[i]);
  }

  Graph& graph_;
  Differentiated differentiated_;
  std::unordered_map<const Value*, Value*> gradients_;
};

}  // namespace

std::unique_ptr<Graph> build_gradient(const Graph& forward) {
  std::unique_ptr<Graph> joint = forward.clone();
  GradientBuilder(*joint).build();
  joint->current_region = Region::Forward;
  joint->current_origin = {};
  joint->current_tag.clear();
  return joint;
}

}  // namespace ortmodule
