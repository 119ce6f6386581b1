// The cleanup passes, one file each. None leaves dead nodes behind, so that the next pass sees only
// the actual readers of a value. Each returns whether the graph changed.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Rewrites double negations and sums of negated operands into one canonical form.
bool canonicalize(Graph& graph, PassContext& context);

/// Removes nodes that neither an output nor a side effect needs.
bool eliminate_dead_code(Graph& graph, PassContext& context);

/// Merges equal nodes. A backward node is merged into a forward one only if it is a view: any other
/// result would become a saved activation, which is for the memory optimizer to decide.
bool eliminate_common_subexpressions(Graph& graph, PassContext& context);

/// Folds arithmetic of literals, uniform operands, neutral operands, and Where with a known
/// condition. All results stay bitwise equal.
bool fold_constants(Graph& graph, PassContext& context);

/// Removes casts to the same type, and round trips through wider types.
bool remove_redundant_casts(Graph& graph, PassContext& context);

/// Removes views equal to their operand and merges chains of views.
bool remove_redundant_views(Graph& graph, PassContext& context);

/// Makes scales and offsets behind convolutions and products part of their weights (inference).
bool fold_into_weights(Graph& graph, PassContext& context);

/// Replaces the sum of the gradients of slices that tile a tensor by one Concat.
bool merge_slice_gradients(Graph& graph, PassContext& context);

/// Lets GatherGrad accumulate into another gradient of the same table (a tied embedding), instead
/// of filling a second table.
bool accumulate_gather_gradients(Graph& graph, PassContext& context);

/// Lets ReluGrad read the output of the dropout or max pool after the Relu instead of the Relu's
/// result, which then need not be saved.
bool read_relu_sign_later(Graph& graph, PassContext& context);

/// Saves the sign of a Relu's result, one byte per element, where backward reads nothing else of
/// it.
bool keep_relu_sign(Graph& graph, PassContext& context);

}  // namespace ortmodule
