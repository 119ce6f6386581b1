// Ops that gradients of gradients take apart, since their first gradients have none: those are
// results of the forward op, or kernels of their own. Nothing but such a pass sees the parts.
#pragma once

#include <map>
#include <string_view>

#include "ops/emit.h"

namespace ortmodule {

/// Adds the parts of a node to a graph, on these operands. Returns its first results; the others,
/// which only its own gradient reads, have no reader.
using SpellOut = Values (*)(Graph& graph, const Node& node, const Values& operands);

/// By op.
inline std::map<std::string_view, SpellOut>& spelled_out_ops() {
  static std::map<std::string_view, SpellOut> ops;
  return ops;
}

/// How the op is taken apart, or null.
inline SpellOut find_spelled_out(std::string_view op) {
  const auto found = spelled_out_ops().find(op);
  return found == spelled_out_ops().end() ? nullptr : found->second;
}

inline bool register_spelled_out(std::string_view op, SpellOut spell) {
  return spelled_out_ops().emplace(op, spell).second;
}

}  // namespace ortmodule
