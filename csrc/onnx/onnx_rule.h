// How one op of the graph becomes standard ONNX: a part of the op (OpDef::onnx).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "onnx/onnx_builder.h"

namespace ortmodule {

class OnnxRuleContext;

/// The tensor of a value: by its name in `names`, or, of a literal, a constant; "" for null.
std::string onnx_tensor(OnnxBuilder& builder, const Value* value,
                        const std::unordered_map<const Value*, std::string>& names);

/// The ONNX form of an op. Without `write` the op is written as its body, or, if it has none, as
/// a node of its own domain, which stock runtimes do not know.
struct OnnxRule {
  void (*write)(const OnnxRuleContext&) = nullptr;
  /// Attributes that ONNX's op of the same name shares with ours.
  std::vector<std::string_view> attrs = {};
};

/// What a rule sees of the node that it writes.
class OnnxRuleContext {
 public:
  OnnxRuleContext(OnnxBuilder& builder, const Node& node, const OnnxRule& rule,
                  const std::unordered_map<const Value*, std::string>& names)
      : b(builder), node(node), rule_(rule), names_(names) {}

  OnnxBuilder& b;
  const Node& node;

  const Attrs& attrs() const { return node.attrs; }
  bool has(size_t i) const { return node.input(i) != nullptr; }
  const Value& value(size_t i) const { return *node.input(i); }
  DType dtype(size_t i = 0) const { return node.input(i)->dtype; }
  /// Tensor of operand i; a literal becomes a constant. "" if the operand is absent.
  std::string in(size_t i) const { return onnx_tensor(b, node.input(i), names_); }
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
  /// Those that the rule names.
  OnnxAttrs shared_attrs() const { return pick(rule_.attrs); }
  /// Attribute `name` counted from the front.
  int64_t axis(std::string_view name, size_t rank) const;

 private:
  const OnnxRule& rule_;
  const std::unordered_map<const Value*, std::string>& names_;
};

/// Same name, same operands, same meaning; outputs that nobody reads are left out.
void export_directly(const OnnxRuleContext& c);
/// The same for pointwise ops: a literal that a 16-bit float does not hold is applied in float32,
/// and bool and uint8 are widened where ONNX's op does not take them.
void export_pointwise(const OnnxRuleContext& c);
/// The first operand as it is.
void export_identity(const OnnxRuleContext& c);

/// An attribute in ONNX's form; symbolic sizes, which it cannot hold, become text.
OnnxAttr to_onnx_attr(const Attr& attr);

}  // namespace ortmodule
