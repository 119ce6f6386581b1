// The ONNX form of a projected LSTM, which ONNX's LSTM lacks: a Scan over the steps.
#include "onnx/onnx_types.h"
#include "ops/recurrent.h"

namespace ortmodule {
namespace {

class ProjectedWriter {
 public:
  ProjectedWriter(const OnnxRuleContext& c, size_t projection)
      : c_(c), inside_(compute_dtype(c.dtype())), body_(std::make_shared<OnnxGraph>()) {
    // Read by the body, from the graph around it.
    recurrent_ = transposed(wide(c.in(kR)));
    projection_ = transposed(wide(c.in(projection)));
    if (c.has(kInputBias) || c.has(kRecurrentBias))
      bias_ = c.op("Add", {wide(c.in(kInputBias)), wide(c.in(kRecurrentBias))});
  }

  void write() {
    body_->name = c_.b.fresh_name(c_.out(0) + "/step");
    const std::string h = input("h"), cell = input("c"), pre = input("pre");
    std::string gates = node("Add", {pre, node("MatMul", {h, recurrent_})});
    if (!bias_.empty()) gates = node("Add", {gates, bias_});
    const std::vector<std::string> parts = split(gates);  // i, f, g, o
    const std::string kept = node("Mul", {node("Sigmoid", {parts[1]}), cell});
    const std::string fresh = node("Mul", {node("Sigmoid", {parts[0]}), node("Tanh", {parts[2]})});
    const std::string next_cell = node("Add", {kept, fresh});
    const std::string state = node("Mul", {node("Sigmoid", {parts[3]}), node("Tanh", {next_cell})});
    const std::string next_h = node("MatMul", {state, projection_});
    for (const std::string& name : {next_h, next_cell, node("Identity", {next_h})})
      body_->outputs.push_back({name, tensor_type()});
    finish();
  }

 private:
  OnnxType tensor_type() const {
    OnnxType type;
    type.kind = OnnxType::Kind::Tensor;
    type.dtype = inside_;
    type.element_type = onnx_number(inside_);
    return type;
  }
  std::string wide(const std::string& tensor) const {
    return inside_ == c_.dtype() ? tensor : c_.cast(tensor, inside_);
  }
  std::string transposed(const std::string& matrix) const {
    return c_.op("Transpose", {matrix}, {{"perm", std::vector<int64_t>{1, 0}}});
  }

  std::string input(const std::string& name) {
    const std::string unique = c_.b.fresh_name(body_->name + "/" + name);
    body_->inputs.push_back({unique, tensor_type()});
    return unique;
  }
  std::string node(const std::string& op, std::vector<std::string> inputs) {
    const std::string result = c_.b.fresh_name(body_->name + "/" + op);
    add(op, std::move(inputs), {result});
    return result;
  }
  std::vector<std::string> split(const std::string& gates) {
    std::vector<std::string> parts;
    for (const char* gate : {"i", "f", "g", "o"})
      parts.push_back(c_.b.fresh_name(body_->name + "/" + gate));
    add("Split", {gates}, parts, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{4}}});
    return parts;
  }
  void add(const std::string& op, std::vector<std::string> inputs, std::vector<std::string> outputs,
           OnnxAttrs attrs = {}) {
    OnnxNode& made = body_->nodes.emplace_back();
    made.op = op;
    made.name = outputs.front();
    made.inputs = std::move(inputs);
    made.outputs = std::move(outputs);
    made.attrs = std::move(attrs);
  }

  // The given state, or zeros of the shape of the last one.
  std::string initial(size_t operand, size_t output) const {
    if (c_.has(operand)) return wide(c_.in(operand));
    const OnnxTensor zero{inside_, {1}, encode_scalar(0.0, inside_)};
    const Dims& dims = c_.node.output(output)->dims;
    return c_.op("ConstantOfShape", {c_.b.sizes(dims)}, {{"value", zero}});
  }

  void finish() const {
    using Integers = std::vector<int64_t>;
    const int64_t steps = c_.attrs().flag("layout") ? 1 : 0;  // the axis of the steps
    const int64_t backward = c_.attrs().flag("reverse") ? 1 : 0;
    const OnnxAttrs attrs{{"body", std::shared_ptr<const OnnxGraph>(body_)},
                          {"num_scan_inputs", int64_t{1}},
                          {"scan_input_axes", Integers{steps}},
                          {"scan_input_directions", Integers{backward}},
                          {"scan_output_axes", Integers{steps}},
                          {"scan_output_directions", Integers{backward}}};
    std::vector<std::string> outputs;
    for (size_t i : {1, 2, 0}) outputs.push_back(c_.b.fresh_name(c_.out(i)));
    c_.b.add("Scan", {initial(kInitialH, 1), initial(kInitialH + 1, 2), wide(c_.in(kPre))}, attrs,
             outputs);
    for (size_t i : {1, 2, 0})
      if (c_.wanted(i)) c_.set(i, "Cast", {outputs[i == 0 ? 2 : i - 1]}, {{"to", c_.dtype()}});
  }

  const OnnxRuleContext& c_;
  DType inside_;
  std::shared_ptr<OnnxGraph> body_;
  std::string recurrent_, projection_, bias_;
};

}  // namespace

void export_projected(const OnnxRuleContext& c, size_t projection) {
  ProjectedWriter(c, projection).write();
}

}  // namespace ortmodule
