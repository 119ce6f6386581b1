// Edits and checks shared by the passes: replacing values, erasing dead nodes, uniform values.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ir/graph.h"

namespace ortmodule {

/// True if `node`'s op shares its operand's storage where a view is legal.
bool is_view(const Node& node);

/// True if the caller receives the storage of `value`, itself or as a view.
bool reaches_output(const Value& value);

/// True if no output of `node` is used and it has no side effects.
bool is_dead(const Node& node);

/// Erases `node` if it is dead (null: does nothing), then the producers that become dead. Those
/// precede `node`, so a forward walk over a snapshot of the nodes never reaches an erased one.
void erase_if_dead(Graph& graph, Node* node);

/// The same for several nodes, from the last to the first. Appends their ids to `erased`.
void erase_if_dead(Graph& graph, std::vector<Node*> nodes, std::vector<int>& erased);

/// Why `to` cannot replace `from`, which has the same type and contents. An output must not alias
/// an input or another output where eager PyTorch returns a new tensor. `is_view`: `from` is a view
/// of `to`.
Reason cannot_replace(const Value& from, const Value& to, bool is_view);

/// Replaces `from` by `to` and erases the producer of `from` if it is dead. Returns false, without
/// a change, if cannot_replace() gives a reason.
bool replace_value(Graph& graph, Value* from, Value* to, bool is_view);

/// Replaces `from` by the new value `fresh`, which takes over dims and, if the producer of `from`
/// is dead and erased, the name.
void supersede(Graph& graph, Value* from, Value* fresh);

/// The scalar that every element of `value` equals, if it is a literal or a ConstantOfShape, or a
/// view of one.
std::optional<Scalar> uniform_value(const Value& value);

/// The scalar as a number, if it is one.
std::optional<double> number_of(const Scalar& scalar);

/// True if a literal operand is equal to a stored constant of type `dtype`. 16-bit ops read
/// literals as float32, so a number must be exact in 16 bits.
bool is_stored_exactly(const Scalar& scalar, DType dtype);

/// The only reader of a value, if it is such a node; null if the value has others.
Node* only_reader(const Value& value, std::string_view op);

/// Whether a pointwise op makes `value` for one reader alone. If that is pointwise, too, one group
/// computes both and the value needs no memory.
bool is_made_for_one_reader(const Value& value);

/// Whether a Gemm is the product and its bias, without factors and with A as it is.
bool is_plain_gemm(const Node& node);

/// Equal numbers with equal signs of zero.
bool is_number(const Scalar& scalar, double number);

}  // namespace ortmodule
