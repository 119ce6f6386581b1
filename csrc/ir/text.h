// The text notation: dump, pattern, fused op's body, golden test and bug report in one form.
//
//   name (x: f32[batch,64], w: param grad f32[64,64]) => (y, mutate 1: z, grad 0: dx) {
//     h: f32[batch,64] = MatMul (x, w)                       // blocks.0.fc  model.py:41
//     y: f32[batch,64] = Mul (h, 0.5)
//     backward: dx = Mul (dy, 0.5)
//   }
//
// An operand is a name, a number, a size in braces `{2*batch}` or `_` for an absent one. Attributes
// stand in `<axis=-1, perm=[0,2,1], alpha=0.5, approximate="tanh", to=f32, body={...}>`; a float
// always has a point or exponent. Types and comments are optional on reading.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace ortmodule {

struct PrintOptions {
  bool types = true;
  bool origins = false;  // trailing comments with module path and source line
};

/// The whole graph as text; stable for equal graphs.
std::string print(const Graph& graph, const PrintOptions& options = {});

/// One node as one line, without a line break.
std::string print(const Node& node, const PrintOptions& options = {});

/// "f32[batch,64]"
std::string type_text(const Value& value);

/// Reads the notation. Output types that the text leaves out stay Undefined (ops/emit.h infers
/// them). Throws Error with line and column.
std::unique_ptr<Graph> parse_graph(std::string_view text);

}  // namespace ortmodule
