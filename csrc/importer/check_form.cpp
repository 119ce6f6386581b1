#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <tuple>

#include "base/error.h"
#include "importer/importer.h"
#include "importer/operator_forms.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

// Of the alternatives of OnnxAttr; a DType is a number.
char type_letter(const OnnxAttr& attr) {
  constexpr std::array<char, 14> kLetters = {'i', 'f', 's', 'I', 'F', 'S', 't',
                                             'T', 'i', 'g', 'G', 'p', 'P', '?'};
  static_assert(kLetters.size() == std::variant_size_v<OnnxAttr>);
  return kLetters.at(attr.index());
}

std::string_view type_text(char letter) {
  switch (letter) {
    case 'i': return "an integer";
    case 'f': return "a number";
    case 's': return "a string";
    case 't': return "a tensor";
    case 'g': return "a graph";
    case 'I': return "a list of integers";
    case 'F': return "a list of numbers";
    case 'S': return "a list of strings";
    default: return "a type";
  }
}

// What a form says of one attribute.
struct AttrForm {
  std::string_view name;
  bool required = false;
  char type = '?';
};

std::vector<AttrForm> attr_forms(std::string_view text) {
  std::vector<AttrForm> forms;
  while (!text.empty()) {
    const size_t colon = text.find(':');
    AttrForm form{text.substr(0, colon), false, text.at(colon + 1)};
    form.required = form.name.ends_with('!');
    if (form.required) form.name.remove_suffix(1);
    forms.push_back(form);
    text.remove_prefix(colon + 3);
  }
  return forms;
}

void check_attrs(const OnnxNode& node, std::string_view text) {
  const std::vector<AttrForm> forms = attr_forms(text);
  std::vector<std::string_view> given;
  for (const auto& [name, value] : node.attrs) {
    if (std::ranges::find(given, name) != given.end())
      throw Refused(str("attribute '", name, "' must be given once, but is given twice"));
    given.push_back(name);
    if (name.starts_with("__")) continue;  // notes of tools
    const auto form = std::ranges::find(forms, name, &AttrForm::name);
    if (form == forms.end()) {
      std::string names;
      for (const AttrForm& each : forms) names += str(names.empty() ? "" : ", ", each.name);
      throw Refused(str("its attributes must be of the operator (",
                        names.empty() ? "which has none" : names, "), but found '", name, "'"));
    }
    if (const char type = type_letter(value); type != '?' && type != form->type)
      throw Refused(str("attribute '", name, "' must be ", type_text(form->type)));
  }
  for (const AttrForm& form : forms)
    if (form.required && std::ranges::find(given, form.name) == given.end())
      throw Refused(str("attribute '", form.name, "' must be given"));
}

// `what`: "operand" or "output".
void check_values(const std::vector<std::string>& names, std::string_view form,
                  std::string_view what) {
  const bool is_open = form.ends_with('v') || form.ends_with('w');
  if (!is_open && names.size() > form.size())
    throw Refused(str("it must have at most ", form.size(), " ", what, "s, but found ",
                      names.size(), names.back().empty() ? " (some of them absent)" : ""));
  for (size_t i = 0; i < form.size(); ++i)
    if ((form[i] == 's' && (i >= names.size() || names[i].empty())) ||
        (form[i] == 'v' && i >= names.size()))
      throw Refused(str(what, " ", i, " must be given"));
}

}  // namespace

const OperatorForm* find_operator_form(std::string_view domain, std::string_view op,
                                       int64_t opset) {
  const bool is_standard = !domain.starts_with("com.microsoft");
  const std::span<const OperatorForm> forms = is_standard ? standard_forms() : contrib_forms();
  const auto key = [](const OperatorForm& form) {
    return std::tuple(form.domain, form.op, form.since);
  };
  const auto after = std::ranges::upper_bound(forms, std::tuple(domain, op, opset), {}, key);
  if (after == forms.begin()) return nullptr;
  const OperatorForm& form = *std::prev(after);
  return form.domain == domain && form.op == op ? &form : nullptr;
}

void check_form(const OnnxNode& node, int64_t opset) {
  const OperatorForm* form = find_operator_form(node.domain, node.op, opset);
  if (!form) return;
  if (form->inputs == "-") throw Refused(str("operator set ", form->since, " has removed it"));
  check_values(node.inputs, form->inputs, "operand");
  check_values(node.outputs, form->outputs, "output");
  check_attrs(node, form->attrs);
}

namespace {

// An operator that is newer than its set has the form of the latest one.
int64_t opset_of(const OnnxModel& model, const OnnxNode& node) {
  const auto found = std::ranges::find(model.opsets, node.domain, &OnnxOpset::domain);
  const int64_t opset = found == model.opsets.end() ? 1 : found->version;
  return find_operator_form(node.domain, node.op, opset) ? opset
                                                         : std::numeric_limits<int64_t>::max();
}

void check_graph(const OnnxModel& model, const OnnxGraph& graph, std::string& text, int& count) {
  constexpr int kMostListed = 20;
  for (const OnnxNode& node : graph.nodes) {
    for (const auto& [name, value] : node.attrs)
      if (const auto* inner = std::get_if<std::shared_ptr<const OnnxGraph>>(&value))
        check_graph(model, **inner, text, count);
    try {
      check_form(node, opset_of(model, node));
    } catch (const Refused& refused) {
      if (++count <= kMostListed) text += str("\n  - ", node_title(node), ": ", refused.what());
    }
  }
}

}  // namespace

void check_forms(const OnnxModel& model) {
  std::string text;
  int count = 0;
  check_graph(model, model.graph, text, count);
  ORTM_CHECK(count == 0, "[model] every node must be valid, but found ", count,
             count == 1 ? " that is" : " that are", " not:", text);
}

}  // namespace ortmodule
