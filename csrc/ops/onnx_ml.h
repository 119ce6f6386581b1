// What the rules of ai.onnx.ml have in common: rows of x, labels, transforms of scores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/onnx_call.h"

namespace ortmodule {

inline constexpr std::string_view kMlDomain = "ai.onnx.ml";

/// Operand 0 as [rows, columns]; a vector is one row. Refuses other ranks.
Value* ml_rows(OnnxCall& c);
/// The same in float32.
Value* ml_float_rows(OnnxCall& c);

/// Numbers from attributes as a weight.
Value* ml_numbers(OnnxCall& c, const std::vector<double>& numbers, std::vector<int64_t> dims,
                  DType dtype = DType::Float32);
Value* ml_integers(OnnxCall& c, const std::vector<int64_t>& numbers);

/// The elements of a tensor of float16, float32 or float64. Refuses other types.
std::vector<double> ml_tensor_numbers(OnnxCall& c, const OnnxTensor& tensor);
/// Integers as they are: those of OnnxCall::integer and integers are sizes, and bounded.
int64_t ml_exact_integer(OnnxCall& c, std::string_view name, int64_t fallback);
std::vector<int64_t> ml_exact_integers(OnnxCall& c, std::string_view name);
/// The numbers of texts.
std::vector<int64_t> ml_text_numbers(OnnxCall& c, const std::vector<std::string>& texts);

/// The labels of a classifier: integers, or numbers of texts.
struct MlLabels {
  std::vector<int64_t> numbers;
  bool texts = false;
  int64_t count() const { return static_cast<int64_t>(numbers.size()); }
};

/// From one of two attributes. Refuses if there is neither, unless one is not `required`.
MlLabels ml_labels(OnnxCall& c, std::string_view integers, std::string_view strings,
                   bool required = true);
/// Labels by index, as output 0 of the node.
Value* ml_label_output(OnnxCall& c, const MlLabels& labels, Value* index);

/// Scores [rows, columns] after post_transform: NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT.
Value* ml_transformed(OnnxCall& c, Value* scores, std::string_view transform);

/// The scores of two classes from that of the second, [rows, 1], as onnxruntime computes them:
/// after LOGISTIC those of -s and s, after all other transforms these numbers themselves.
enum class SecondScore : uint8_t {
  Probability,  // 1 - s, s
  Margin        // -s, s
};
Value* ml_two_scores(OnnxCall& c, Value* score, SecondScore kind, std::string_view transform);

}  // namespace ortmodule
