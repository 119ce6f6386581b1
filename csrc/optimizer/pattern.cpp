#include "optimizer/pattern.h"

#include <algorithm>
#include <cctype>

#include "ir/text.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// A pattern's text without markers, and the names that had them.
struct Marked {
  std::string text;
  std::vector<std::string> optional;
  std::vector<std::string> literal;
};

Marked read_markers(std::string_view text) {
  const size_t arrow = std::min(text.find("=>"), text.size());
  Marked marked;
  std::string word;
  bool is_literal = false;
  for (char c : text.substr(0, arrow)) {
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      word += c;
      marked.text += c;
      continue;
    }
    if (is_literal) marked.literal.push_back(word);
    is_literal = c == '$';
    if (c == '?') marked.optional.push_back(word);
    word.clear();
    if (c != '?' && c != '$') marked.text += c;
  }
  marked.text += text.substr(arrow);
  return marked;
}

Value* input_named(const Graph& graph, std::string_view name) {
  for (const GraphInput& input : graph.inputs())
    if (input.value->name == name) return input.value;
  return nullptr;
}

std::string plain(std::string_view name) {
  return std::string(name.ends_with('?') ? name.substr(0, name.size() - 1) : name);
}

// Sets the attributes that the text leaves out to the op's defaults.
void complete_attrs(const Graph& graph, const RewriteRule& rule) {
  for (Node* node : graph.node_pointers()) {
    const OpDef* op = find_op(node->op);
    ORTM_ASSERT(op, "rule ", rule.name, " names the unknown op ", node->op);
    for (const auto& [name, value] : op->attrs.entries())
      if (!node->attrs.has(name)) node->attrs.set(name, value);
  }
}

Pattern compile_pattern(const RewriteRule& rule) {
  const OpDef* op = rule.fused_op.empty() ? nullptr : find_op(rule.fused_op);
  const bool from_body = rule.pattern.empty();
  ORTM_ASSERT(!from_body || (op && !op->body.empty()), "rule ", rule.name, " has no pattern");
  Marked marked = read_markers(from_body ? op->body : rule.pattern);
  if (from_body)
    for (std::string_view input : op->inputs)
      if (input.ends_with('?')) marked.optional.push_back(plain(input));
  Pattern pattern;
  pattern.graph = parse_graph(marked.text);
  const Graph& graph = *pattern.graph;
  ORTM_ASSERT(graph.node_count() > 0, "the pattern of rule ", rule.name, " is empty");
  complete_attrs(graph, rule);
  for (const std::string& name : marked.optional) pattern.optional.insert(input_named(graph, name));
  for (const std::string& name : marked.literal) pattern.literal.insert(input_named(graph, name));
  for (const GraphOutput& output : graph.outputs()) pattern.exits.insert(output.value);
  pattern.root = graph.nodes().back().get();
  return pattern;
}

// `(x, bias) => (y) { y = Op<a=@a> (x, bias) }`
std::string call_of(const RewriteRule& rule, const Pattern& pattern) {
  const OpDef& op = op_def(rule.fused_op);
  std::string inputs;
  std::string operands;
  for (std::string_view input : op.inputs) {
    const std::string name = plain(input);
    const bool given = input_named(*pattern.graph, name) != nullptr;
    if (given) inputs += (inputs.empty() ? "" : ", ") + name;
    operands += (operands.empty() ? "" : ", ") + (given ? name : "_");
  }
  while (operands.ends_with(", _")) operands.resize(operands.size() - 3);
  std::set<std::string> captured;
  for (const auto& node : pattern.graph->nodes())
    for (const auto& [name, attr] : node->attrs.entries())
      if (const auto* text = std::get_if<std::string>(&attr); text && text->starts_with('@'))
        captured.insert(text->substr(1));
  std::string attrs;
  for (const std::string& name : captured)
    attrs += str(attrs.empty() ? "" : ", ", name, "=@", name);
  std::string results;
  std::string outputs;
  for (std::string_view output : op.outputs) {
    const std::string name = plain(output);
    const auto& exits = pattern.exits;
    const bool given = std::any_of(exits.begin(), exits.end(),
                                   [&](const Value* exit) { return exit->name == name; });
    results += (results.empty() ? "" : ", ") + (given ? name : "_");
  }
  for (const GraphOutput& output : pattern.graph->outputs())
    outputs += (outputs.empty() ? "" : ", ") + output.value->name;
  return str("(", inputs, ") => (", outputs, ") { ", results, " = ", op.name, "<", attrs, "> (",
             operands, ") }");
}

}  // namespace

CompiledRule compile(const RewriteRule& rule) {
  CompiledRule compiled;
  compiled.rule = &rule;
  compiled.pattern = compile_pattern(rule);
  compiled.replacement = rule.replacement.empty() ? parse_graph(call_of(rule, compiled.pattern))
                                                  : parse_graph(rule.replacement);
  const Graph& pattern = *compiled.pattern.graph;
  const Graph& replacement = *compiled.replacement;
  for (const GraphInput& input : replacement.inputs()) {
    const Value* source = input_named(pattern, input.value->name);
    ORTM_ASSERT(source, "the replacement of rule ", rule.name, " reads ", input.value->name,
                ", which is not an input of the pattern");
    compiled.sources.push_back(source);
  }
  ORTM_ASSERT(replacement.outputs().size() == pattern.outputs().size(), "rule ", rule.name,
              " replaces ", pattern.outputs().size(), " exits by ", replacement.outputs().size());
  return compiled;
}

}  // namespace ortmodule
