// Micro-ops: what a pointwise group is compiled to. A micro-op is a loop over one tile, whose
// values lie in arrays of the computation type: float for 16-bit floats, int64 for all integers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cpu/elementary_vec.h"
#include "kernels/pointwise_row.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Where a tile stands in the logical order of the output, for random ops.
struct RandomState {
  uint64_t seed = 0;
  int64_t first_index = 0;           // logical index of the tile's first element, ...
  const int64_t* indices = nullptr;  // ... or of each if they do not follow one another
};

struct MicroArgs {
  int64_t count;
  void* out;
  const void* in[3];
  const MicroParams* params;
  const RandomState* random;
};
using MicroFn = void (*)(const MicroArgs&);

/// A row of the CPU's tables: the loop of a PointwiseRow.
struct MicroOp {
  std::string_view name;
  Compute in = Compute::F32;
  MicroFn run = nullptr;
};

/// The tables, one per family.
std::span<const MicroOp> arithmetic_ops();
std::span<const MicroOp> comparison_ops();
std::span<const MicroOp> activation_ops();
std::span<const MicroOp> elementary_ops();
std::span<const MicroOp> gradient_ops();
std::span<const MicroOp> random_ops();

MicroFn find_loop(const PointwiseRow& row);

// --- conversions -------------------------------------------------------------------------------
/// Cast to the computation type of `to`, with PyTorch's rules: towards zero to integers, != 0 to
/// bool.
MicroFn conversion(Compute from, DType to);
/// Rounds a tile of the computation type to what `dtype` can hold; null if that is everything.
MicroFn rounding(DType dtype);
/// float to a byte and back.
MicroFn through_byte(DType byte);
/// Reads `count` elements `stride` elements apart into a tile.
using LoadFn = void (*)(void* tile, const void* from, int64_t count, int64_t stride);
/// Tiles may hold these as floats, too.
inline bool fits_float(DType dtype) { return dtype == DType::Int8 || dtype == DType::UInt8; }

/// `type`: what the tile has.
LoadFn load_of(DType dtype, Compute type);
/// Writes a tile to elements `stride` elements apart.
using StoreFn = void (*)(void* to, const void* tile, int64_t count, int64_t stride);
StoreFn store_of(DType dtype, Compute type);
/// For tiles that hold what memory does: elements of so many bytes.
LoadFn copying_load(size_t element_bytes);
StoreFn copying_store(size_t element_bytes);

// --- loops -------------------------------------------------------------------------------------
/// Truths are read as bytes: of a loop over bool, GCC 12 makes a branch per element.
template <class T>
using TileElement = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;

template <class T>
inline T element_value(TileElement<T> element) {
  if constexpr (std::is_same_v<T, bool>)
    return element != 0;
  else
    return element;
}

template <class F, class In, class Out = In>
void unary(const MicroArgs& m) {
  const F f = make_functor<F>(*m.params);
  const auto* a = static_cast<const TileElement<In>*>(m.in[0]);
  Out* out = static_cast<Out*>(m.out);
  const int64_t count = m.count;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) out[i] = f(element_value<In>(a[i]));
}

template <class F, class In, class Out = In>
void unary_library(const MicroArgs& m) {
  unary<F, In, Out>(m);
}

/// The same for functors over scalar_math.h's formulas, which take double and FloatVec.
template <class F, class In, class Out>
void unary_formula(const MicroArgs& m) {
  if constexpr (std::is_same_v<In, float>) {
    map_vectors(make_functor<F>(*m.params), m.count, static_cast<float*>(m.out),
                static_cast<const float*>(m.in[0]));
  } else {
    unary<F, In, Out>(m);
  }
}

template <class F, class In, class Out>
void unary_long_formula(const MicroArgs& m) {
  unary_formula<F, In, Out>(m);
}

template <class F, class In, class Out = In>
void binary(const MicroArgs& m) {
  const F f = make_functor<F>(*m.params);
  const In* a = static_cast<const In*>(m.in[0]);
  const In* b = static_cast<const In*>(m.in[1]);
  Out* out = static_cast<Out*>(m.out);
  const int64_t count = m.count;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
}

template <class F, class In, class Out = In>
void binary_library(const MicroArgs& m) {
  binary<F, In, Out>(m);
}

template <class F, class In, class Out>
void binary_formula(const MicroArgs& m) {
  if constexpr (std::is_same_v<In, float>) {
    map_vectors(make_functor<F>(*m.params), m.count, static_cast<float*>(m.out),
                static_cast<const float*>(m.in[0]), static_cast<const float*>(m.in[1]));
  } else {
    binary<F, In, Out>(m);
  }
}

template <class F, class In, class Out>
void binary_long_formula(const MicroArgs& m) {
  binary_formula<F, In, Out>(m);
}

template <class F, class In, class Out>
void where(const MicroArgs& m) {
  const auto* condition = static_cast<const TileElement<bool>*>(m.in[0]);
  const In* a = static_cast<const In*>(m.in[1]);
  const In* b = static_cast<const In*>(m.in[2]);
  Out* out = static_cast<Out*>(m.out);
  const int64_t count = m.count;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) {
    const In x = a[i], y = b[i];  // both read, so that the choice is a blend and not a branch
    out[i] = F()(element_value<bool>(condition[i]), x, y);
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule

/// An entry of a table of MicroOps from a row of a list of ops (kernels/pointwise_row.h).
#define ORTM_MICRO_OP(name, loop, F, In, Out) {name, kComputeOf<In>, &loop<F, In, Out>},
