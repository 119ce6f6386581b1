// Canonical forms, so that later patterns need not match several. All rewrites are exact, because
// negation does not round.

#include "optimizer/cleanup/cleanup.h"
#include "optimizer/rewrite.h"

namespace ortmodule {

bool canonicalize(Graph& graph, PassContext& context) {
  static const std::vector<RewriteRule> rules = {
      {.name = "-(-x) is x",
       .pattern = "(x) => (y) { n = Neg (x)  y = Neg (n) }",
       .replacement = "(x) => (x) {}"},
      {.name = "not not x is x",
       .pattern = "(x) => (y) { n = Not (x)  y = Not (n) }",
       .replacement = "(x) => (x) {}"},
      {.name = "a + -b is a - b",
       .pattern = "(a, b) => (y) { n = Neg (b)  y = Add (a, n) }",
       .replacement = "(a, b) => (y) { y = Sub (a, b) }"},
      {.name = "a - -b is a + b",
       .pattern = "(a, b) => (y) { n = Neg (b)  y = Sub (a, n) }",
       .replacement = "(a, b) => (y) { y = Add (a, b) }"},
  };
  return apply_rules(graph, rules, context);
}

}  // namespace ortmodule
