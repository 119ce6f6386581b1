// Weights in 16-bit floats, made when they are written.
#pragma once

#include <memory>

#include "quantization/constant_weight.h"

namespace ortmodule {

/// How a type of 16 bits holds the values of a weight.
struct HalfFit {
  bool in_range = true;         // no finite value becomes infinite
  bool few_become_zero = true;  // less than a tenth of those that are not zero
};
HalfFit fit_in_half(const ConstantWeight& weight, DType half);

/// The weight rounded to float16 or bfloat16; `report` gets bytes at once, errors when it is
/// written.
OnnxTensor half_tensor(std::shared_ptr<const ConstantWeight> weight, DType half,
                       std::shared_ptr<WeightReport> report);

}  // namespace ortmodule
