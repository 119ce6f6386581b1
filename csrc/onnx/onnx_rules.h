// How one op of the graph becomes standard ONNX. A rule stands in one of the onnx_rules_*.cpp by
// family and registers itself. Without a rule an op is written as its body, or, without one, as
// a node of its own domain that stock runtimes do not know.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "onnx/onnx_builder.h"

namespace ortmodule {

/// What a rule sees of the node that it lowers.
class OnnxRuleContext {
 public:
  OnnxRuleContext(OnnxBuilder& builder, const Node& node,
                  const std::unordered_map<const Value*, std::string>& names)
      : b(builder), node(node), names_(names) {}

  OnnxBuilder& b;
  const Node& node;

  const Attrs& attrs() const { return node.attrs; }
  bool has(size_t i) const { return node.input(i) != nullptr; }
  const Value& value(size_t i) const { return *node.input(i); }
  DType dtype(size_t i = 0) const { return node.input(i)->dtype; }
  /// Tensor of operand i; a literal becomes a constant. "" if the operand is absent.
  std::string in(size_t i) const { return tensor(node.input(i)); }
  std::string tensor(const Value* value) const;
  std::vector<std::string> ins() const;
  /// Whether anybody reads output i.
  bool wanted(size_t i) const;
  std::string out(size_t i = 0) const { return names_.at(node.output(i)); }

  /// A helper node.
  std::string op(std::string_view op, std::vector<std::string> inputs, OnnxAttrs attrs = {}) const {
    return b.add(op, std::move(inputs), std::move(attrs));
  }
  /// The node that gives output i.
  void set(size_t i, std::string_view op, std::vector<std::string> inputs,
           OnnxAttrs attrs = {}) const {
    b.add(op, std::move(inputs), std::move(attrs), {out(i)});
  }
  std::string cast(const std::string& tensor, DType to) const {
    return op("Cast", {tensor}, {{"to", to}});
  }
  std::string number(double value, DType dtype) const { return b.scalar(value, dtype); }
  /// The attributes of that name that the node has, as ONNX's.
  OnnxAttrs pick(const std::vector<std::string_view>& names) const;
  /// Attribute `name` counted from the front.
  int64_t axis(std::string_view name, size_t rank) const;

 private:
  const std::unordered_map<const Value*, std::string>& names_;
};

struct OnnxRule {
  std::string_view op;
  void (*lower)(const OnnxRuleContext&) = nullptr;
  /// Attributes that ONNX's op of the same name shares with ours.
  std::vector<std::string_view> attrs = {};
};

/// The rule of an op, or null.
const OnnxRule* find_onnx_rule(std::string_view op);

/// Same name, same operands, same meaning; outputs that nobody reads are left out.
void lower_directly(const OnnxRuleContext& c);
/// The same for pointwise ops: a literal that a 16-bit float does not hold is applied in float32,
/// and bool and uint8 are widened where ONNX's op does not take them.
void lower_pointwise(const OnnxRuleContext& c);

/// An attribute in ONNX's form; symbolic sizes, which it cannot hold, become text.
OnnxAttr to_onnx_attr(const Attr& attr);

struct OnnxRuleRegistrar {
  explicit OnnxRuleRegistrar(std::vector<OnnxRule> rules);
};

}  // namespace ortmodule
