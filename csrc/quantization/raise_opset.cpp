#include "quantization/raise_opset.h"

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "quantization/constant_weight.h"
#include "quantization/graph_edit.h"

namespace ortmodule {
namespace {

constexpr int64_t kOldest = 7, kTarget = 11;

// An operator that changed between two operator sets, in a graph that gets its constants.
class Raise {
 public:
  Raise(OnnxGraph& graph, TakenNames& names, int64_t from)
      : graph_(graph), names_(names), from_(from) {}

  void change(OnnxNode& node) {
    // Attributes became operands.
    if (node.op == "Clip") return clip(node);
    if (node.op == "Pad") return pad(node);
    if (node.op == "Slice" && from_ < 10) return slice(node);
    if (node.op == "TopK" && from_ < 10) return top_k(node);
    if (node.op == "Upsample" || (node.op == "Resize" && from_ == 10)) return resize(node);
    if (node.op == "Scatter") node.op = "ScatterElements";
    static const std::set<std::string> other = {"Loop", "Scan", "If"};
    if (from_ < 8 && other.count(node.op) > 0) refuse(node);
  }

 private:
  [[noreturn]] void refuse(const OnnxNode& node) const {
    throw Error(str("[quantization] a model must be of operator set 11 or more, but found ", from_,
                    ", from which ", node.op, " '", node.name,
                    "' cannot be converted; export the model with operator set 11 or more"));
  }

  std::string constant(OnnxTensor tensor) {
    const std::string name = names_.fresh("raised_constant");
    graph_.initializers.push_back({name, std::move(tensor)});
    return name;
  }
  std::string number(double value) {
    const auto real = static_cast<float>(value);
    return constant({DType::Float32, {}, std::string(reinterpret_cast<const char*>(&real), 4)});
  }
  std::string numbers(const std::vector<double>& values) {
    std::string bytes;
    for (double value : values) {
      const auto real = static_cast<float>(value);
      bytes.append(reinterpret_cast<const char*>(&real), 4);
    }
    return constant({DType::Float32, {static_cast<int64_t>(values.size())}, std::move(bytes)});
  }

  static OnnxAttr take(OnnxNode& node, const std::string& name, OnnxAttr fallback) {
    for (auto attr = node.attrs.begin(); attr != node.attrs.end(); ++attr) {
      if (attr->first != name) continue;
      fallback = std::move(attr->second);
      node.attrs.erase(attr);
      break;
    }
    return fallback;
  }
  template <class T>
  T take_as(OnnxNode& node, const std::string& name, T fallback) const {
    const OnnxAttr attr = take(node, name, fallback);
    const T* value = std::get_if<T>(&attr);
    if (!value) refuse(node);
    return *value;
  }
  using Integers = std::vector<int64_t>;

  void clip(OnnxNode& node) {
    for (const char* limit : {"min", "max"}) {
      const bool given = find_attr(node, limit) != nullptr;
      node.inputs.push_back(given ? number(take_as<double>(node, limit, 0.0)) : "");
    }
    while (node.inputs.back().empty()) node.inputs.pop_back();
  }

  void pad(OnnxNode& node) {
    const auto pads = take_as<Integers>(node, "pads", {});
    const double value = take_as<double>(node, "value", 0.0);
    node.inputs.push_back(constant(int64_tensor(pads)));
    // 0 fits all types, another value is of float32.
    if (value != 0) node.inputs.push_back(number(value));
  }

  void slice(OnnxNode& node) {
    const auto starts = take_as<Integers>(node, "starts", {});
    const auto ends = take_as<Integers>(node, "ends", {});
    auto axes = take_as<Integers>(node, "axes", {});
    for (size_t i = axes.size(); axes.size() < starts.size(); ++i)
      axes.push_back(static_cast<int64_t>(i));
    for (const Integers& each : {starts, ends, axes})
      node.inputs.push_back(constant(int64_tensor(each)));
  }

  void top_k(OnnxNode& node) {
    node.inputs.push_back(constant(int64_tensor({take_as<int64_t>(node, "k", 0)})));
  }

  // Both took the input's pixel x * scale, rounded down, or linear from its left corner.
  void resize(OnnxNode& node) {
    std::string scales = input_of(node, 1);
    if (from_ < 9) scales = numbers(take_as<std::vector<double>>(node, "scales", {}));
    if (scales.empty()) refuse(node);
    node.op = "Resize";
    node.inputs = {node.inputs[0], numbers({}), scales};
    const auto mode = take_as<std::string>(node, "mode", "nearest");
    node.attrs.emplace_back("mode", mode);
    node.attrs.emplace_back("coordinate_transformation_mode", std::string("asymmetric"));
    if (mode == "nearest") node.attrs.emplace_back("nearest_mode", std::string("floor"));
  }

  OnnxGraph& graph_;
  TakenNames& names_;
  int64_t from_;
};

void raise_graph(OnnxGraph& graph, TakenNames& names, int64_t from) {
  Raise raise(graph, names, from);
  for (OnnxNode& node : graph.nodes) {
    change_subgraphs(
        node, [&](OnnxGraph& inner, const std::string&) { raise_graph(inner, names, from); });
    if (node.domain.empty()) raise.change(node);
  }
}

}  // namespace

void raise_opset(OnnxModel& model) {
  const int64_t from = standard_opset(model);
  if (from < kOldest || !model.functions.empty())
    throw Error(str("[quantization] a model must be of operator set ", kOldest,
                    " or more and, below 11, without functions, but found operator set ", from,
                    "; export it with operator set 11 or more"));
  if (from >= kTarget) return;
  TakenNames names(model);
  raise_graph(model.graph, names, from);
  for (OnnxOpset& opset : model.opsets)
    if (opset.domain.empty()) opset.version = kTarget;
}

}  // namespace ortmodule
