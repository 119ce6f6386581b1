// Which values have no scale: constants that are not finite, and values whose range is not.
#pragma once

#include <map>
#include <string>

#include "quantization/quantize_static.h"

namespace ortmodule {

class FiniteValues {
 public:
  /// `ranges`: null before the calibration, when each value may still get one.
  FiniteValues(const StaticQuantization& options, const ValueRanges* ranges)
      : options_(options), ranges_(ranges) {}

  /// Why a value has no scale, "" if it has one. `constant`: its tensor, null for what is computed.
  const std::string& obstacle(const std::string& name, const OnnxTensor* constant);

 private:
  std::string find(const std::string& name, const OnnxTensor* constant) const;

  const StaticQuantization& options_;
  const ValueRanges* ranges_;
  std::map<std::string, std::string> known_;
};

}  // namespace ortmodule
