// The texts that a model holds, by number. The engine computes with numbers; sessions turn texts of
// feeds into numbers and numbers of outputs into texts.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// All texts in attributes and constants of a model, subgraphs and functions included, numbered
/// from 0. It does not change afterwards, so that runs share it.
class TextTable {
 public:
  TextTable() = default;
  explicit TextTable(const OnnxModel& model);

  size_t size() const { return texts_.size(); }
  std::optional<int64_t> find(std::string_view text) const;
  /// Throws std::out_of_range.
  const std::string& at(int64_t number) const { return texts_.at(static_cast<size_t>(number)); }

 private:
  void add(const std::string& text);
  void add(const OnnxTensor& tensor);
  void add(const OnnxAttrs& attrs);
  void add(const OnnxGraph& graph);

  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, int64_t> numbers_;
};

}  // namespace ortmodule
