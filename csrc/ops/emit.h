// Adding nodes with defaults filled in and output types inferred.
#pragma once

#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace ortmodule {

using Values = std::vector<Value*>;

/// Appends (or inserts) a node, completes its attributes from the OpDef and infers its outputs.
/// `outputs` is needed only for ops with variadic outputs. Throws Error if inference refuses.
Node* emit_node(Graph& graph, std::string_view op, Values inputs, Attrs attrs = {},
                size_t outputs = 0);

/// The same, returning the first output.
Value* emit(Graph& graph, std::string_view op, Values inputs, Attrs attrs = {});

/// Infers the outputs of one node again.
void infer(Node& node);

/// Infers all nodes in order (a parsed graph without types).
void infer(Graph& graph);

/// `value` as `dtype`: itself, or a Cast of it (literals are retyped).
Value* emit_cast(Graph& graph, Value* value, DType dtype);

/// The body of `node`'s op with `node`'s attributes substituted, as a graph whose inputs are the
/// op's operands. InternalError if the op has no body.
std::unique_ptr<Graph> instantiate_body(const Node& node);

}  // namespace ortmodule
