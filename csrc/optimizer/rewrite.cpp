#include "optimizer/rewrite.h"

#include <map>

#include "base/error.h"
#include "ops/emit.h"
#include "optimizer/edit.h"
#include "optimizer/pattern.h"

namespace ortmodule {

// Replaces a match by the rule's replacement.
class Rewriter {
 public:
  Rewriter(Graph& graph, const CompiledRule& rule, Match& match)
      : graph_(graph), rule_(rule), match_(match) {}

  /// Why an exit cannot be replaced by an operand of the match.
  Reason cannot_replace_exits() {
    const Graph& replacement = *rule_.replacement;
    for (size_t i = 0; i < replacement.outputs().size(); ++i) {
      const Value* becomes = replacement.outputs()[i].value;
      if (!becomes->is_input()) continue;
      const Value* to = operand(becomes);
      const Value* from = exit(i);
      if (!from) continue;
      if (to->dtype != from->dtype || to->dims != from->dims)
        return str("types of ", from->name, " and ", to->name, " differ");
      if (Reason reason = cannot_replace(*from, *to, false)) return reason;
    }
    return {};
  }

  /// Builds the replacement before `place`; ids of the erased nodes go to `erased`.
  void replace(Node* place, std::vector<int>& erased) {
    if (rule_.rule->derive) rule_.rule->derive(match_);
    const Graph& replacement = *rule_.replacement;
    for (const GraphInput& input : replacement.inputs()) made_[input.value] = operand(input.value);
    {
      Graph::Inserting here(graph_, place);
      graph_.current_origin = match_.root()->origin;
      graph_.current_region = match_.root()->region;
      graph_.current_tag = match_.root()->tag;
      for (const auto& node : replacement.nodes()) make(*node);
      graph_.current_tag.clear();
    }
    std::vector<std::pair<Value*, std::string>> renamed;
    for (size_t i = 0; i < replacement.outputs().size(); ++i) {
      const Value* becomes = replacement.outputs()[i].value;
      if (!exit(i)) continue;
      if (!becomes->is_input()) renamed.emplace_back(made_.at(becomes), exit(i)->name);
      take_over(exit(i), made_.at(becomes));
    }
    erase_if_dead(graph_, match_.nodes_, erased);
    // For readable graphs, the new outputs take over the names.
    for (const auto& [value, name] : renamed) value->name = name;
  }

 private:
  Value* operand(const Value* input) {
    const auto at = static_cast<size_t>(input->input_index());
    return match_.values_[static_cast<size_t>(rule_.sources[at]->id())];
  }

  // Null if the matched node lacks this optional output.
  Value* exit(size_t i) {
    const Value* exit = rule_.pattern.graph->outputs()[i].value;
    return match_.values_[static_cast<size_t>(exit->id())];
  }

  void make(const Node& node) {
    Values operands;
    for (const Value* input : node.inputs()) {
      // A literal of the replacement has the type of the match's result.
      if (input && input->is_literal())
        operands.push_back(graph_.literal(input->literal(), match_.root()->output()->dtype));
      else
        operands.push_back(input ? made_.at(input) : nullptr);
    }
    while (!operands.empty() && !operands.back()) operands.pop_back();
    Node* fresh = emit_node(graph_, node.op, operands, attrs_of(node), node.outputs().size());
    for (size_t i = 0; i < node.outputs().size(); ++i) made_[node.output(i)] = fresh->output(i);
  }

  Attrs attrs_of(const Node& node) {
    Attrs attrs = node.attrs;
    for (const auto& [name, value] : node.attrs.entries()) {
      const auto* text = std::get_if<std::string>(&value);
      if (!text || !text->starts_with('@')) continue;
      const std::string_view source = std::string_view(*text).substr(1);
      if (const Attr* captured = match_.attrs().find(source))
        attrs.set(name, *captured);
      else if (is_literal_name(source))
        attrs.set(name, match_.number(source));
      else
        attrs.erase(name);  // absent in the match: the op's default applies
    }
    return attrs;
  }

  bool is_literal_name(std::string_view name) {
    for (const Value* value : rule_.pattern.literal)
      if (value->name == name) return true;
    return false;
  }

  void take_over(Value* from, Value* to) {
    ORTM_ASSERT(from->dtype == to->dtype && from->rank() == to->rank(), "rule ", rule_.rule->name,
                " changes the type of ", from->name);
    if (!to->is_input()) to->dims = from->dims;
    graph_.replace_all_uses(from, to);
  }

  Graph& graph_;
  const CompiledRule& rule_;
  Match& match_;
  std::map<const Value*, Value*> made_;
};

namespace {

bool apply_at(Graph& graph, const CompiledRule& rule, Node* node, PassContext& context,
              std::vector<int>& erased) {
  if (!context.partial_reasons() && !could_match(rule.pattern, *node)) return false;
  Failure failure;
  std::optional<Found> found = match_at(graph, rule, node, failure);
  if (!found) {
    context.reject(rule.rule->name, failure.reason, *node, failure.complete);
    return false;
  }
  Rewriter rewriter(graph, rule, found->match);
  if (Reason reason = rewriter.cannot_replace_exits()) {
    context.reject(rule.rule->name, *reason, *node, true);
    return false;
  }
  if (!context.take()) return false;
  rewriter.replace(found->place, erased);
  return true;
}

// One walk over the present nodes. New nodes are visited by the next walk.
bool apply_once(Graph& graph, const CompiledRule& rule, PassContext& context) {
  std::vector<std::pair<int, Node*>> nodes;
  for (const auto& node : graph.nodes())
    if (node->op == rule.pattern.root->op) nodes.emplace_back(node->id(), node.get());
  std::set<int> gone;
  bool changed = false;
  for (const auto& [id, node] : nodes) {
    if (gone.contains(id)) continue;
    if (context.out_of_fuel()) break;
    std::vector<int> erased;
    changed = apply_at(graph, rule, node, context, erased) || changed;
    gone.insert(erased.begin(), erased.end());
    for (int id_gone : erased) context.forget(id_gone);
  }
  return changed;
}

// Never destroyed: rule sets of other files unregister while the process ends.
struct RuleSets {
  std::mutex mutex;
  std::set<const RuleSet*> all;
};

RuleSets& rule_sets() {
  static auto& sets = *new RuleSets;
  return sets;
}

std::map<std::string_view, Fusion>& fusions() {
  static std::map<std::string_view, Fusion> registry;
  return registry;
}

}  // namespace

RuleSet::RuleSet(std::initializer_list<RewriteRule> rules) : rules_(rules) {
  const std::lock_guard lock(rule_sets().mutex);
  rule_sets().all.insert(this);
}

RuleSet::~RuleSet() {
  const std::lock_guard lock(rule_sets().mutex);
  rule_sets().all.erase(this);
}

std::shared_ptr<const std::vector<CompiledRule>> RuleSet::compiled() const {
  const std::lock_guard lock(mutex_);
  if (!compiled_) {
    std::vector<CompiledRule> compiled;
    for (const RewriteRule& rule : rules_) compiled.push_back(compile(rule));
    compiled_ = std::make_shared<const std::vector<CompiledRule>>(std::move(compiled));
  }
  return compiled_;
}

void forget_compiled_rules() {
  const std::lock_guard lock(rule_sets().mutex);
  for (const RuleSet* set : rule_sets().all) {
    const std::lock_guard held(set->mutex_);
    set->compiled_.reset();
  }
}

bool apply_rules(Graph& graph, const RuleSet& rules, PassContext& context) {
  const std::shared_ptr<const std::vector<CompiledRule>> compiled = rules.compiled();
  // Far more walks than any chain of rewrites needs; only rules that undo each other reach it.
  constexpr int kMostWalks = 100;
  bool changed = false;
  for (int walk = 0; walk < kMostWalks; ++walk) {
    bool again = false;
    for (const CompiledRule& rule : *compiled) again = apply_once(graph, rule, context) || again;
    if (!again) return changed;
    changed = true;
  }
  throw InternalError(str("internal error, please report it: the rules around ",
                          compiled->front().rule->name, " do not terminate"));
}

std::vector<const Fusion*> all_fusions() {
  std::vector<const Fusion*> all;
  for (const auto& [name, fusion] : fusions()) all.push_back(&fusion);
  return all;
}

const Fusion& fusion_named(std::string_view name) {
  const auto found = fusions().find(name);
  if (found != fusions().end()) return found->second;
  std::string all;
  for (const auto& [known, fusion] : fusions()) all += str(all.empty() ? "" : ", ", known);
  throw Error(str("[optimizer] a fusion must exist, but found '", name, "'; fusions are ", all));
}

Pass pass_of(const Fusion& fusion) {
  if (fusion.run) return {std::string(fusion.name), fusion.run};
  return {std::string(fusion.name), [&fusion](Graph& graph, PassContext& context) {
            return apply_rules(graph, *fusion.rules, context);
          }};
}

FusionRegistrar::FusionRegistrar(std::string_view name, const RuleSet& rules) {
  fusions().emplace(name, Fusion{name, &rules, nullptr});
}

FusionRegistrar::FusionRegistrar(std::string_view name, bool (*run)(Graph&, PassContext&)) {
  fusions().emplace(name, Fusion{name, nullptr, run});
}

}  // namespace ortmodule
