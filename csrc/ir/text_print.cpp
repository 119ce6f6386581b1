#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "ir/text.h"

namespace ortmodule {
namespace {

// Keywords where a name is allowed: names equal to them are quoted.
constexpr std::array<std::string_view, 8> kReservedNames{"_",   "inf", "nan",  "backward",
                                                         "tag", "out", "grad", "mutate"};

bool is_word_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

bool is_plain_word(std::string_view text) {
  return !text.empty() && is_word_start(text.front()) &&
         std::all_of(text.begin(), text.end(), is_word);
}

bool is_plain_name(std::string_view name) {
  return is_plain_word(name) &&
         std::find(kReservedNames.begin(), kReservedNames.end(), name) == kReservedNames.end();
}

std::string quoted(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

// A name where keywords are not ambiguous.
std::string word_text(std::string_view word) {
  return is_plain_word(word) ? std::string(word) : quoted(word);
}

// A size where a type or float is allowed: a symbol named like one of those is parenthesized.
std::string dim_attr_text(const DimExpr& dim) {
  std::string symbol;
  if (!dim.is_symbol(&symbol)) return dim.text();
  bool ambiguous = symbol == "inf" || symbol == "nan";
  for (int i = 0; i <= static_cast<int>(DType::UInt2); ++i) {
    const auto dtype = static_cast<DType>(i);
    ambiguous = ambiguous || symbol == name_of(dtype) || symbol == torch_name_of(dtype);
  }
  return ambiguous ? "(" + symbol + ")" : symbol;
}

template <class T, class ToText>
std::string joined(const std::vector<T>& items, std::string_view separator, ToText to_text) {
  std::string result;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) result += separator;
    result += to_text(items[i]);
  }
  return result;
}

std::string dims_text(const Dims& dims) {
  return "[" + joined(dims, ",", [](const DimExpr& d) { return d.text(); }) + "]";
}

std::string_view kind_word(InputKind kind) {
  switch (kind) {
    case InputKind::User: return "user";
    case InputKind::Parameter: return "param";
    case InputKind::Buffer: return "buffer";
    case InputKind::Constant: return "const";
    case InputKind::GradOutput: return "dy";
  }
  return "user";
}

// Printed names: those of the values, made unique.
class Names {
 public:
  Names() = default;  // for a single node: the values' own names
  explicit Names(const Graph& graph) {
    std::unordered_set<std::string> used;
    for (const Value* value : graph.values())
      if (!value->is_literal()) used.insert(value->name);
    std::unordered_set<std::string> given;
    for (const Value* value : graph.values()) {
      if (value->is_literal() || given.insert(value->name).second) continue;
      for (int i = 1;; ++i) {
        std::string candidate = str(value->name, "_", i);
        if (!used.insert(candidate).second) continue;
        given.insert(candidate);
        renamed_[value] = std::move(candidate);
        break;
      }
    }
  }

  std::string of(const Value& value) const {
    auto found = renamed_.find(&value);
    return name_text(found == renamed_.end() ? value.name : found->second);
  }

 private:
  std::unordered_map<const Value*, std::string> renamed_;
};

std::string scalar_text(const Scalar& scalar) {
  if (const auto* number = std::get_if<double>(&scalar)) return number_text(*number);
  return "{" + std::get<DimExpr>(scalar).text() + "}";
}

std::string operand_text(const Value* value, const Names& names, DType default_dtype) {
  if (!value) return "_";
  if (!value->is_literal()) return names.of(*value);
  std::string text = scalar_text(value->literal());
  if (value->dtype != default_dtype) text += str(":", name_of(value->dtype));
  return text;
}

std::string node_text(const Node& node, const Names& names, const PrintOptions& options) {
  std::string text;
  if (node.region == Region::Backward) text += "backward: ";
  if (!node.tag.empty()) text += "tag " + word_text(node.tag) + ": ";
  text += joined(node.outputs(), ", ", [&](const Value* output) {
    std::string result = names.of(*output);
    if (options.types && output->dtype != DType::Undefined) result += ": " + type_text(*output);
    return result;
  });
  text += str(node.outputs().empty() ? "= " : " = ", word_text(node.op));
  if (!node.attrs.empty()) {
    text += "<" +
            joined(node.attrs.entries(), ", ",
                   [](const auto& entry) {
                     return word_text(entry.first) + "=" + attr_text(entry.second);
                   }) +
            ">";
  }
  const DType literal_dtype = default_literal_dtype(node.inputs());
  text += " (" +
          joined(node.inputs(), ", ",
                 [&](const Value* input) { return operand_text(input, names, literal_dtype); }) +
          ")";
  if (options.origins && !(node.origin.module.empty() && node.origin.source.empty())) {
    std::string comment = "  // " + node.origin.module;
    if (!node.origin.source.empty()) comment += "  " + node.origin.source;
    std::replace(comment.begin(), comment.end(), '\n', ' ');
    text += comment;
  }
  return text;
}

std::string input_text(const GraphInput& input, const Names& names, const PrintOptions& options) {
  std::string type;
  auto add = [&](std::string_view word) { type += str(type.empty() ? "" : " ", word); };
  if (input.kind != InputKind::User || input.index >= 0) add(kind_word(input.kind));
  if (input.index >= 0) add(std::to_string(input.index));
  if (input.requires_grad) add("grad");
  if (options.types && input.value->dtype != DType::Undefined) add(type_text(*input.value));
  return names.of(*input.value) + (type.empty() ? "" : ": " + type);
}

std::string outputs_text(const Graph& graph, const Names& names) {
  int position = 0;
  return joined(graph.outputs(), ", ", [&](const GraphOutput& output) {
    const std::string value = operand_text(output.value, names, DType::Undefined);
    switch (output.kind) {
      case OutputKind::Mutation: return str("mutate ", output.index, ": ", value);
      case OutputKind::Gradient: return str("grad ", output.index, ": ", value);
      case OutputKind::Output: break;
    }
    return position++ == output.index ? value : str("out ", output.index, ": ", value);
  });
}

std::string signature(const Graph& graph, const Names& names, const PrintOptions& options) {
  return word_text(graph.name) + " (" +
         joined(graph.inputs(), ", ",
                [&](const GraphInput& input) { return input_text(input, names, options); }) +
         ") => (" + outputs_text(graph, names) + ")";
}

// `line_break` is "\n" for a whole graph and " " for one nested in an attribute.
std::string graph_text(const Graph& graph, const PrintOptions& options, std::string_view line_break,
                       std::string_view indent) {
  const Names names(graph);
  std::string text = signature(graph, names, options) + " {";
  text += line_break;
  for (const auto& node : graph.nodes()) {
    text += indent;
    text += node_text(*node, names, options);
    text += line_break;
  }
  return text + "}";
}

}  // namespace

std::string name_text(std::string_view name) {
  return is_plain_name(name) ? std::string(name) : quoted(name);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string attr_text(const Attr& attr) {
  if (const auto* dim = std::get_if<DimExpr>(&attr)) return dim_attr_text(*dim);
  if (const auto* dims = std::get_if<Dims>(&attr))
    return "[" + joined(*dims, ",", dim_attr_text) + "]";
  if (const auto* number = std::get_if<double>(&attr)) return number_text(*number);
  if (const auto* numbers = std::get_if<std::vector<double>>(&attr))
    return numbers->empty() ? "[]:f64" : "[" + joined(*numbers, ",", number_text) + "]";
  if (const auto* dtype = std::get_if<DType>(&attr)) return std::string(name_of(*dtype));
  if (const auto* text = std::get_if<std::string>(&attr)) {
    const bool placeholder = text->size() > 1 && text->front() == '@' &&
                             is_plain_word(std::string_view(*text).substr(1));
    return placeholder ? *text : quoted(*text);
  }
  const auto& graph = std::get<std::shared_ptr<const Graph>>(attr);
  return graph ? "{" + graph_text(*graph, {}, " ", "") + "}" : "{}";
}

DType default_literal_dtype(const std::vector<Value*>& operands) {
  DType result = DType::Undefined;
  for (const Value* input : operands) {
    if (!input || input->is_literal() || input->dtype == DType::Undefined) continue;
    if (input->dtype != DType::Bool) return input->dtype;
    result = DType::Bool;
  }
  return result;
}

std::string type_text(const Value& value) {
  return std::string(name_of(value.dtype)) + dims_text(value.dims);
}

std::string signature_text(const Graph& graph) { return signature(graph, Names(graph), {}); }

std::string print(const Node& node, const PrintOptions& options) {
  return node_text(node, Names(), options);
}

std::string print(const Graph& graph, const PrintOptions& options) {
  return graph_text(graph, options, "\n", "  ") + "\n";
}

}  // namespace ortmodule
