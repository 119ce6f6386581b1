#include "quantization/finite_values.h"

#include <cmath>

#include "base/error.h"
#include "quantization/constant_weight.h"

namespace ortmodule {
namespace {

bool is_finite(const ConstantWeight& weight) {
  float sum = 0;  // of zeros, unless a value is NaN or infinite
  each_value(weight, [&](size_t, const float* values, size_t count) {
    for (size_t i = 0; i < count; ++i) sum += values[i] * 0.0F;
  });
  return sum == 0;
}

}  // namespace

const std::string& FiniteValues::obstacle(const std::string& name, const OnnxTensor* constant) {
  const auto found = known_.find(name);
  if (found != known_.end()) return found->second;
  return known_.emplace(name, find(name, constant)).first->second;
}

std::string FiniteValues::find(const std::string& name, const OnnxTensor* constant) const {
  if (constant) {
    const auto weight = weight_of(*constant);
    return !weight || is_finite(*weight) ? "" : "it holds NaN or infinity";
  }
  TensorOverride given;
  if (const auto found = options_.overrides.find(name); found != options_.overrides.end())
    given = found->second[0];
  if (!ranges_ || given.scale || (given.range.least && given.range.most)) return "";
  const auto range = ranges_->find(name);
  if (range == ranges_->end()) return "no calibrated range";
  const auto [least, most] = range->second;
  if (std::isfinite(least) && std::isfinite(most)) return "";
  return str("its range is ", least, " to ", most);
}

}  // namespace ortmodule
