// Contents of small inputs: which of their elements the graph depends on.
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "importer/importer.h"

namespace ortmodule {
namespace {

// An element that must be exact is too large for arithmetic on sizes.
struct FarContent {
  size_t input;
  std::string text;
};

// The name of the only size of a list of integers, or null.
const std::string* name_of_list(const OnnxValue& input) {
  const bool is_list = has_known_content(input.type.dtype) && input.type.dims &&
                       input.type.dims->size() == 1 &&
                       std::holds_alternative<std::string>(input.type.dims->front());
  return is_list ? &std::get<std::string>(input.type.dims->front()) : nullptr;
}

// Without the contents of lists as long as another input has rows, such as the lengths of
// sequences; nullopt if there are none.
std::optional<ImportRequest> with_rows_as_data(const OnnxModel& model,
                                               const ImportRequest& request) {
  if (request.part) return std::nullopt;
  const std::vector<const OnnxValue*> inputs = called_inputs(model.graph);
  std::optional<ImportRequest> changed;
  for (size_t i = 0; i < inputs.size() && i < request.forms.size(); ++i) {
    const std::string* name = name_of_list(*inputs[i]);
    if (!name || name->empty() || request.forms[i].kind != ValueForm::Kind::Tensor) continue;
    const bool shared = std::ranges::any_of(inputs, [&](const OnnxValue* other) {
      return other != inputs[i] && other->type.dims && !other->type.dims->empty() &&
             other->type.dims->front() == OnnxDim(*name);
    });
    if (!shared) continue;
    if (!changed) changed = request;
    changed->inputs[request.forms[i].first].data = nullptr;
  }
  return changed;
}

// The contents of rows are for models that would be cut without: an import for them serves no other
// number of rows.
std::optional<ImportedModel> import_rows_as_data(const OnnxModel& model,
                                                 const ImportRequest& request) {
  const std::optional<ImportRequest> changed = with_rows_as_data(model, request);
  if (!changed) return std::nullopt;
  try {
    if (ImportedModel imported = Importer(model, *changed).run(); !imported.cut) return imported;
  } catch (const Error&) {  // the contents may make the difference
  }
  return std::nullopt;
}

}  // namespace

// What is computed from a far element is computed as data, too, behind which the
// model is cut.
ImportedModel import_model(const OnnxModel& model, const ImportRequest& request) {
  try {
    if (auto imported = import_rows_as_data(model, request)) return std::move(*imported);
    return Importer(model, request).run();
  } catch (const FarContent& far) {
    ImportRequest without = request;
    without.inputs[far.input].data = nullptr;
    try {
      return import_model(model, without);
    } catch (const Error& error) {
      throw Error(
          str("[import] integers that sizes or branches depend on must be within ±2^40, but ",
              far.text, " (", error.what(), ")"));
    }
  }
}

std::optional<ImportedModel> import_without_contents(const OnnxModel& model,
                                                     const ImportRequest& request) {
  Importer importer(model, request);
  std::optional<ImportedModel> imported;
  try {
    imported = importer.run();
  } catch (const Error&) {  // the contents may make the difference
    if (!importer.misses_content()) throw;
  }
  return importer.misses_content() ? std::nullopt : std::move(imported);
}

// The content of a small input: integers as symbols, so that the graph fits other contents, too;
// real numbers as they are, if a rule must have them.
std::optional<KnownValue> Importer::input_content(const Imported& value, bool required) {
  const auto index = static_cast<size_t>(value.input);
  const ImportInput& given = request_.inputs[index];
  const int64_t count = element_count(given.sizes);
  const bool integers = has_known_content(value.dtype);
  if (!integers && !(required && is_floating(value.dtype))) return std::nullopt;
  if (count > kMostContent || given.sizes.size() > 1) return std::nullopt;
  misses_content_ = misses_content_ || !given.data;
  if (!given.data) return std::nullopt;
  depends_on_call_ = true;
  if (integers) {
    KnownValue content = integer_content(index, count);
    content.dtype = value.dtype;
    content.dims = given.sizes.vector();
    return content;
  }
  for (const DimExpr& dim : value.dims) sizes_.fix(dim);
  const auto* bytes = static_cast<const char*>(given.data);
  const std::string copy(bytes, static_cast<size_t>(count) * size_of(value.dtype));
  std::optional<KnownValue> content = known_content({value.dtype, given.sizes.vector(), copy});
  if (content) result_.content_guards.push_back({index, copy});
  return content;
}

// Contents that nothing depends on are data: only the others are part of a plan's key. Where one
// element counts, the number of elements does, too.
void Importer::keep_used_contents() {
  std::vector<std::string> names;
  graph().collect_symbols(names);
  for (const SizeGuard& guard : sizes_.guards()) guard.expression.collect_symbols(names);
  std::erase_if(result_.contents, [&](const ContentSymbol& content) {
    return std::find(names.begin(), names.end(), content.symbol) == names.end();
  });
  for (const ContentSymbol& content : result_.contents) {
    const ImportInput& given = request_.inputs[content.input];
    const int64_t number = integer_element(given.data, content.element, given.dtype);
    if (!content.is_place && number != saturated(number))
      throw FarContent{content.input,
                       str("element ", content.element, " of '",
                           graph().inputs()[content.input].value->name, "' is ", number)};
    for (const DimExpr& dim : result_.input_dims[content.input]) sizes_.fix(dim);
  }
}

// An import for as many elements serves no other number of them.
void Importer::fix_counts(const std::vector<size_t>& inputs) {
  for (size_t input : inputs)
    for (const DimExpr& dim : result_.input_dims[input]) sizes_.fix(dim);
}

// Those of `inputs` of which `known` has no element: it would be kept where their sizes differ.
std::vector<size_t> Importer::without_content(const std::vector<size_t>& inputs,
                                              const KnownValue& known) const {
  std::vector<std::string> names;
  for (const KnownNumber& number : known.elements)
    if (!number.is_real()) number.numerator().collect_symbols(names);
  std::vector<size_t> missing;
  std::ranges::copy_if(inputs, std::back_inserter(missing), [&](size_t input) {
    return std::ranges::none_of(result_.contents, [&](const ContentSymbol& content) {
      return content.input == input && std::ranges::find(names, content.symbol) != names.end();
    });
  });
  return missing;
}

KnownValue Importer::integer_content(size_t input, int64_t count) {
  KnownValue content;
  const ImportInput& given = request_.inputs[input];
  for (int64_t i = 0; i < count; ++i) {
    std::string symbol = symbol_name(str(graph().inputs()[input].value->name, "_at_", i));
    const int64_t hint = saturated(integer_element(given.data, i, given.dtype));
    while (!named_sizes_.emplace(symbol, hint).second) symbol += "_";
    sizes_.add_hint(symbol, hint);
    result_.contents.push_back({symbol, input, i});
    content.elements.emplace_back(DimExpr::symbol(symbol));
  }
  return content;
}

// An element that is far away gets a second symbol for those who only read a place from it.
DimExpr Importer::place(const DimExpr& number) {
  std::string symbol;
  if (!number.is_symbol(&symbol)) return number;
  const auto exact = std::ranges::find(result_.contents, symbol, &ContentSymbol::symbol);
  if (exact == result_.contents.end() || exact->is_place) return number;
  const ImportInput& given = request_.inputs[exact->input];
  const int64_t element = integer_element(given.data, exact->element, given.dtype);
  if (element == saturated(element)) return number;
  for (const ContentSymbol& known : result_.contents)
    if (known.is_place && known.input == exact->input && known.element == exact->element)
      return DimExpr::symbol(known.symbol);
  symbol += "_place";
  while (!named_sizes_.emplace(symbol, saturated(element)).second) symbol += "_";
  sizes_.add_hint(symbol, saturated(element));
  result_.contents.push_back({symbol, exact->input, exact->element, true});
  return DimExpr::symbol(symbol);
}

bool Importer::is_input_content(const KnownValue& known) const {
  std::vector<std::string> names;
  for (const KnownNumber& number : known.elements)
    if (!number.is_real()) number.numerator().collect_symbols(names);
  return std::any_of(result_.contents.begin(), result_.contents.end(), [&](const auto& content) {
    return std::find(names.begin(), names.end(), content.symbol) != names.end();
  });
}

}  // namespace ortmodule
