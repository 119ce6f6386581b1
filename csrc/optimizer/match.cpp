// The pattern matcher. It backtracks with continuations: a step that succeeds calls the rest of the
// match; if the rest fails, or the rule's `reject` does, the next order of operands is tried.

#include <algorithm>
#include <functional>

#include "ir/text.h"
#include "ops/op_def.h"
#include "optimizer/edit.h"
#include "optimizer/pattern.h"

namespace ortmodule {

Match::Match(const Pattern& pattern)
    : pattern_(&pattern),
      values_(static_cast<size_t>(pattern.graph->value_id_bound()), nullptr),
      bound_(values_.size(), false),
      nodes_(static_cast<size_t>(pattern.graph->node_id_bound()), nullptr) {}

Value* Match::value(std::string_view name) const {
  for (const Value* value : pattern_->graph->values())
    if (!value->is_literal() && value->name == name)
      return values_[static_cast<size_t>(value->id())];
  throw InternalError(str("internal error, please report it: no value ", name, " in a pattern"));
}

double Match::number(std::string_view name) const {
  const Value* bound = value(name);
  ORTM_ASSERT(bound && bound->is_literal(), "pattern value ", name, " is not a literal");
  const std::optional<double> number = number_of(bound->literal());
  ORTM_ASSERT(number, "pattern value ", name, " is a size");
  return *number;
}

Node* Match::root() const { return nodes_[static_cast<size_t>(pattern_->root->id())]; }

namespace {

bool could_match_node(const Pattern& whole, const Node& pattern, const Node& node);

bool could_match_value(const Pattern& whole, const Value* pattern, const Value* value) {
  if (!pattern || !value) return !value && (!pattern || whole.optional.contains(pattern));
  if (pattern->is_literal())
    return value->is_literal() && is_number(value->literal(), *number_of(pattern->literal()));
  if (pattern->is_input()) return value->is_literal() || !whole.literal.contains(pattern);
  return value->producer() && value->output_index() == pattern->output_index() &&
         could_match_node(whole, *pattern->producer(), *value->producer());
}

bool could_match_node(const Pattern& whole, const Node& pattern, const Node& node) {
  if (node.op != pattern.op) return false;
  const auto fits = [&](size_t i, size_t operand) {
    return could_match_value(whole, pattern.input(i), node.input(operand));
  };
  const size_t count = std::max(pattern.inputs().size(), node.inputs().size());
  for (size_t i = 2; i < count; ++i)
    if (!fits(i, i)) return false;
  if (fits(0, 0) && fits(1, 1)) return true;
  const OpDef* op = node.inputs().size() < 2 ? nullptr : find_op(node.op);
  return op && op->commutative && fits(0, 1) && fits(1, 0);
}

}  // namespace

bool could_match(const Pattern& pattern, const Node& root) {
  return could_match_node(pattern, *pattern.root, root);
}

using Accept = std::function<bool(Match&)>;

class Matcher {
 public:
  Matcher(const Graph& graph, const CompiledRule& rule, Failure& failure)
      : graph_(graph), rule_(rule), pattern_(rule.pattern), failure_(failure) {}

  std::optional<Found> match(Node* root) {
    std::optional<Found> found;
    match_node(*pattern_.root, root, Match(pattern_), [&](Match& match) {
      return match_rest(match, [&](Match& complete) {
        if (!accept(complete)) return false;
        found = Found{std::move(complete), place_};
        return true;
      });
    });
    return found;
  }

 private:
  bool fail(const Match& match, const std::string& reason, bool complete = false) {
    const auto bound = std::count_if(match.nodes_.begin(), match.nodes_.end(),
                                     [](const Node* node) { return node != nullptr; });
    const size_t depth = static_cast<size_t>(bound) + (complete ? 1 : 0);
    if (depth > failure_.depth || failure_.reason.empty()) failure_ = {reason, depth, complete};
    return false;
  }

  static Value*& slot(Match& match, const Value* pattern) {
    return match.values_[static_cast<size_t>(pattern->id())];
  }

  static bool is_bound(const Match& match, const Value* pattern) {
    return match.bound_[static_cast<size_t>(pattern->id())];
  }

  static void bind(Match& match, const Value* pattern, Value* value) {
    slot(match, pattern) = value;
    match.bound_[static_cast<size_t>(pattern->id())] = true;
  }

  bool match_value(const Value* pattern, Value* value, Match match, const Accept& rest) {
    if (!pattern) return value ? fail(match, "an optional operand is present") : rest(match);
    if (pattern->is_literal()) {
      const std::optional<double> number = number_of(pattern->literal());
      ORTM_ASSERT(number, "a literal of a pattern must be a number");
      const bool equal = value && value->is_literal() && is_number(value->literal(), *number);
      return equal ? rest(match) : fail(match, str("no literal ", *number));
    }
    if (is_bound(match, pattern)) {
      if (slot(match, pattern) == value) return rest(match);
      return fail(match, str("two occurrences of ", pattern->name, " are different values"));
    }
    if (pattern->is_input()) return match_input(pattern, value, std::move(match), rest);
    if (!value || !value->producer() || value->output_index() != pattern->output_index())
      return fail(match,
                  str("operand ", pattern->name, " is not produced by ", pattern->producer()->op));
    return match_node(*pattern->producer(), value->producer(), std::move(match), rest);
  }

  bool match_input(const Value* pattern, Value* value, Match match, const Accept& rest) {
    if (!value && !pattern_.optional.contains(pattern))
      return fail(match, str("operand ", pattern->name, " is absent"));
    if (pattern_.literal.contains(pattern) &&
        !(value && value->is_literal() && number_of(value->literal())))
      return fail(match, str("operand ", pattern->name, " is not a literal number"));
    bind(match, pattern, value);
    return rest(match);
  }

  bool match_attrs(const Node& pattern, const Node& node, Match& match) {
    for (const auto& [name, wanted] : pattern.attrs.entries()) {
      const Attr* found = node.attrs.find(name);
      const auto* text = std::get_if<std::string>(&wanted);
      if (!text || !text->starts_with('@')) {
        if (found && *found == wanted) continue;
        return fail(match,
                    str("attribute ", name, " of ", node.op, " is ",
                        found ? attr_text(*found) : "absent", ", expected ", attr_text(wanted)));
      }
      const std::string_view capture = std::string_view(*text).substr(1);
      const Attr* before = match.attrs_.find(capture);
      if (before && !(found && *found == *before))
        return fail(match, str("attribute ", name, " of ", node.op, " differs inside the match"));
      if (found) match.attrs_.set(capture, *found);
    }
    for (const auto& [name, attr] : node.attrs.entries())
      if (!pattern.attrs.has(name))
        return fail(match, str("attribute ", name, " of ", node.op, " is present"));
    return true;
  }

  bool match_node(const Node& pattern, Node* node, Match match, const Accept& rest) {
    Node*& slot = match.nodes_[static_cast<size_t>(pattern.id())];
    if (slot == node) return rest(match);
    if (slot || std::count(match.nodes_.begin(), match.nodes_.end(), node))
      return fail(match, str(node->op, " would match two nodes of the pattern"));
    if (node->op != pattern.op) return fail(match, str(node->op, " is not ", pattern.op));
    if (!match_attrs(pattern, *node, match)) return false;
    slot = node;
    for (size_t i = 0; i < pattern.outputs().size() && i < node->outputs().size(); ++i)
      bind(match, pattern.output(i), node->output(i));
    const std::vector<Value*>& operands = node->inputs();
    if (match_operands(pattern, operands, 0, match, rest)) return true;
    const OpDef* op = find_op(node->op);
    if (!op || !op->commutative || operands.size() < 2 || operands[0] == operands[1]) return false;
    std::vector<Value*> swapped = operands;
    std::swap(swapped[0], swapped[1]);
    return match_operands(pattern, swapped, 0, match, rest);
  }

  bool match_operands(const Node& pattern, const std::vector<Value*>& operands, size_t i,
                      Match match, const Accept& rest) {
    if (i >= std::max(pattern.inputs().size(), operands.size())) return rest(match);
    Value* operand = i < operands.size() ? operands[i] : nullptr;
    return match_value(pattern.input(i), operand, std::move(match), [&](Match& next) {
      return match_operands(pattern, operands, i + 1, next, rest);
    });
  }

  // Finds pattern nodes that the root does not depend on among the readers of bound values.
  bool match_rest(const Match& match, const Accept& rest) {
    for (const auto& pattern : pattern_.graph->nodes()) {
      if (match.nodes_[static_cast<size_t>(pattern->id())]) continue;
      for (const Value* operand : pattern->inputs()) {
        if (!operand || operand->is_literal() || !is_bound(match, operand)) continue;
        const Value* bound = match.values_[static_cast<size_t>(operand->id())];
        if (!bound) continue;
        for (const Use& use : std::vector<Use>(bound->uses()))
          if (match_node(*pattern, use.node, match,
                         [&](Match& next) { return match_rest(next, rest); }))
            return true;
        return false;
      }
    }
    Match complete = match;
    return rest(complete);
  }

  bool accept(Match& match) {
    for (auto check : {&Matcher::check_values, &Matcher::check_places, &Matcher::check_order})
      if (Reason reason = (this->*check)(match)) return fail(match, *reason, true);
    if (!rule_.rule->reject) return true;
    if (Reason reason = rule_.rule->reject(match)) return fail(match, *reason, true);
    return true;
  }

  static bool is_matched(const Match& match, const Node* node) {
    return std::count(match.nodes_.begin(), match.nodes_.end(), node) > 0;
  }

  bool is_exit(const Match& match, const Value* value) {
    return std::any_of(pattern_.exits.begin(), pattern_.exits.end(), [&](const Value* exit) {
      return match.values_[static_cast<size_t>(exit->id())] == value;
    });
  }

  Reason check_values(const Match& match) {
    for (const Node* node : match.nodes_) {
      if (node != match.root() && is_view(*node)) continue;
      for (const Value* value : node->outputs()) {
        if (is_exit(match, value)) continue;
        if (value->is_graph_output()) return str("value ", value->name, " is a graph output");
        for (const Use& use : value->uses())
          if (!is_matched(match, use.node))
            return str("value ", value->name, " is read outside the match");
      }
    }
    return {};
  }

  // All matched nodes must have the region and the checkpoint tag of the root; views may differ.
  Reason check_places(const Match& match) {
    const Node& root = *match.root();
    for (const Node* node : match.nodes_) {
      if (is_view(*node)) continue;
      if (node->region != root.region)
        return str("value ", node->output()->name, " crosses from forward to backward");
      if (node->tag != root.tag)
        return str("value ", node->output()->name, " crosses a checkpoint boundary");
    }
    return {};
  }

  // Finds a place for the replacement: after all operands, before all readers of the exits.
  Reason check_order(const Match& match) {
    place_ = match.root();
    if (pattern_.exits.size() < 2) return {};
    std::vector<int> position(static_cast<size_t>(graph_.node_id_bound()), 0);
    int next = 0;
    for (const auto& node : graph_.nodes()) position[static_cast<size_t>(node->id())] = next++;
    auto at = [&](const Node* node) { return position[static_cast<size_t>(node->id())]; };
    for (Node* node : match.nodes_)
      if (at(node) > at(place_)) place_ = node;
    for (const Value* exit : pattern_.exits) {
      const Value* bound = match.values_[static_cast<size_t>(exit->id())];
      if (!bound) continue;
      for (const Use& use : bound->uses())
        if (!is_matched(match, use.node) && at(use.node) < at(place_)) place_ = use.node;
    }
    for (const GraphInput& input : pattern_.graph->inputs()) {
      const Value* bound = match.values_[static_cast<size_t>(input.value->id())];
      if (bound && bound->producer() && at(bound->producer()) >= at(place_))
        return str("operand ", bound->name, " is computed after a reader of the match");
    }
    return {};
  }

  const Graph& graph_;
  const CompiledRule& rule_;
  const Pattern& pattern_;
  Failure& failure_;
  Node* place_ = nullptr;
};

std::optional<Found> match_at(const Graph& graph, const CompiledRule& rule, Node* root,
                              Failure& failure) {
  return Matcher(graph, rule, failure).match(root);
}

}  // namespace ortmodule
