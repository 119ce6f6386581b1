// Export of one op to standard ONNX, part of the op's definition (OpDef::onnx).
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "onnx/onnx_builder.h"

namespace ortmodule {

class OnnxRuleContext;

/// The ONNX name of a value: from `names`, or a new constant for a literal; "" for null.
std::string onnx_tensor(OnnxBuilder& builder, const Value* value,
                        const std::unordered_map<const Value*, std::string>& names);

/// The ONNX form of an op. Without `write` the op is exported as its body, or, if it has none, as a
/// node of a custom domain.
struct OnnxRule {
  void (*write)(const OnnxRuleContext&) = nullptr;
  /// Attributes that the ONNX op of the same name has, too.
  std::vector<std::string_view> attrs = {};
};

/// The node that a rule exports, and the builder.
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
  /// ONNX name of operand i; a literal becomes a constant. "" if the operand is absent.
  std::string in(size_t i) const { return onnx_tensor(b, node.input(i), names_); }
  std::vector<std::string> ins() const;
  /// ONNX name of any value before the node, such as an operand of an operand.
  std::string name(const Value* value) const { return onnx_tensor(b, value, names_); }
  /// Whether output i is used.
  bool wanted(size_t i) const;
  std::string out(size_t i = 0) const { return names_.at(node.output(i)); }

  /// Adds a node with one intermediate output.
  std::string op(std::string_view op, std::vector<std::string> inputs, OnnxAttrs attrs = {}) const {
    return b.add(op, std::move(inputs), std::move(attrs));
  }
  /// Adds the node that computes output i.
  void set(size_t i, std::string_view op, std::vector<std::string> inputs,
           OnnxAttrs attrs = {}) const {
    b.add(op, std::move(inputs), std::move(attrs), {out(i)});
  }
  std::string cast(const std::string& tensor, DType to) const {
    return op("Cast", {tensor}, {{"to", to}});
  }
  std::string number(double value, DType dtype) const { return b.scalar(value, dtype); }
  /// The node's attributes of these names, if present, in ONNX form.
  OnnxAttrs pick(const std::vector<std::string_view>& names) const;
  /// The attributes in OnnxRule::attrs.
  OnnxAttrs shared_attrs() const { return pick(rule_.attrs); }
  /// Attribute `name` as a non-negative axis.
  int64_t axis(std::string_view name, size_t rank) const;

 private:
  const OnnxRule& rule_;
  const std::unordered_map<const Value*, std::string>& names_;
};

/// For ops equal to the ONNX op of the same name. Unused outputs are omitted.
void export_directly(const OnnxRuleContext& c);
/// The same for pointwise ops. Computes in float32 if a literal is not exact in a 16-bit float, and
/// in int32 where the ONNX op does not support bool or uint8.
void export_pointwise(const OnnxRuleContext& c);
/// Exports an op that ONNX does not have as a node of that domain.
void export_custom(const OnnxRuleContext& c, std::string_view domain);
/// Exports the op as Identity of its first operand.
void export_identity(const OnnxRuleContext& c);

/// An attribute in ONNX form; symbolic sizes become strings.
OnnxAttr to_onnx_attr(const Attr& attr);

}  // namespace ortmodule
