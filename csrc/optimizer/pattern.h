// A rule's texts, read and checked. Used by the matcher and the rewriter alone.
#pragma once

#include <set>

#include "optimizer/rewrite.h"

namespace ortmodule {

/// A pattern with its markers: `scale?` and `$c` of the signature.
struct Pattern {
  std::unique_ptr<Graph> graph;
  std::set<const Value*> optional;
  std::set<const Value*> literal;
  std::set<const Value*> exits;
  Node* root = nullptr;  // the last node: matching begins at it
};

struct CompiledRule {
  const RewriteRule* rule = nullptr;
  Pattern pattern;
  std::unique_ptr<Graph> replacement;
  std::vector<const Value*> sources;  // per input of the replacement: the pattern's value
};

/// Reads the rule; InternalError if its texts contradict each other or the ops they name.
CompiledRule compile(const RewriteRule& rule);

/// Why the most complete of the bindings that were tried is no match.
struct Failure {
  std::string reason;
  size_t depth = 0;       // nodes that did match
  bool complete = false;  // all of them
};

struct Found {
  Match match;
  Node* place = nullptr;  // the replacement stands before it
};

/// Looks for the pattern with its last node at `root`. The first binding that all checks and the
/// rule's `reject` accept is returned; otherwise `failure` is filled.
std::optional<Found> match_at(const Graph& graph, const CompiledRule& rule, Node* root,
                              Failure& failure);

}  // namespace ortmodule
