// What the ONNX forms of normalizations share: statistics over axes, spelled out in standard ops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onnx/onnx_rule.h"

namespace ortmodule {

/// first, first + 1, ..., rank - 1.
std::vector<int64_t> axes_from(int64_t first, size_t rank);

std::string mean_over(const OnnxRuleContext& c, const std::string& x,
                      const std::vector<int64_t>& axes, int64_t keep);

/// Operand `operand` in type `inside`.
std::string in_type(const OnnxRuleContext& c, size_t i, DType inside);
/// Gives output 0, computed in type `inside`, its own type.
void set_in_type(const OnnxRuleContext& c, const std::string& y, DType inside);

/// The scale or bias `operand`; one of `value` for ops of ONNX that insist on one.
std::string scale_or(const OnnxRuleContext& c, size_t operand, const Dims& dims, double value,
                     DType dtype);

/// The sizes from `axis` on.
Dims normalized_dims(const OnnxRuleContext& c, int64_t axis);

struct Normalized {
  std::string y, mean, inverse;  // without scale and bias
};

/// (x - mean) / sqrt(var + epsilon) over `axes`, spelled out in type `inside`; `centered` false
/// leaves out mean.
Normalized normalized(const OnnxRuleContext& c, std::string x, const std::vector<int64_t>& axes,
                      DType inside, bool centered);

/// The normalization of a row from `axis` on, its scale, bias and statistics, in standard ops.
void export_norm_in_parts(const OnnxRuleContext& c, int64_t axis, bool centered);

}  // namespace ortmodule
