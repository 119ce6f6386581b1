// Compiled rewrite rules. Internal to the matcher and the rewriter.
#pragma once

#include <set>

#include "optimizer/rewrite.h"

namespace ortmodule {

/// A pattern; `optional` and `literal` are the inputs marked `scale?` and `$c` in its signature.
struct Pattern {
  std::unique_ptr<Graph> graph;
  std::set<const Value*> optional;
  std::set<const Value*> literal;
  std::set<const Value*> exits;
  Node* root = nullptr;  // the last node, where matching begins
};

struct CompiledRule {
  const RewriteRule* rule = nullptr;
  Pattern pattern;
  std::unique_ptr<Graph> replacement;
  std::vector<const Value*> sources;  // per input of the replacement: the pattern's value
};

/// Parses the rule. Throws InternalError if its texts are inconsistent or name unknown ops.
CompiledRule compile(const RewriteRule& rule);

/// Why the most complete of the attempted bindings is not a match.
struct Failure {
  std::string reason;
  size_t depth = 0;       // number of nodes that matched
  bool complete = false;  // all of them
};

/// Whether the tree of operands above `root` has the pattern's ops and literals. A quick necessary
/// condition of a match.
bool could_match(const Pattern& pattern, const Node& root);

struct Found {
  Match match;
  Node* place = nullptr;  // insert the replacement before this node
};

/// Matches the pattern with its last node at `root`. Returns the first binding that passes all
/// checks and the rule's `reject`; otherwise fills `failure`.
std::optional<Found> match_at(const Graph& graph, const CompiledRule& rule, Node* root,
                              Failure& failure);

}  // namespace ortmodule
