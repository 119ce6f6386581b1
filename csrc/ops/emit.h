// Adds nodes, with default attributes and inferred output types.
#pragma once

#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace ortmodule {

using Values = std::vector<Value*>;

/// Adds a node at the insertion point, with default attributes of the OpDef and inferred outputs.
/// `outputs` is only needed for ops with variadic outputs. Throws Error if inference fails.
Node* emit_node(Graph& graph, std::string_view op, Values inputs, Attrs attrs = {},
                size_t outputs = 0);

/// The same, but returns the first output.
Value* emit(Graph& graph, std::string_view op, Values inputs, Attrs attrs = {});

/// Infers the outputs of one node again.
void infer(Node& node);

/// Infers all nodes in order, for a parsed graph without types.
void infer(Graph& graph);

/// `value` cast to `dtype` if it has another type; a literal is retyped.
Value* emit_cast(Graph& graph, Value* value, DType dtype);

/// The body of the node's op, with the node's attributes substituted and its operands as inputs.
/// Throws InternalError if the op has no body.
std::unique_ptr<Graph> instantiate_body(const Node& node);

/// OpDef::recompute of the node, added at the insertion point; the new values by output of the
/// node, null for those that it does not compute.
Values emit_recompute(Graph& graph, const Node& node);

}  // namespace ortmodule
