// Conversions of the pointwise group: memory to tile, tile to memory, tile to tile.
#include "kernels/pointwise_convert.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/half_rows.h"
#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class Stored, class Computed>
void load(void* tile, const void* from, int64_t count, int64_t stride) {
  Computed* out = static_cast<Computed*>(tile);
  const Stored* in = static_cast<const Stored*>(from);
  if (stride == 1) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) out[i] = computed(in[i]);
  } else if (stride == 0) {
    const Computed value = computed(in[0]);
    for (int64_t i = 0; i < count; ++i) out[i] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = computed(in[i * stride]);
  }
}

template <class Stored, class Computed>
void store(void* to, const void* tile, int64_t count, int64_t stride) {
  Stored* out = static_cast<Stored*>(to);
  const Computed* in = static_cast<const Computed*>(tile);
  if (stride == 1) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) out[i] = stored<Stored>(in[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i * stride] = stored<Stored>(in[i]);
  }
}

void load_halves(void* tile, const void* from, int64_t count, int64_t stride) {
  if (stride != 1) return load<Float16, float>(tile, from, count, stride);
  widen_row(static_cast<const Float16*>(from), count, static_cast<float*>(tile));
}

void store_halves(void* to, const void* tile, int64_t count, int64_t stride) {
  if (stride != 1) return store<Float16, float>(to, tile, count, stride);
  narrow_row(static_cast<const float*>(tile), count, static_cast<Float16*>(to));
}

void round_to_halves(const MicroArgs& m) {
  Float16 halves[FloatVec::kCount];
  const auto* x = static_cast<const float*>(m.in[0]);
  auto* y = static_cast<float*>(m.out);
  for (int64_t i = 0; i < m.count; i += FloatVec::kCount) {
    const int64_t count = std::min<int64_t>(FloatVec::kCount, m.count - i);
    narrow_row(x + i, count, halves);
    widen_row(halves, count, y + i);
  }
}

/// As a conversion to int32 and rounding to bytes would.
template <class Stored>
void store_bytes(void* to, const void* tile, int64_t count, int64_t stride) {
  Stored* out = static_cast<Stored*>(to);
  const float* in = static_cast<const float*>(tile);
  int64_t i = 0;
#if defined(__AVX512BW__)
  for (; stride == 1 && i + 16 <= count; i += 16) {
    const __m512i words = _mm512_maskz_cvttps_epi32(0xffff, _mm512_loadu_ps(in + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm512_maskz_cvtepi32_epi8(0xffff, words));
  }
#endif
  for (; i < count; ++i) out[i * stride] = static_cast<Stored>(formulas::Convert<int32_t>()(in[i]));
}

template <class T>
void copy_in(void* tile, const void* from, int64_t count, int64_t stride) {
  T* out = static_cast<T*>(tile);
  const T* in = static_cast<const T*>(from);
  if (stride == 0) return static_cast<void>(std::fill_n(out, count, in[0]));
  for (int64_t i = 0; i < count; ++i) out[i] = in[i * stride];
}

template <class T>
void copy_out(void* to, const void* tile, int64_t count, int64_t stride) {
  T* out = static_cast<T*>(to);
  const T* in = static_cast<const T*>(tile);
  for (int64_t i = 0; i < count; ++i) out[i * stride] = in[i];
}

template <class From>
MicroFn conversion_from(DType to) {
  if constexpr (std::is_floating_point_v<From>)
    if (is_converted_through_int32(to)) return &unary<formulas::Convert<int32_t>, From, int64_t>;
  switch (compute_of(to)) {
    case Compute::F32: return &unary<formulas::Convert<float>, From, float>;
    case Compute::F64: return &unary<formulas::Convert<double>, From, double>;
    case Compute::I64: return &unary<formulas::Convert<int64_t>, From, int64_t>;
    case Compute::Bool: return &unary<formulas::Convert<bool>, From, bool>;
    case Compute::U64: return &unary<formulas::Convert<uint64_t>, From, uint64_t>;
  }
  return nullptr;
}

}  // namespace

MicroFn conversion(Compute from, DType to) {
  switch (from) {
    case Compute::F32: return conversion_from<float>(to);
    case Compute::F64: return conversion_from<double>(to);
    case Compute::I64: return conversion_from<int64_t>(to);
    case Compute::Bool: return conversion_from<bool>(to);
    case Compute::U64: return conversion_from<uint64_t>(to);
  }
  return nullptr;
}

MicroFn rounding(DType dtype) {
  switch (dtype) {
    case DType::BFloat16: return &unary<formulas::RoundTo<BFloat16>, float>;
    case DType::Float16: return &round_to_halves;
    case DType::Int32: return &unary<formulas::RoundTo<int32_t>, int64_t>;
    case DType::Int16: return &unary<formulas::RoundTo<int16_t>, int64_t>;
    case DType::Int8: return &unary<formulas::RoundTo<int8_t>, int64_t>;
    case DType::UInt8: return &unary<formulas::RoundTo<uint8_t>, int64_t>;
    case DType::UInt16: return &unary<formulas::RoundTo<uint16_t>, int64_t>;
    case DType::UInt32: return &unary<formulas::RoundTo<uint32_t>, int64_t>;
    default: return nullptr;
  }
}

MicroFn through_byte(DType byte) {
  return byte == DType::Int8 ? &unary<formulas::ThroughByte<int8_t>, float>
                             : &unary<formulas::ThroughByte<uint8_t>, float>;
}

LoadFn load_of(DType dtype, Compute type) {
  if (fits_float(dtype) && type == Compute::F32)
    return dtype == DType::Int8 ? &load<int8_t, float> : &load<uint8_t, float>;
  switch (dtype) {
    case DType::Float32: return &load<float, float>;
    case DType::Float64: return &load<double, double>;
    case DType::Float16: return &load_halves;
    case DType::BFloat16: return &load<BFloat16, float>;
    case DType::Int64: return &load<int64_t, int64_t>;
    case DType::Int32: return &load<int32_t, int64_t>;
    case DType::Int16: return &load<int16_t, int64_t>;
    case DType::Int8: return &load<int8_t, int64_t>;
    case DType::UInt8: return &load<uint8_t, int64_t>;
    case DType::UInt16: return &load<uint16_t, int64_t>;
    case DType::UInt32: return &load<uint32_t, int64_t>;
    case DType::UInt64: return &load<uint64_t, uint64_t>;
    case DType::Bool: return &load<bool, bool>;
    default: return nullptr;
  }
}

StoreFn store_of(DType dtype, Compute type) {
  if (fits_float(dtype) && type == Compute::F32)
    return dtype == DType::Int8 ? &store_bytes<int8_t> : &store_bytes<uint8_t>;
  switch (dtype) {
    case DType::Float32: return &store<float, float>;
    case DType::Float64: return &store<double, double>;
    case DType::Float16: return &store_halves;
    case DType::BFloat16: return &store<BFloat16, float>;
    case DType::Int64: return &store<int64_t, int64_t>;
    case DType::Int32: return &store<int32_t, int64_t>;
    case DType::Int16: return &store<int16_t, int64_t>;
    case DType::Int8: return &store<int8_t, int64_t>;
    case DType::UInt8: return &store<uint8_t, int64_t>;
    case DType::UInt16: return &store<uint16_t, int64_t>;
    case DType::UInt32: return &store<uint32_t, int64_t>;
    case DType::UInt64: return &store<uint64_t, uint64_t>;
    case DType::Bool: return &store<bool, bool>;
    default: return nullptr;
  }
}

LoadFn copying_load(size_t element_bytes) {
  return element_bytes == 1   ? &copy_in<uint8_t>
         : element_bytes == 2 ? &copy_in<uint16_t>
                              : &copy_in<uint32_t>;
}

StoreFn copying_store(size_t element_bytes) {
  return element_bytes == 1   ? &copy_out<uint8_t>
         : element_bytes == 2 ? &copy_out<uint16_t>
                              : &copy_out<uint32_t>;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
