// The text notation: dump, pattern, fused op's body, golden test and bug report in one form.
//
//   name (x: f32[batch,64], w: param grad f32[64,64]) => (y, mutate 1: z, grad 0: dx) {
//     h: f32[batch,64] = MatMul (x, w)  // blocks.0.fc  model.py:41
//     y: f32[batch,64] = Mul (h, 0.5)
//     p: f32[batch,64] = Softmax<axis=-1> (h)
//     backward: dx: f32[batch,64] = Mul (dy, 0.5)
//     tag checkpoint: z: f32[64] = Add (b, 0.5:f64)
//   }
//
// An input is `name: kind grad type`, with kind `param`, `buffer`, `const`, `dy 0` or nothing, and
// `grad` if it requires a gradient. An output is a value, alone or after `mutate 1:` or `grad 0:`.
// An operand is a name, a number, a size in braces `{2*batch}` or `_` for an absent one; `_` as an
// output is one whose name does not matter. A literal has the type of the node's first typed
// operand that is neither literal nor bool (else bool), unless it says otherwise: `0.5:f64`.
// Attributes stand in `<axis=-1, perm=[0,2,1], size=2*batch, alpha=0.5, approximate="tanh", to=f32,
// body={name (x) => (y) {...}}>` before or after the operands; a float always has a point or
// exponent (or is inf, -inf, nan), and `@name` is short for the string "@name", a placeholder in
// patterns. Names that are not plain words are quoted. Types and comments are optional on reading,
// and line breaks mean nothing (`;` may separate nodes).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

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

/// Name, inputs and outputs of the graph: `name (x: f32[2]) => (y)`.
std::string signature_text(const Graph& graph);

/// "f32[batch,64]"
std::string type_text(const Value& value);

/// One attribute as it stands behind `name=`.
std::string attr_text(const Attr& attr);

/// The shortest text that reads back as the same double, with a point or exponent.
std::string number_text(double value);

/// A name as it stands in the text: itself, or quoted if it is not a plain word.
std::string name_text(std::string_view name);

/// Reads the notation. Output types that the text leaves out stay Undefined (ops/emit.h infers
/// them). Throws Error with line and column.
std::unique_ptr<Graph> parse_graph(std::string_view text);

/// Reads what attr_text() writes.
Attr parse_attr(std::string_view text);

/// The type that a literal among these operands has if the text says nothing; Undefined if no other
/// operand has a type.
DType default_literal_dtype(const std::vector<Value*>& operands);

}  // namespace ortmodule
