// The text notation of graphs, used for dumps, patterns, bodies of ops, golden tests and reports.
//
//   name (x: f32[batch,64], w: param grad f32[64,64]) => (y, mutate 1: z, grad 0: dx) {
//     h: f32[batch,64] = MatMul (x, w)  // blocks.0.fc  model.py:41
//     y: f32[batch,64] = Mul (h, 0.5)
//     p: f32[batch,64] = Softmax<axis=-1> (h)
//     backward: dx: f32[batch,64] = Mul (dy, 0.5)
//     tag checkpoint: z: f32[64] = Add (b, 0.5:f64)
//   }
//
// An input is `name: kind grad type`. The kind is `param`, `buffer`, `const`, `dy 0` or nothing;
// `grad` means that it requires a gradient. An output is a value, possibly after `mutate 1:` or
// `grad 0:`. An operand is a name, a number, a size in braces `{2*batch}`, or `_` if absent; `_` as
// an output is an unnamed one. A literal without a type (`0.5:f64` has one) has that of the node's
// first typed operand that is neither a literal nor bool, or bool if there is none.
// Attributes are written `<axis=-1, perm=[0,2,1], size=2*batch, alpha=0.5, approximate="tanh",
// to=f32, body={name (x) => (y) {...}}>`, before or after the operands. A float has a point or an
// exponent, or is inf, -inf or nan. `@name`, a placeholder in patterns, is short for "@name". Names
// that are not plain words are quoted. The parser does not need types and comments and ignores line
// breaks; `;` may separate nodes.
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

/// The graph as text; equal graphs have equal texts.
std::string print(const Graph& graph, const PrintOptions& options = {});

/// One node as one line, without a line break.
std::string print(const Node& node, const PrintOptions& options = {});

/// Name, inputs and outputs of the graph: `name (x: f32[2]) => (y)`.
std::string signature_text(const Graph& graph);

/// "f32[batch,64]"
std::string type_text(const Value& value);

/// The value of an attribute, as written after `name=`.
std::string attr_text(const Attr& attr);

/// The shortest text with a point or exponent that parses to the same double.
std::string number_text(double value);

/// A name as written in the text: quoted if it is not a plain word.
std::string name_text(std::string_view name);

/// Parses a graph. Output types that the text leaves out are Undefined (ops/emit.h infers them).
/// Throws Error with line and column.
std::unique_ptr<Graph> parse_graph(std::string_view text);

/// Parses the result of attr_text(). Throws Error.
Attr parse_attr(std::string_view text);

/// The type of a literal without one among these operands; Undefined if no other operand has a
/// type.
DType default_literal_dtype(const std::vector<Value*>& operands);

}  // namespace ortmodule
