// Rewrite rules as text. A pattern is a graph in the text notation (ir/text.h), so is what takes
// its place:
//
//   pattern      (x, bias, scale?, $c) => (y, s) { s = Add (x, bias)  y = Gelu<approximate=@a> (s)
//   } replacement  (x, bias) => (y, s) { y, s = BiasGelu<approximate=@a, alpha=@c> (x, bias) }
//
// In a pattern's signature `x` binds any value, `scale?` also an absent operand, `$c` a literal
// number only. A number as operand matches an equal literal. An attribute must be as written; `@a`
// captures whatever stands there, also nothing; one that is not written must have the op's default
// or be absent. The first two operands of a commutative op are tried in both orders. Outputs of the
// pattern are its exits, which the replacement's outputs replace by position; every other value
// must be read inside the match only, unless a view makes it: that one stays for its other readers.
// The replacement names what it needs of the pattern's inputs and may use `@a`, also for the number
// captured by `$a`. An exit may be an input: `(x) => (x) {}`.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/pass.h"

namespace ortmodule {

struct Pattern;

/// A binding of a pattern to a part of a graph. Names are those of the pattern.
class Match {
 public:
  explicit Match(const Pattern& pattern);

  /// The value bound to a name, null for an absent optional operand; InternalError if there is no
  /// such name.
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
  /// The node bound to the last node of the pattern: where the match began.
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

struct RewriteRule {
  std::string_view name = {};
  std::string_view pattern = {};
  std::string_view replacement = {};
  /// Instead of the replacement: this op with the pattern's inputs, exits and captured attributes;
  /// without a pattern, the op's own body is the pattern.
  std::string_view fused_op = {};
  /// Why a complete binding is not what the rule means. Asked for each order of operands.
  Reason (*reject)(const Match&) = nullptr;
  /// Adds attributes for the replacement that are computed from the match.
  void (*derive)(Match&) = nullptr;
};

/// Applies the rules, in the order given and each over the whole graph, until none matches. Every
/// node at which a rule could have begun and did not is in the report with its reason.
bool apply_rules(Graph& graph, std::span<const RewriteRule> rules, PassContext& context);

/// A group of rules, or code for what text cannot say, that runs as one pass.
struct Fusion {
  std::string_view name;  // imperative: "fuse_bias_gelu"
  std::vector<RewriteRule> rules;
  bool (*run)(Graph&, PassContext&) = nullptr;
};

/// The registered fusions by name. A fusion's file ends with REGISTER_FUSION.
std::vector<const Fusion*> all_fusions();
/// The fusion of that name; Error that lists all if there is none.
const Fusion& fusion_named(std::string_view name);
Pass pass_of(const Fusion& fusion);

class FusionRegistrar {
 public:
  FusionRegistrar(std::string_view name, std::vector<RewriteRule> rules);
  FusionRegistrar(std::string_view name, bool (*run)(Graph&, PassContext&));
};

}  // namespace ortmodule

/// REGISTER_FUSION(fuse_bias_gelu, kRules) with a std::vector<RewriteRule>, or with a function.
#define REGISTER_FUSION(fusion_name, what) \
  static const ::ortmodule::FusionRegistrar registrar_##fusion_name(#fusion_name, what)
