// What products of integers do with their sums: scale them, add a bias, bend, and quantize again.
#pragma once

#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// One operand that is a number for all, or for each row or column; of no operand, nothing.
struct Each {
  const void* data = nullptr;
  DType dtype = DType::Undefined;
  int64_t stride = 0;

  Each() = default;
  Each(const KernelArgs& args, int place) {
    const auto at = static_cast<size_t>(place);
    if (place < 0 || at >= args.in.size() || !args.in[at].data) return;
    const TensorView& view = args.in[at];
    data = view.data;
    dtype = view.dtype;
    stride = view.element_count() == 1 ? 0 : view.strides[0];
  }
  explicit operator bool() const { return data != nullptr; }
  /// As an integer; 0 if there is none.
  int32_t point(int64_t i) const {
    if (!data) return 0;
    return dtype == DType::Int8 ? static_cast<const int8_t*>(data)[i * stride]
                                : static_cast<const uint8_t*>(data)[i * stride];
  }
  float number(int64_t i) const { return static_cast<const float*>(data)[i * stride]; }
  bool is_integer() const { return dtype == DType::Int32; }
  uint32_t integer(int64_t i) const { return static_cast<const uint32_t*>(data)[i * stride]; }
};

/// Results of real numbers, as they are or quantized: clamp(round(y / scale) + zero).
class RealResults {
 public:
  RealResults(const KernelArgs& args, int scale_place, int zero_place)
      : to_(args.out[0].data), dtype_(args.out[0].dtype), relu_(is_relu(args)) {
    const Each scale(args, scale_place), zero(args, zero_place);
    if (!scale) return;
    scale_ = scale.number(0);
    zero_ = static_cast<float>(zero.point(0));
  }

  /// Writes `count` <= kMost results from element `at` on; `real` may be changed.
  void write(int64_t at, int64_t count, float* real) const {
    if (relu_) {
      ORTM_SIMD
      for (int64_t j = 0; j < count; ++j) real[j] = real[j] > 0.0f ? real[j] : 0.0f;
    }
    switch (dtype_) {
      case DType::UInt8: return quantize<uint8_t>(real, count, static_cast<uint8_t*>(to_) + at);
      case DType::Int8: return quantize<int8_t>(real, count, static_cast<int8_t*>(to_) + at);
      default: std::copy_n(real, count, static_cast<float*>(to_) + at);
    }
  }

 private:
  static bool is_relu(const KernelArgs& args) {
    return args.facts.node().attrs.integer("relu", 0) != 0;
  }

  /// In blocks of one vector of floats: the compiler would take whole vectors of bytes at a time,
  /// and what is left of short rows one by one.
  template <class Q>
  void quantize(const float* real, int64_t count, Q* y) const {
    constexpr int64_t kBlock = 16;
    int64_t j = 0;
    for (; j + kBlock <= count; j += kBlock) quantize_block<kBlock>(real + j, y + j);
    if (j == count) return;
    float given[kBlock] = {};
    Q block[kBlock];
    std::copy(real + j, real + count, given);
    quantize_block<kBlock>(given, block);
    std::copy_n(block, count - j, y + j);
  }

  template <int64_t kBlock, class Q>
  void quantize_block(const float* real, Q* y) const {
    constexpr float kLeast = std::is_signed_v<Q> ? -128.0f : 0.0f, kMost = kLeast + 255.0f;
    const float scale = scale_, zero = zero_;
    int32_t places[kBlock];
    ORTM_SIMD
    for (int64_t j = 0; j < kBlock; ++j) {
      float place = __builtin_rintf(real[j] / scale) + zero;
      place = place > kLeast ? place : kLeast;
      place = place < kMost ? place : kMost;
      places[j] = static_cast<int32_t>(place);
    }
    ORTM_SIMD
    for (int64_t j = 0; j < kBlock; ++j) y[j] = static_cast<Q>(places[j]);
  }

  void* to_;
  DType dtype_;
  bool relu_;
  float scale_ = 1.0f, zero_ = 0.0f;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
