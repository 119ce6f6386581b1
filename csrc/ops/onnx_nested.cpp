#include "ops/onnx_nested.h"

#include "base/error.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

class NestedOperands : public OnnxOperands {
 public:
  NestedOperands(OnnxCall& outer, const Values& values) : outer_(outer), values_(values) {}
  size_t count() const override { return values_.size(); }
  bool has(size_t i) const override { return i < values_.size() && values_[i]; }
  DType dtype(size_t i) override { return values_[i]->dtype; }
  Dims dims(size_t i) override { return values_[i]->dims; }
  Value* tensor(size_t i) override { return values_[i]; }
  const KnownValue* known(size_t, bool) override { return nullptr; }
  bool is_input_content(const KnownValue&) override { return false; }
  Value* constant(const KnownValue& value) override { return outer_.constant(value); }
  Value* weight(const OnnxTensor& tensor) override { return outer_.weight(tensor); }
  const OnnxTensor* weight_of(const Value& tensor) const override {
    return outer_.weight_of(tensor);
  }
  DimExpr place(const DimExpr& number) override { return number; }
  OnnxMeaning meaning(size_t) override { return OnnxMeaning::Numbers; }
  int64_t text_number(const std::string& text) override { return outer_.text_number(text); }

 private:
  OnnxCall& outer_;
  const Values& values_;
};

const OnnxRow& standard_row(const OnnxCall& c, std::string_view op) {
  const OnnxRow* row = find_onnx_row("", op, kNestedOpset);
  if (!row || !row->convert) c.unsupported(str("it needs ", op, ", which has no rule"));
  return *row;
}

}  // namespace

Values call_nested(OnnxCall& c, std::string_view op, const Values& inputs, OnnxAttrs attrs,
                   size_t outputs) {
  OnnxNode node;
  node.op = op;
  node.name = c.node().name;
  for (const Value* input : inputs) node.inputs.emplace_back(input ? "operand" : "");
  node.outputs.assign(outputs, "result");
  node.attrs = std::move(attrs);
  NestedOperands operands(c, inputs);
  OnnxCall nested(c.graph(), node, kNestedOpset, operands, c.sizes());
  return standard_row(c, op).convert(nested);
}

Values call_standard(OnnxCall& c, std::string_view op) {
  OnnxCall same = c.at_opset(kNestedOpset);
  return standard_row(c, op).convert(same);
}

OnnxAttrs pick_attrs(const OnnxCall& c, std::initializer_list<std::string_view> names) {
  OnnxAttrs attrs;
  for (std::string_view name : names)
    if (const OnnxAttr* attr = c.find(name)) attrs.emplace_back(std::string(name), *attr);
  return attrs;
}

Value* activated(OnnxCall& c, Value* x, std::string_view name,
                 const std::vector<double>& parameters) {
  if (name.empty() || name == "None") return x;
  auto parameter = [&](size_t i, double fallback) {
    return i < parameters.size() ? parameters[i] : fallback;
  };
  if (name == "Relu" || name == "Tanh" || name == "Sigmoid" || name == "HardSwish")
    return c.emit(name, {x});
  if (name == "LeakyRelu") return c.emit(name, {x}, {{"alpha", parameter(0, 0.01)}});
  if (name == "Clip") {
    if (parameters.size() != 2) c.refuse("activation Clip needs two parameters");
    return c.emit(name, {x}, {{"min", parameters[0]}, {"max", parameters[1]}});
  }
  if (name == "HardSigmoid")
    return call_nested(c, name, {x},
                       {{"alpha", parameter(0, 0.2)}, {"beta", parameter(1, 0.5)}})[0];
  if (name == "Elu" || name == "Softplus" || name == "Softsign" || name == "Gelu")
    if (parameters.empty()) return call_nested(c, name, {x})[0];
  c.unsupported(str("activation ", name, " is not supported"));
}

}  // namespace ortmodule
