// Removes casts to the same type, and the inner cast of Cast(Cast(x)) if it only widens: then the
// outer one rounds x itself.

#include "ops/emit.h"
#include "optimizer/cleanup/cleanup.h"
#include "optimizer/edit.h"

namespace ortmodule {
namespace {

// Bits that hold an integer or a significand exactly.
int exact_bits(DType dtype) {
  switch (dtype) {
    case DType::Bool: return 1;
    case DType::UInt8: return 8;
    case DType::Int8: return 7;
    case DType::UInt16: return 16;
    case DType::UInt32: return 32;
    case DType::UInt64: return 64;
    case DType::Int16: return 15;
    case DType::Int32: return 31;
    case DType::Int64: return 63;
    case DType::BFloat16: return 8;
    case DType::Float16: return 11;
    case DType::Float32: return 24;
    case DType::Float64: return 53;
    default: return 0;
  }
}

bool is_unsigned(DType dtype) { return dtype == DType::UInt8 || is_wide_unsigned(dtype); }

// Whether a cast from `from` to `to` is exact, and a cast from there is equal to one from `from`.
bool widens(DType from, DType to) {
  if (is_complex(from) || is_complex(to)) return false;
  const bool same_family = is_floating(from) == is_floating(to);
  // Out-of-range conversions of floats and integers wrap differently, so mixed chains stay.
  if (!same_family) return from == DType::Bool && is_floating(to);
  if (from == DType::Float16 && to == DType::BFloat16) return false;
  if (from == DType::BFloat16 && to == DType::Float16) return false;
  if (from != DType::Bool && to == DType::Bool) return false;
  if (is_integral(from) && !is_unsigned(from) && is_unsigned(to)) return false;
  return exact_bits(from) <= exact_bits(to);
}

// The operand of the widening cast below `cast` that `cast` can read directly, or null.
Value* wider_detour(const Node& cast, Stage stage) {
  const Node* inner = cast.input(0)->producer();
  if (!inner || inner->op != "Cast" || !inner->input(0)) return nullptr;
  Value* source = inner->input(0);
  if (source->is_literal() || !widens(source->dtype, inner->output()->dtype)) return nullptr;
  // On the forward graph only round trips are removed: the backward of other chains rounds twice,
  // that of the shorter chain would not.
  const bool round_trip = source->dtype == cast.output()->dtype;
  if (stage == Stage::Forward && !round_trip) return nullptr;
  return source;
}

}  // namespace

bool remove_redundant_casts(Graph& graph, PassContext& context) {
  bool changed = false;
  for (Node* node : graph.node_pointers()) {
    if (node->op != "Cast" || !node->input(0) || node->input(0)->is_literal()) continue;
    Value* source = node->input(0);
    if (source->dtype != node->output()->dtype) source = wider_detour(*node, context.stage());
    if (!source) continue;
    if (source->dtype != node->output()->dtype) {
      if (!context.take()) return changed;
      Node* detour = node->input(0)->producer();
      graph.set_input(node, 0, source);
      erase_if_dead(graph, detour);
      changed = true;
      continue;
    }
    if (Reason reason = cannot_replace(*node->output(), *source, false)) {
      context.reject("same type", *reason, *node, true);
      continue;
    }
    if (!context.take()) return changed;
    changed = replace_value(graph, node->output(), source, false) || changed;
  }
  return changed;
}

}  // namespace ortmodule
