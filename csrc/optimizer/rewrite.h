// Rewrite rules as text. Pattern and replacement are graphs in the text notation (ir/text.h):
//
//   pattern      (x, bias, scale?, $c) => (y, s) { s = Add (x, bias)  y = Gelu<approximate=@a> (s)
//   } replacement  (x, bias) => (y, s) { y, s = BiasGelu<approximate=@a, alpha=@c> (x, bias) }
//
// In the signature of a pattern `x` binds any value, `scale?` also an absent operand, `$c` only a
// literal number. A number as an operand matches an equal literal. An attribute must equal the
// written value; `@a` captures any value, or its absence; an attribute that is not written must be
// absent or the op's default. The first two operands of a commutative op match in both orders.
// The outputs of the pattern are its exits; the outputs of the replacement replace them by
// position. All other values must have no readers outside the match, except results of views: the
// view stays for them. The replacement reads any of the pattern's inputs and may use `@a`, also for
// the number captured by `$a`. An exit may be an input: `(x) => (x) {}`.
#pragma once

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/pass.h"

namespace ortmodule {

struct CompiledRule;
struct Pattern;

/// A binding of a pattern to nodes and values of a graph. Names are those of the pattern.
class Match {
 public:
  explicit Match(const Pattern& pattern);

  /// The value bound to a name; null for an absent optional operand. Throws InternalError if the
  /// pattern has no such name.
  Value* value(std::string_view name) const;
  bool has(std::string_view name) const { return value(name) != nullptr; }
  size_t rank(std::string_view name) const { return value(name)->rank(); }
  const Dims& dims(std::string_view name) const { return value(name)->dims; }
  DType dtype(std::string_view name) const { return value(name)->dtype; }
  /// The number captured by `$name`.
  double number(std::string_view name) const;
  /// Captured attributes, and those that `derive` adds.
  const Attrs& attrs() const { return attrs_; }
  void set(std::string_view name, Attr attr) { attrs_.set(name, std::move(attr)); }
  /// The node bound to the last node of the pattern, where matching began.
  Node* root() const;

 private:
  friend class Matcher;
  friend class Rewriter;
  const Pattern* pattern_;
  std::vector<Value*> values_;  // by value id of the pattern
  std::vector<bool> bound_;
  std::vector<Node*> nodes_;  // by node id of the pattern
  Attrs attrs_;
};

/// A rewrite rule as written in a fusion's file; see the top of this file.
struct RewriteRule {
  std::string_view name = {};
  std::string_view pattern = {};
  std::string_view replacement = {};
  /// Instead of a replacement: an op with the pattern's inputs, exits and captured attributes.
  /// Without a pattern, the body of the op is the pattern.
  std::string_view fused_op = {};
  /// Why a complete binding must not be rewritten. Called for each order of operands.
  Reason (*reject)(const Match&) = nullptr;
  /// Computes further attributes of the replacement from the match.
  void (*derive)(Match&) = nullptr;
};

/// Rules that are applied together. Their texts are read when they are first applied. Thread-safe.
class RuleSet {
 public:
  RuleSet(std::initializer_list<RewriteRule> rules);
  ~RuleSet();
  RuleSet(const RuleSet&) = delete;
  RuleSet& operator=(const RuleSet&) = delete;

  std::shared_ptr<const std::vector<CompiledRule>> compiled() const;

 private:
  friend void forget_compiled_rules();

  std::vector<RewriteRule> rules_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const std::vector<CompiledRule>> compiled_;
};

/// Frees what was read of the texts of all rules, until they are applied again: thousands of small
/// blocks, made while the heap is full of a model, each of which may keep a page resident.
void forget_compiled_rules();

/// Applies the rules in order, each over the whole graph, until none matches. Returns whether the
/// graph changed. The report gets a reason for every node where all of a pattern matched but the
/// rule did not apply, and with `OptimizerOptions::partial_reasons` for every node where a rule
/// could start.
bool apply_rules(Graph& graph, const RuleSet& rules, PassContext& context);

/// A pass made of rules, or of code where rules cannot express the rewrite.
struct Fusion {
  std::string_view name;  // imperative: "fuse_bias_gelu"
  const RuleSet* rules = nullptr;
  bool (*run)(Graph&, PassContext&) = nullptr;
};

/// The registered fusions in order of their names. A fusion's file ends with REGISTER_FUSION.
std::vector<const Fusion*> all_fusions();
/// The fusion of that name. Throws Error, listing all names, if there is none.
const Fusion& fusion_named(std::string_view name);
Pass pass_of(const Fusion& fusion);

class FusionRegistrar {
 public:
  FusionRegistrar(std::string_view name, const RuleSet& rules);
  FusionRegistrar(std::string_view name, bool (*run)(Graph&, PassContext&));
};

}  // namespace ortmodule

/// REGISTER_FUSION(fuse_bias_gelu, kRules) with a RuleSet or a function.
#define REGISTER_FUSION(fusion_name, what) \
  static const ::ortmodule::FusionRegistrar registrar_##fusion_name(#fusion_name, what)
