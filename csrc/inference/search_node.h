// Operands and attributes of a node that searches for texts.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "inference/segmented_run.h"

namespace ortmodule {

/// Operands are read as they are when they are asked for.
class SearchNode {
 public:
  SearchNode(const OnnxNode& node, const SegmentedRun::Values& values)
      : node_(node), values_(values) {}

  const OnnxNode& node() const { return node_; }
  const HostTensorView* optional(size_t i) const {
    if (i >= node_.inputs.size() || node_.inputs[i].empty()) return nullptr;
    const auto value = values_.find(node_.inputs[i]);
    ORTM_CHECK(value != values_.end() && value->second.tensors.size() == 1, "[run] ", node_.op,
               " '", node_.name, "' must have a tensor as operand ", i);
    return &value->second.tensors[0].view;
  }
  const PassedValue& value(size_t i) const { return values_.at(node_.inputs.at(i)); }
  template <class T>
  std::vector<T> list(size_t i, DType dtype) const {
    const HostTensorView* view = optional(i);
    if (!view) return {};
    ORTM_CHECK(view->dtype == dtype, "[run] operand ", i, " of ", node_.op, " '", node_.name,
               "' must be ", name_of(dtype), ", but found ", name_of(view->dtype));
    const T* data = static_cast<const T*>(view->data);
    return {data, data + element_count(view->sizes)};
  }
  std::vector<int32_t> integers(size_t i) const { return list<int32_t>(i, DType::Int32); }
  template <class T>
  T first(const std::vector<T>& values, T fallback) const {
    return values.empty() ? fallback : values.front();
  }
  int64_t integer(size_t i, int32_t fallback) const { return first(integers(i), fallback); }
  float number(size_t i, float fallback) const {
    return first(list<float>(i, DType::Float32), fallback);
  }
  int64_t attr(std::string_view name, int64_t fallback) const {
    for (const auto& [key, value] : node_.attrs)
      if (const auto* number = std::get_if<int64_t>(&value); number && key == name) return *number;
    return fallback;
  }
  float real_attr(std::string_view name, double fallback) const {
    for (const auto& [key, value] : node_.attrs)
      if (const auto* number = std::get_if<double>(&value); number && key == name)
        return static_cast<float>(*number);
    return static_cast<float>(fallback);
  }

 private:
  const OnnxNode& node_;
  const SegmentedRun::Values& values_;
};

}  // namespace ortmodule
