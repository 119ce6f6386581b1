#include "quantization/constant_weight.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/element_value.h"
#include "base/error.h"
#include "onnx/mapped_file.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

constexpr size_t kPieceElements = size_t{1} << 18;

template <class T, class Convert>
void convert(const char* from, size_t count, float* to, Convert convert) {
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));  // at any address
    to[i] = convert(value);
  }
}

void to_floats(DType dtype, const char* from, size_t count, float* to) {
  switch (dtype) {
    case DType::Float32: std::memcpy(to, from, count * sizeof(float)); return;
    case DType::Float64:
      return convert<double>(from, count, to,
                             [](double value) { return static_cast<float>(value); });
    case DType::Float16: return convert<uint16_t>(from, count, to, half_to_float);
    case DType::BFloat16:
      return convert<uint16_t>(from, count, to, [](uint16_t bits) {
        return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16U);
      });
    default: ORTM_ASSERT(false, "a weight is of floats");
  }
}

std::vector<size_t> strides_of(const std::vector<int64_t>& dims) {
  std::vector<size_t> strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * static_cast<size_t>(dims[d]);
  return strides;
}

bool is_ordered(const std::vector<size_t>& order) {
  return std::is_sorted(order.begin(), order.end());
}

// Where elements in stored order lie in the weight: runs along the last stored axis.
class Destinations {
 public:
  explicit Destinations(const ConstantWeight& weight) : sizes_(weight.tensor.dims) {
    const std::vector<size_t> strides = strides_of(weight.dims());
    strides_.resize(sizes_.size(), 1);
    for (size_t d = 0; d < weight.rank(); ++d) strides_[weight.order[d]] = strides[d];
  }

  // Calls run(offset in the part, first place, step, count).
  template <class Run>
  void split(size_t first, size_t count, Run run) const {
    if (sizes_.empty()) return run(size_t{0}, size_t{0}, size_t{1}, count);
    const auto row = static_cast<size_t>(sizes_.back());
    for (size_t done = 0; done < count;) {
      const size_t column = (first + done) % row;
      const size_t length = std::min(count - done, row - column);
      run(done, place((first + done) / row) + column * strides_.back(), strides_.back(), length);
      done += length;
    }
  }

 private:
  size_t place(size_t row) const {
    size_t at = 0;
    for (size_t d = sizes_.size() - 1; d-- > 0;) {
      const auto size = static_cast<size_t>(sizes_[d]);
      at += row % size * strides_[d];
      row /= size;
    }
    return at;
  }

  const std::vector<int64_t>& sizes_;
  std::vector<size_t> strides_;  // in the weight, by stored axis
};

// Elements in stored order as runs of one channel: run(offset in the part, count, channel).
template <class Run>
void split_channels(WeightChannels channels, size_t first, size_t count, Run run) {
  if (channels.inner == 0) return run(size_t{0}, count, size_t{0});
  for (size_t done = 0; done < count;) {
    const size_t at = first + done;
    const size_t length = std::min(count - done, channels.inner - at % channels.inner);
    run(done, length, at / channels.inner % channels.count);
    done += length;
  }
}

class QuantizedSource final : public OnnxTensorSource {
 public:
  QuantizedSource(std::shared_ptr<const ConstantWeight> weight, QuantizedWeight how,
                  std::shared_ptr<WeightReport> report)
      : weight_(std::move(weight)), how_(std::move(how)), report_(std::move(report)) {}

  size_t size_bytes() const override { return weight_->elements() * size_of(how_.type); }

  void produce(const std::function<void(std::string_view)>& write) const override {
    const bool ordered = is_ordered(weight_->order);
    const size_t width = size_of(how_.type);
    const Destinations destinations(*weight_);
    std::string whole(ordered ? 0 : size_bytes(), '\0');
    std::string part;
    squared_error_ = squared_ = largest_ = 0;
    each_value(*weight_, [&](size_t first, const float* values, size_t count) {
      part.resize(count * width);
      split_channels(how_.channels, first, count, [&](size_t at, size_t length, size_t channel) {
        const QuantizedScale& scale = how_.scales[channel];
        quantize_values(values + at, length, scale, how_.type, part.data() + at * width);
        measure(values + at, part.data() + at * width, length, scale);
      });
      if (ordered) return write(part);
      destinations.split(first, count, [&](size_t at, size_t place, size_t step, size_t length) {
        for (size_t i = 0; i < length; ++i)
          std::memcpy(whole.data() + (place + i * step) * width, part.data() + (at + i) * width,
                      width);
      });
    });
    if (!ordered) write(whole);
    report_->relative_error = squared_ > 0 ? std::sqrt(squared_error_ / squared_) : 0.0;
    report_->largest_error = largest_;
  }

 private:
  void measure(const float* values, const char* quantized, size_t count,
               const QuantizedScale& scale) const {
    switch (how_.type) {
      case QuantizedType::UInt8: return measure_as<uint8_t>(values, quantized, count, scale);
      case QuantizedType::Int8: return measure_as<int8_t>(values, quantized, count, scale);
      case QuantizedType::UInt16: return measure_as<uint16_t>(values, quantized, count, scale);
      case QuantizedType::Int16: return measure_as<int16_t>(values, quantized, count, scale);
    }
  }

  template <class T>
  void measure_as(const float* values, const char* quantized, size_t count,
                  const QuantizedScale& scale) const {
    double squared_error = 0, squared = 0;
    float largest = 0;
    for (size_t i = 0; i < count; ++i) {
      T element;
      std::memcpy(&element, quantized + i * sizeof(T), sizeof(T));
      const float real = static_cast<float>(int{element} - scale.zero_point) * scale.scale;
      const float error = std::abs(values[i] - real);
      largest = std::max(largest, error);
      squared_error += static_cast<double>(error) * static_cast<double>(error);
      squared += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    squared_error_ += squared_error;
    squared_ += squared;
    largest_ = std::max(largest_, static_cast<double>(largest));
  }

  std::shared_ptr<const ConstantWeight> weight_;
  QuantizedWeight how_;
  std::shared_ptr<WeightReport> report_;
  mutable double squared_error_ = 0, squared_ = 0, largest_ = 0;
};

// The weight's own elements with its axes in order.
class OrderedSource final : public OnnxTensorSource {
 public:
  explicit OrderedSource(std::shared_ptr<const ConstantWeight> weight)
      : weight_(std::move(weight)), width_(size_of(weight_->dtype)) {}

  size_t size_bytes() const override { return weight_->elements() * width_; }

  void produce(const std::function<void(std::string_view)>& write) const override {
    const Destinations destinations(*weight_);
    std::string whole(size_bytes(), '\0');
    each_value(*weight_, [&](size_t first, const float* values, size_t count) {
      destinations.split(first, count, [&](size_t at, size_t place, size_t step, size_t length) {
        for (size_t i = 0; i < length; ++i)
          put(values[at + i], whole.data() + (place + i * step) * width_);
      });
    });
    write(whole);
  }

 private:
  void put(float value, char* to) const {
    if (weight_->dtype == DType::Float32) {
      std::memcpy(to, &value, sizeof(value));
    } else {
      const uint16_t bits = float16_bits(value);
      std::memcpy(to, &bits, sizeof(bits));
    }
  }

  std::shared_ptr<const ConstantWeight> weight_;
  size_t width_;
};

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

float half_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000U) << 16U;
  const uint32_t exponent = (bits >> 10U) & 0x1fU, fraction = bits & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13U));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23U) | (fraction << 13U));
  const float small = std::ldexp(static_cast<float>(fraction), -24);
  return sign != 0 ? -small : small;
}

std::vector<int64_t> ConstantWeight::dims() const {
  std::vector<int64_t> sizes;
  for (size_t axis : order) sizes.push_back(tensor.dims[axis]);
  return sizes;
}

size_t ConstantWeight::elements() const {
  size_t product = 1;
  for (int64_t size : tensor.dims) product *= static_cast<size_t>(size);
  return product;
}

ConstantWeight ConstantWeight::permuted(const std::vector<size_t>& by) const {
  ConstantWeight weight = *this;
  for (size_t i = 0; i < by.size(); ++i) weight.order[i] = order[by[i]];
  return weight;
}

std::shared_ptr<const ConstantWeight> weight_of(const OnnxTensor& tensor) {
  if (!is_floating(tensor.dtype) || tensor.source) return nullptr;
  auto weight = std::make_shared<ConstantWeight>();
  weight->tensor = tensor;
  weight->order.resize(tensor.dims.size());
  std::iota(weight->order.begin(), weight->order.end(), 0);
  weight->dtype = tensor.dtype;
  return weight;
}

std::map<std::string, double> scalar_constants(const OnnxGraph& graph) {
  std::map<std::string, double> found;
  const auto add = [&](const std::string& name, const OnnxTensor& tensor) {
    const auto weight = weight_of(tensor);
    if (!weight || weight->elements() != 1) return;
    each_value(*weight, [&](size_t, const float* values, size_t) {
      found[name] = static_cast<double>(values[0]);
    });
  };
  for (const OnnxInitializer& each : graph.initializers) add(each.name, each.tensor);
  for (const OnnxNode& node : graph.nodes) {
    if (node.op != "Constant" || !node.domain.empty() || node.outputs.empty()) continue;
    for (const auto& [name, value] : node.attrs) {
      if (const auto* tensor = std::get_if<OnnxTensor>(&value)) add(node.outputs[0], *tensor);
      if (const auto* number = std::get_if<double>(&value)) found[node.outputs[0]] = *number;
    }
  }
  return found;
}

void each_value(const ConstantWeight& weight,
                const std::function<void(size_t first, const float* values, size_t count)>& visit) {
  const size_t elements = weight.elements(), width = size_of(weight.tensor.dtype);
  std::vector<float> values(std::min(elements, kPieceElements));
  for (size_t first = 0; first < elements; first += kPieceElements) {
    const size_t count = std::min(kPieceElements, elements - first);
    to_floats(weight.tensor.dtype, weight.tensor.bytes.data() + first * width, count,
              values.data());
    drop_pages(weight.tensor.bytes, first * width, count * width);
    visit(first, values.data(), count);
  }
}

WeightChannels channels_of(const ConstantWeight& weight, int axis) {
  if (axis < 0) return {};
  const size_t stored = weight.order[static_cast<size_t>(axis)];
  return {static_cast<size_t>(weight.tensor.dims[stored]), strides_of(weight.tensor.dims)[stored]};
}

std::optional<QuantizedWeight> quantize_weight(const ConstantWeight& weight,
                                               WeightChannels channels, const RangeRule& rule,
                                               const std::vector<GivenRange>& given) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> least(channels.count, kInfinity), most(channels.count, -kInfinity);
  bool finite = true;
  each_value(weight, [&](size_t first, const float* values, size_t count) {
    split_channels(channels, first, count, [&](size_t at, size_t length, size_t channel) {
      float low = least[channel], high = most[channel];
      float sum = 0;  // of zeros, unless a value is NaN or infinite
      for (size_t i = at; i < at + length; ++i) {
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
        sum += values[i] * 0.0F;
      }
      least[channel] = low;
      most[channel] = high;
      finite = finite && sum == 0;
    });
  });
  if (!finite) return std::nullopt;
  QuantizedWeight result{rule.type, {}, channels};
  const bool empty = weight.elements() == 0;
  const bool half = weight.dtype == DType::Float16;
  const auto end = [&](std::optional<double> wanted, float found) -> double {
    if (!wanted) return found;
    return half ? rounded_to_float16(*wanted) : static_cast<float>(*wanted);
  };
  for (size_t i = 0; i < channels.count; ++i) {
    const GivenRange range = i < given.size() ? given[i] : GivenRange();
    result.scales.push_back(empty ? QuantizedScale{}
                                  : scale_of_range(end(range.least, least[i]),
                                                   end(range.most, most[i]), weight.dtype, rule));
  }
  return result;
}

OnnxTensor quantized_tensor(std::shared_ptr<const ConstantWeight> weight, QuantizedWeight how,
                            std::shared_ptr<WeightReport> report) {
  OnnxTensor tensor;
  tensor.element_type = static_cast<int>(how.type);
  tensor.dtype = onnx_dtype(tensor.element_type);
  tensor.dims = weight->dims();
  report->float_bytes = weight->elements() * size_of(weight->tensor.dtype);
  report->quantized_bytes = weight->elements() * size_of(how.type);
  report->origin = weight->origin;
  tensor.source =
      std::make_shared<QuantizedSource>(std::move(weight), std::move(how), std::move(report));
  return tensor;
}

OnnxTensor ordered_tensor(std::shared_ptr<const ConstantWeight> weight) {
  OnnxTensor tensor;
  tensor.dtype = weight->dtype;
  tensor.dims = weight->dims();
  tensor.source = std::make_shared<OrderedSource>(std::move(weight));
  return tensor;
}

OnnxTensor scale_tensor(const QuantizedWeight& how, DType dtype, std::vector<int64_t> dims) {
  std::string bytes;
  for (const QuantizedScale& scale : how.scales) {
    if (dtype == DType::Float16)
      append(bytes, float16_bits(scale.scale));
    else
      append(bytes, scale.scale);
  }
  return {dtype, std::move(dims), std::move(bytes)};
}

OnnxTensor zero_point_tensor(const QuantizedWeight& how, std::vector<int64_t> dims) {
  std::string bytes;
  for (const QuantizedScale& scale : how.scales) {
    const auto bits = static_cast<uint16_t>(scale.zero_point);
    bytes += static_cast<char>(bits & 0xffU);
    if (size_of(how.type) == 2) bytes += static_cast<char>(bits >> 8U);
  }
  const int number = static_cast<int>(how.type);
  return {onnx_dtype(number), std::move(dims), std::move(bytes), number};
}

OnnxTensor int64_tensor(const std::vector<int64_t>& values) {
  std::string bytes;
  for (int64_t value : values) append(bytes, value);
  return {DType::Int64, {static_cast<int64_t>(values.size())}, std::move(bytes)};
}

}  // namespace ortmodule
