#include "inference/unread_sizes.h"

#include <algorithm>

#include "importer/free_names.h"

namespace ortmodule {
namespace {

// The names that nodes of the part read before its cut. What a loop or branch at the cut reads is
// handed to it.
std::vector<std::string> names_before_cut(const ModelPart& part, const ModelCut* cut) {
  const std::vector<OnnxNode>& nodes = part.graph->nodes;
  size_t end = cut ? cut->rest.first_node : nodes.size();
  if (cut && cut->kind == ModelCut::Kind::Control) --end;
  OnnxGraph before;
  for (size_t i = part.first_node; i < end; ++i) before.nodes.push_back(nodes[i]);
  return free_names(before);
}

// The tensors whose content and sizes only what follows reads.
std::vector<bool> passed_tensors(const ImportedModel& imported, const ModelPart& part,
                                 const std::vector<ValueForm>& forms) {
  const auto& inputs = imported.piece.graph->inputs();
  const std::vector<std::string> read =
      names_before_cut(part, imported.cut ? &*imported.cut : nullptr);
  std::vector<bool> passed(imported.input_dims.size());
  for (const ValueForm& form : forms) {
    if (form.kind != ValueForm::Kind::Tensor) continue;  // elements have no names
    const Value& value = *inputs[form.first].value;
    passed[form.first] = value.uses().empty() && !value.is_graph_output() &&
                         std::ranges::count(read, value.name) == 0;
  }
  for (const ContentSymbol& content : imported.contents) passed[content.input] = false;
  for (const ContentGuard& guard : imported.content_guards) passed[guard.input] = false;
  return passed;
}

void fix(Value& value, const std::vector<bool>& unread) {
  for (size_t d = 0; d < unread.size(); ++d)
    if (unread[d]) value.dims[d] = DimExpr(kUnreadSize);
}

bool is_symbol_of(const DimExpr& expression, const std::string& symbol) {
  std::vector<std::string> names;
  expression.collect_symbols(names);
  return names.size() == 1 && names.front() == symbol;
}

}  // namespace

UnreadSizes fix_unread_sizes(ImportedModel& imported, const ModelPart& part,
                             const std::vector<ValueForm>& forms,
                             const std::vector<std::vector<std::string>>& symbols) {
  const auto& inputs = imported.piece.graph->inputs();
  const std::vector<bool> passed = passed_tensors(imported, part, forms);
  UnreadSizes unread(symbols.size());
  std::vector<Dims> originals;
  for (size_t i = 0; i < symbols.size(); ++i) {
    originals.push_back(inputs[i].value->dims);
    if (!passed[i]) continue;
    for (const std::string& symbol : symbols[i]) unread[i].push_back(!symbol.empty());
    fix(*inputs[i].value, unread[i]);  // so that what is collected next is the rest
  }
  std::vector<std::string> read;
  imported.piece.graph->collect_symbols(read);
  for (const Dims& strides : imported.piece.output_strides)
    for (const DimExpr& stride : strides) stride.collect_symbols(read);
  const auto is_private = [&](const std::string& symbol) {
    // A name that two inputs have says that their sizes are equal.
    int64_t dimensions = 0;
    for (const auto& names : symbols) dimensions += std::ranges::count(names, symbol);
    return dimensions == 1 && std::ranges::count(read, symbol) == 0 &&
           std::ranges::all_of(imported.guards, [&](const SizeGuard& guard) {
             std::vector<std::string> names;
             guard.expression.collect_symbols(names);
             return std::ranges::count(names, symbol) == 0 || names.size() == 1;
           });
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    inputs[i].value->dims = originals[i];
    for (size_t d = 0; d < unread[i].size(); ++d) {
      unread[i][d] = unread[i][d] && is_private(symbols[i][d]);
      if (!unread[i][d]) continue;
      std::erase_if(imported.guards, [&](const SizeGuard& guard) {
        return is_symbol_of(guard.expression, symbols[i][d]);
      });
    }
    if (std::ranges::count(unread[i], true) == 0) unread[i].clear();
    fix(*inputs[i].value, unread[i]);
  }
  return unread;
}

Sizes planned_sizes(const UnreadSizes& unread, size_t i, const Sizes& given) {
  Sizes sizes = given;
  if (i >= unread.size()) return sizes;
  for (size_t d = 0; d < unread[i].size(); ++d)
    if (unread[i][d]) sizes[d] = kUnreadSize;
  return sizes;
}

}  // namespace ortmodule
