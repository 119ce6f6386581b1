// Canonical forms, so that later patterns need not match several. All rewrites of graphs that train
// are exact, because negation does not round. In inference on the host, powers and quotients of
// roots, which files of others write in several ways, take one form as well: a root may then round
// once more.

#include "optimizer/cleanup/cleanup.h"
#include "optimizer/rewrite.h"

namespace ortmodule {
namespace {

Reason reject_integer(const Match& match) {
  if (!is_floating(match.dtype("x"))) return "x is an integer";
  if (match.dtype("x") != match.dtype("y")) return "the result has another type";
  return {};
}

// Only a root that is smaller than the quotient saves divisions.
Reason reject_full_size(const Match& match) {
  if (match.dims("v") == match.dims("y")) return "there is a root for each element";
  return {};
}

}  // namespace

bool canonicalize(Graph& graph, PassContext& context) {
  static const RuleSet rules = {
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
  static const RuleSet roots = {
      {.name = "x^2 is x x",
       .pattern = "(x) => (y) { y = Pow (x, 2.0) }",
       .replacement = "(x) => (y) { y = Mul (x, x) }",
       .reject = reject_integer},
      {.name = "x^3 is x x x",
       .pattern = "(x) => (y) { y = Pow (x, 3.0) }",
       .replacement = "(x) => (y) { square = Mul (x, x)  y = Mul (square, x) }",
       .reject = reject_integer},
      {.name = "1 / root",
       .pattern = "(x) => (y) { root = Sqrt (x)  y = Reciprocal (root) }",
       .replacement = "(x) => (y) { y = Rsqrt (x) }"},
      {.name = "1 divided by a root",
       .pattern = "(x) => (y) { root = Sqrt (x)  y = Div (1.0, root) }",
       .replacement = "(x) => (y) { y = Rsqrt (x) }"},
      {.name = "x divided by a root",
       .pattern = "(x, v) => (y) { root = Sqrt (v)  y = Div (x, root) }",
       .replacement = "(x, v) => (y) { inverse = Rsqrt (v)  y = Mul (x, inverse) }",
       .reject = reject_full_size},
  };
  bool changed = apply_rules(graph, rules, context);
  if (context.device() == Device::Host && !context.training())
    changed = apply_rules(graph, roots, context) || changed;
  return changed;
}

}  // namespace ortmodule
