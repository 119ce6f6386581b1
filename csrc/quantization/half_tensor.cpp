#include "quantization/half_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/element_value.h"

namespace ortmodule {
namespace {

struct Half {
  uint16_t (*bits)(float);
  float largest;     // finite
  float least_kept;  // smaller ones become zero
};

Half half_of(DType type) {
  if (type == DType::Float16) return {float16_bits, 65504.0F, 0x1p-25F};
  return {bfloat16_bits, 0x1.fep127F, 0x1p-134F};
}

class HalfSource final : public OnnxTensorSource {
 public:
  HalfSource(std::shared_ptr<const ConstantWeight> weight, DType half,
             std::shared_ptr<WeightReport> report)
      : weight_(std::move(weight)), half_(half), report_(std::move(report)) {}

  size_t size_bytes() const override { return weight_->elements() * 2; }

  void produce(const std::function<void(std::string_view)>& write) const override {
    const Half half = half_of(half_);
    double squared = 0, squared_error = 0, largest = 0;
    std::vector<uint16_t> part;
    each_value(*weight_, [&](size_t, const float* values, size_t count) {
      part.resize(count);
      for (size_t i = 0; i < count; ++i) {
        part[i] = half.bits(values[i]);
        if (!std::isfinite(values[i])) continue;
        const double value = static_cast<double>(values[i]), error = value - widened(part[i]);
        squared += value * value;
        squared_error += error * error;
        largest = std::max(largest, std::abs(error));
      }
      write({reinterpret_cast<const char*>(part.data()), 2 * count});
    });
    report_->relative_error = squared > 0 ? std::sqrt(squared_error / squared) : 0.0;
    report_->largest_error = largest;
  }

 private:
  double widened(uint16_t bits) const {
    if (half_ == DType::BFloat16)
      return static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16U));
    return static_cast<double>(half_to_float(bits));
  }

  std::shared_ptr<const ConstantWeight> weight_;
  DType half_;
  std::shared_ptr<WeightReport> report_;
};

}  // namespace

HalfFit fit_in_half(const ConstantWeight& weight, DType type) {
  const Half half = half_of(type);
  HalfFit fit;
  size_t zeros = 0, others = 0;
  each_value(weight, [&](size_t, const float* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const float size = std::abs(values[i]);
      if (size > half.largest && std::isfinite(size)) fit.in_range = false;
      others += size > 0 ? 1 : 0;
      zeros += size > 0 && size <= half.least_kept ? 1 : 0;
    }
  });
  fit.few_become_zero = zeros == 0 || 10 * zeros < others;
  return fit;
}

OnnxTensor half_tensor(std::shared_ptr<const ConstantWeight> weight, DType half,
                       std::shared_ptr<WeightReport> report) {
  OnnxTensor tensor;
  tensor.dtype = half;
  tensor.dims = weight->tensor.dims;
  report->float_bytes = weight->elements() * size_of(weight->tensor.dtype);
  report->quantized_bytes = weight->elements() * 2;
  report->origin = weight->origin;
  tensor.source = std::make_shared<HalfSource>(std::move(weight), half, std::move(report));
  return tensor;
}

}  // namespace ortmodule
