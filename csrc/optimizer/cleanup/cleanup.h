// The cleanup passes, one file each. All of them leave no dead node behind, so that the next pass
// sees who really reads a value.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Brings sums and signs into one spelling.
bool canonicalize(Graph& graph, PassContext& context);

/// Removes what no output and no effect needs.
bool eliminate_dead_code(Graph& graph, PassContext& context);

/// Computes equal things once. A backward node yields to a forward one only if it is a view:
/// anything else would have to be saved from forward to backward, which is the memory planner's
/// decision and not a cleanup's.
bool eliminate_common_subexpressions(Graph& graph, PassContext& context);

/// Evaluates what is known now: arithmetic of literals, constant operands as literals, neutral
/// operands, decided selections. Changes no bit of any result.
bool fold_constants(Graph& graph, PassContext& context);

/// Removes casts that change nothing and detours through wider types.
bool remove_redundant_casts(Graph& graph, PassContext& context);

/// Removes views that change nothing and folds chains of views into one.
bool remove_redundant_views(Graph& graph, PassContext& context);

/// Sums of slices' gradients that tile one tensor become one Concat.
bool merge_slice_gradients(Graph& graph, PassContext& context);

/// A gathered table's gradient is added to the rest of the table's gradient where it lies, instead
/// of filling a second table first.
bool accumulate_gather_gradients(Graph& graph, PassContext& context);

/// The gradient of Relu reads the sign from what dropout or a max pool made of the result, so that
/// the result itself is not kept.
bool read_relu_sign_later(Graph& graph, PassContext& context);

/// Where backward reads the result of Relu for its sign alone, keeps that instead.
bool keep_relu_sign(Graph& graph, PassContext& context);

}  // namespace ortmodule
