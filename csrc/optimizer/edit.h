// What several passes need to know before they let one value stand for another.
#pragma once

#include <optional>
#include <vector>

#include "base/error.h"
#include "ir/graph.h"

namespace ortmodule {

/// True if `node`'s op shares its operand's storage where a view is legal.
bool is_view(const Node& node);

/// True if the caller receives the storage of `value`, itself or as a view.
bool reaches_output(const Value& value);

/// True if nobody would notice that `node` is gone: no output used, no effect.
bool is_dead(const Node& node);

/// Erases `node` (null: nothing) if it is dead, then those of its producers that died with it. All
/// of them stand before `node`, so a forward walk over a snapshot of the nodes never meets an
/// erased one.
void erase_if_dead(Graph& graph, Node* node);

/// The same for several nodes, the last one first. `erased` receives the ids.
void erase_if_dead(Graph& graph, std::vector<Node*> nodes, std::vector<int>& erased);

/// Why `to` may not take the place of `from`, which has the same type and contents. The user must
/// not receive one tensor twice, or his own input back, where eager gives him a fresh one;
/// `is_view` says that `from` shares `to`'s storage anyway.
Reason cannot_replace(const Value& from, const Value& to, bool is_view);

/// Lets `to` take the place of `from`, whose producer is erased if nothing else keeps it. Returns
/// false, changing nothing, if cannot_replace objects.
bool replace_value(Graph& graph, Value* from, Value* to, bool is_view);

/// Lets `fresh`, just made, stand where `from` stood: it takes over name and dims, and `from`'s
/// producer is erased if nothing else keeps it.
void supersede(Graph& graph, Value* from, Value* fresh);

/// The scalar that fills the whole of `value`: a literal, or a ConstantOfShape, also behind views.
std::optional<Scalar> uniform_value(const Value& value);

/// The scalar as a number, if it is one.
std::optional<double> number_of(const Scalar& scalar);

/// True if storing `scalar` in `dtype` rounds nothing that an op's computation type would not
/// round too. A literal enters a 16-bit op in float; a stored constant was rounded to 16 bits.
bool is_stored_exactly(const Scalar& scalar, DType dtype);

/// Equal numbers with equal signs of zero.
bool is_number(const Scalar& scalar, double number);

}  // namespace ortmodule
