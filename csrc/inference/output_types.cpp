// Types and sizes of outputs that the file leaves out, as the import finds them.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"
#include "inference/inference_session.h"
#include "inference/likely_sizes.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

using Types = std::vector<OnnxType>;  // by output; Kind::Unknown where the import does not say

// The names of the inputs' sizes, by the symbols that the import makes of them.
std::map<std::string, std::string> names_by_symbol(const InferenceSession& session) {
  std::map<std::string, std::string> names;
  for (const OnnxValue* input : session.inputs())
    for (const OnnxDim& dim : input->type.dims.value_or(std::vector<OnnxDim>()))
      if (const auto* name = std::get_if<std::string>(&dim))
        names.emplace(symbol_name(*name), *name);
  return names;
}

bool is_open(const OnnxValue& output, const std::map<std::string, std::string>& names) {
  if (output.type.kind == OnnxType::Kind::Unknown) return true;
  if (output.type.kind != OnnxType::Kind::Tensor) return false;
  if (output.type.element_type == 0 || !output.type.dims) return true;
  return std::ranges::any_of(*output.type.dims, [&](const OnnxDim& dim) {
    const auto* name = std::get_if<std::string>(&dim);
    return name ? names.count(symbol_name(*name)) == 0
                : std::holds_alternative<std::monostate>(dim);
  });
}

Types types_of(const ImportedModel& imported, const std::map<std::string, std::string>& names) {
  Types types(imported.outputs.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const OnnxMeaning meaning = imported.meanings.at(i).meaning;
    if (imported.outputs[i].kind != ValueForm::Kind::Tensor || meaning == OnnxMeaning::Maps)
      continue;
    const Value& value = *imported.piece.graph->outputs().at(imported.outputs[i].first).value;
    types[i].kind = OnnxType::Kind::Tensor;
    types[i].dtype = value.dtype;
    types[i].element_type =
        meaning == OnnxMeaning::Texts ? kOnnxString : static_cast<int>(onnx_number(value.dtype));
    std::vector<OnnxDim>& dims = types[i].dims.emplace();
    for (const DimExpr& dim : value.dims) {
      std::string symbol;
      if (dim.is_constant())
        dims.emplace_back(dim.value());
      else if (dim.is_symbol(&symbol) && names.count(symbol) > 0)
        dims.emplace_back(names.at(symbol));
      else
        dims.emplace_back();
    }
  }
  return types;
}

// What two imports for other sizes agree on.
OnnxType agreed(const OnnxType& a, const OnnxType& b) {
  if (a.kind != b.kind || a.element_type != b.element_type) return {};
  OnnxType type = a;
  if (!a.dims || !b.dims || a.dims->size() != b.dims->size()) type.dims.reset();
  for (size_t d = 0; type.dims && d < type.dims->size(); ++d)
    if ((*a.dims)[d] != (*b.dims)[d]) (*type.dims)[d] = std::monostate();
  return type;
}

// The types that all calls have, from two likely ones: what was assumed differs there.
Types found_types(const InferenceSession& session, const Segment& segment,
                  const std::map<std::string, std::string>& names) {
  std::optional<Types> first;
  std::string why;
  const std::vector<std::vector<HostFeed>> all = likely_feeds(session, why);
  for (const std::vector<HostFeed>& feeds : all) {
    try {
      const auto imported = segment.import_types(Segment::Call(feeds));
      if (!imported || imported->cut) return {};
      Types types = types_of(*imported, names);
      if (all.size() == 1) return types;  // nothing was assumed
      if (!first) {
        first = std::move(types);
        continue;
      }
      for (size_t i = 0; i < types.size(); ++i) types[i] = agreed(types[i], (*first)[i]);
      return types;
    } catch (const Error&) {  // of these sizes: others may be right
    }
  }
  return {};
}

// What the file says comes first, but for a name where a number was found.
void complete(OnnxType& declared, const OnnxType& found) {
  if (found.kind == OnnxType::Kind::Unknown) return;
  if (declared.kind == OnnxType::Kind::Unknown) {
    declared = found;
    return;
  }
  if (declared.kind != OnnxType::Kind::Tensor) return;
  if (declared.element_type == 0) {
    declared.element_type = found.element_type;
    declared.dtype = found.dtype;
  }
  if (!declared.dims) declared.dims = found.dims;
  if (!found.dims || declared.dims->size() != found.dims->size()) return;
  for (size_t d = 0; d < found.dims->size(); ++d) {
    OnnxDim& dim = (*declared.dims)[d];
    const OnnxDim& other = (*found.dims)[d];
    const bool open = std::holds_alternative<std::monostate>(dim);
    const bool named = std::holds_alternative<std::string>(dim);
    if (open || (named && std::holds_alternative<int64_t>(other))) dim = other;
  }
}

}  // namespace

const std::vector<OnnxValue>& InferenceSession::typed_outputs() {
  std::call_once(typed_, [this] {
    typed_outputs_ = outputs();
    const std::map<std::string, std::string> names = names_by_symbol(*this);
    if (std::ranges::none_of(typed_outputs_,
                             [&](const OnnxValue& output) { return is_open(output, names); }))
      return;
    const ImportedModel* early = whole_.early();
    if (early && early->cut) return;
    const Types found = early ? types_of(*early, names) : found_types(*this, whole_, names);
    for (size_t i = 0; i < found.size(); ++i) complete(typed_outputs_.at(i).type, found[i]);
  });
  return typed_outputs_;
}

}  // namespace ortmodule
