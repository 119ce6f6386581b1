// Small ONNX models as bytes, for tests of the C++ interfaces.
#pragma once

#include <string>
#include <vector>

#include "onnx_message.h"

namespace ortmodule::testing {

inline constexpr int kFloat = 1, kInt64 = 7;

/// A type of a float tensor; -1 stands for the size "n".
inline Message float_type(const std::vector<int64_t>& dims, int type = kFloat) {
  Message shape;
  for (int64_t dim : dims)
    shape.message(
        1, dim < 0 ? Message().text(2, "n") : Message().number(1, static_cast<uint64_t>(dim)));
  return Message().message(1, Message().number(1, static_cast<uint64_t>(type)).message(2, shape));
}

inline Message sequence_type(const Message& element) {
  return Message().message(4, Message().message(1, element));
}

inline Message optional_type(const Message& element) {
  return Message().message(9, Message().message(1, element));
}

/// x[n,2] -> sum = x + w, positive = max(sum, 0), with w = (10, -20), and some metadata.
inline std::string sum_model() {
  Message graph;
  graph.message(1, node_message("Add", {"x", "w"}, {"sum"}));
  graph.message(1, node_message("Relu", {"sum"}, {"positive"}));
  graph.text(2, "sums");
  graph.message(5, tensor_message("w", kFloat, {2}).packed_fixed<float>(4, {10, -20}));
  graph.message(11, value_message("x", float_type({-1, 2})));
  graph.message(12, value_message("sum", float_type({-1, 2})));
  graph.message(12, value_message("positive", float_type({-1, 2})));
  return model_message(graph).text(2, "a test").message(14, entry_message("color", "red")).bytes();
}

/// A sequence of float[n,2] and one more of them -> their rows, and the sequence of both.
inline std::string sequence_model() {
  Message axis = attr_message("axis", 2).number(3, 0);
  Message concat = node_message("ConcatFromSequence", {"parts"}, {"rows"}).message(5, axis);
  Message graph;
  graph.message(1, concat);
  graph.message(1, node_message("SequenceInsert", {"parts", "last"}, {"all"}));
  graph.message(11, value_message("parts", sequence_type(float_type({-1, 2}))));
  graph.message(11, value_message("last", float_type({-1, 2})));
  graph.message(12, value_message("rows", float_type({-1, 2})));
  graph.message(12, value_message("all", sequence_type(float_type({-1, 2}))));
  return model_message(graph).bytes();
}

/// An optional float[2] -> whether it is there.
inline std::string optional_model() {
  Message graph;
  graph.message(1, node_message("OptionalHasElement", {"maybe"}, {"there"}));
  graph.message(11, value_message("maybe", optional_type(float_type({2}))));
  graph.message(12, value_message("there", tensor_type_message(9, {})));
  return model_message(graph).bytes();
}

/// x[n,2] -> sum = x + x, label = "cat".
inline std::string labelled_model() {
  Message graph;
  graph.message(1, node_message("Add", {"x", "x"}, {"sum"}));
  graph.message(1, node_message("Constant", {}, {"label"})
                       .message(5, attr_message("value_string", 3).text(4, "cat")));
  graph.message(11, value_message("x", float_type({-1, 2})));
  graph.message(12, value_message("label", float_type({}, 8)));
  graph.message(12, value_message("sum", float_type({-1, 2})));
  return model_message(graph).bytes();
}

/// x[n,3] -> y = x + w, with w = (1, 2, 3) of 4 bits.
inline std::string narrow_model() {
  Message graph;
  graph.message(
      1, node_message("Cast", {"w"}, {"wide"}).message(5, attr_message("to", 2).number(3, kFloat)));
  graph.message(1, node_message("Add", {"x", "wide"}, {"y"}));
  graph.message(5, tensor_message("w", 22, {3}).text(9, "\x21\x03"));
  graph.message(11, value_message("x", float_type({-1, 3})));
  graph.message(12, value_message("y", float_type({-1, 3})));
  return model_message(graph).bytes();
}

/// x[2] of element type `type` -> y = x.
inline std::string identity_model(int type) {
  Message graph;
  graph.message(1, node_message("Identity", {"x"}, {"y"}));
  graph.message(11, value_message("x", float_type({2}, type)));
  graph.message(12, value_message("y", float_type({2}, type)));
  return model_message(graph).bytes();
}

}  // namespace ortmodule::testing
