// Random changes to ONNX files and models.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  size_t below(size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
  }

  /// Flips a bit, sets a byte, cuts the end off, inserts, removes or doubles a few bytes.
  void change(std::string& bytes) {
    if (bytes.empty()) return;
    const size_t at = below(bytes.size());
    const size_t count = 1 + below(std::min<size_t>(bytes.size() - at, 16));
    switch (below(6)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); return;
      case 1: bytes[at] = static_cast<char>(below(2) == 0 ? 0xff : below(256)); return;
      case 2: bytes.resize(at); return;
      case 3: bytes.insert(at, count, static_cast<char>(below(256))); return;
      case 4: bytes.erase(at, count); return;
      default: bytes.insert(at, bytes.substr(at, count)); return;
    }
  }

  /// Changes a number, an operand, the operator of a node, or a size of an input. `ops`: names to
  /// choose from.
  void change(OnnxModel& model, const std::vector<std::string>& ops) {
    OnnxGraph& graph = model.graph;
    if (graph.nodes.empty()) return;
    OnnxNode& node = graph.nodes[below(graph.nodes.size())];
    switch (below(6)) {
      case 0:
      case 1:
        if (!node.attrs.empty()) change_attribute(node);
        return;
      case 2:
        if (!node.inputs.empty()) node.inputs[below(node.inputs.size())] = value_name(graph);
        return;
      case 3:
        if (!node.inputs.empty())
          node.inputs.erase(node.inputs.begin() +
                            static_cast<ptrdiff_t>(below(node.inputs.size())));
        return;
      case 4: node.op = ops[below(ops.size())]; return;
      default:
        if (!graph.inputs.empty()) change_type(graph.inputs[below(graph.inputs.size())].type);
    }
  }

 private:
  int64_t odd_number() {
    constexpr std::array<int64_t, 13> kOdd = {-2,
                                              -1,
                                              0,
                                              1,
                                              2,
                                              3,
                                              7,
                                              100,
                                              int64_t{1} << 31,
                                              int64_t{1} << 40,
                                              int64_t{1} << 62,
                                              -(int64_t{1} << 62),
                                              std::numeric_limits<int64_t>::min()};
    return kOdd[below(kOdd.size())];
  }

  void change_attribute(OnnxNode& node) {
    const size_t at = below(node.attrs.size());
    OnnxAttr& value = node.attrs[at].second;
    if (auto* number = std::get_if<int64_t>(&value)) {
      *number = odd_number();
    } else if (auto* numbers = std::get_if<std::vector<int64_t>>(&value)) {
      if (numbers->empty() || below(5) == 0)
        numbers->push_back(odd_number());
      else
        (*numbers)[below(numbers->size())] = odd_number();
    } else if (auto* real = std::get_if<double>(&value)) {
      constexpr std::array<double, 4> kOdd = {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                                              std::numeric_limits<double>::infinity()};
      *real = kOdd[below(kOdd.size())];
    } else {
      node.attrs.erase(node.attrs.begin() + static_cast<ptrdiff_t>(at));
    }
  }

  std::string value_name(const OnnxGraph& graph) {
    std::vector<std::string> names = {"", "absent"};
    for (const OnnxValue& input : graph.inputs) names.push_back(input.name);
    for (const OnnxInitializer& weight : graph.initializers) names.push_back(weight.name);
    for (const OnnxNode& node : graph.nodes)
      names.insert(names.end(), node.outputs.begin(), node.outputs.end());
    return names[below(names.size())];
  }

  void change_type(OnnxType& type) {
    if (!type.dims) return;
    if (type.dims->empty() || below(4) == 0) {
      type.dims->emplace_back(int64_t{2});
    } else {
      constexpr std::array<int64_t, 4> kSizes = {0, 1, 3, 17};
      (*type.dims)[below(type.dims->size())] = kSizes[below(kSizes.size())];
    }
    type.denotations.clear();
  }

  std::mt19937 random_;
};

}  // namespace ortmodule
