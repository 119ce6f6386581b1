#include "onnx/text_table.h"

namespace ortmodule {

TextTable::TextTable(const OnnxModel& model) {
  add("_Unused");  // what encoders of ai.onnx.ml give where they know no text, if a file names none
  add(model.graph);
  for (const OnnxFunction& function : model.functions) {
    add(function.defaults);
    for (const OnnxNode& node : function.nodes) add(node.attrs);
  }
}

std::optional<int64_t> TextTable::find(std::string_view text) const {
  const auto known = numbers_.find(text);
  return known == numbers_.end() ? std::nullopt : std::optional(known->second);
}

void TextTable::add(const std::string& text) {
  if (numbers_.contains(text)) return;
  texts_.push_back(text);
  numbers_.emplace(texts_.back(), static_cast<int64_t>(texts_.size()) - 1);
}

void TextTable::add(const OnnxTensor& tensor) {
  for (const std::string& text : tensor.strings) add(text);
}

void TextTable::add(const OnnxAttrs& attrs) {
  for (const auto& [name, value] : attrs) {
    if (const auto* text = std::get_if<std::string>(&value)) add(*text);
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value))
      for (const std::string& text : *texts) add(text);
    if (const auto* tensor = std::get_if<OnnxTensor>(&value)) add(*tensor);
    if (const auto* graph = std::get_if<std::shared_ptr<const OnnxGraph>>(&value)) add(**graph);
    if (const auto* graphs = std::get_if<std::vector<std::shared_ptr<const OnnxGraph>>>(&value))
      for (const auto& graph : *graphs) add(*graph);
  }
}

void TextTable::add(const OnnxGraph& graph) {
  for (const OnnxInitializer& initializer : graph.initializers) add(initializer.tensor);
  for (const OnnxNode& node : graph.nodes) add(node.attrs);
}

}  // namespace ortmodule
