// Shared by the ONNX forms of normalizations: statistics over axes, in standard ops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx/onnx_rule.h"

namespace ortmodule {

/// first, first + 1, ..., rank - 1.
std::vector<int64_t> axes_from(int64_t first, size_t rank);

/// ReduceMean of x; `keep` is its keepdims.
std::string mean_over(const OnnxRuleContext& c, const std::string& x,
                      const std::vector<int64_t>& axes, int64_t keep);

/// Operand i, cast to `inside`.
std::string in_type(const OnnxRuleContext& c, size_t i, DType inside);
/// Sets output 0 to `y`, which has type `inside`, cast to the output's type.
void set_in_type(const OnnxRuleContext& c, const std::string& y, DType inside);

/// The scale or bias `operand`, or a constant tensor of `value` if it is absent, for ONNX ops that
/// require one.
std::string scale_or(const OnnxRuleContext& c, size_t operand, const Dims& dims, double value,
                     DType dtype);

/// The sizes of operand 0 from `axis` on.
Dims normalized_dims(const OnnxRuleContext& c, int64_t axis);

struct Normalized {
  std::string y, mean, inverse;  // without scale and bias
};

/// (x - mean) / sqrt(var + epsilon) over `axes`, computed in type `inside`. Without the mean if
/// `centered` is false.
Normalized normalized(const OnnxRuleContext& c, std::string x, const std::vector<int64_t>& axes,
                      DType inside, bool centered);

/// Exports a layer or RMS norm over the dims from `axis` on, with scale, bias and statistics, in
/// standard ops.
void export_norm_in_parts(const OnnxRuleContext& c, int64_t axis, bool centered);

}  // namespace ortmodule
