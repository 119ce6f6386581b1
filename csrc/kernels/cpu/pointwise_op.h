// Micro-ops: what a pointwise group is compiled to. A micro-op is a loop over one tile, whose
// values lie in arrays of the computation type: float for 16-bit floats, int64 for all integers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cpu/float_vec.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Types in which tiles are computed.
enum class Compute : uint8_t { F32, F64, I64, Bool };

Compute compute_of(DType dtype);
int64_t bytes_of(Compute type);
/// Whether an element of `dtype` in memory is already of its computation type.
bool is_stored_as_computed(DType dtype);

/// Attributes of a node in the form that its loop wants.
struct MicroParams {
  double number[2] = {0, 0};
  uint64_t word[2] = {0, 0};
};

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

struct MicroOp {
  std::string_view name;  // op name, with ".variant" where an attribute selects the loop
  Compute in = Compute::F32;
  Compute out = Compute::F32;
  MicroFn run = nullptr;
  void (*configure)(const NodeFacts&, MicroParams&) = nullptr;
  bool random = false;
};

/// The tables, one per family.
std::span<const MicroOp> arithmetic_ops();
std::span<const MicroOp> comparison_ops();
std::span<const MicroOp> activation_ops();
std::span<const MicroOp> elementary_ops();
std::span<const MicroOp> gradient_ops();
std::span<const MicroOp> random_ops();

/// The micro-op of a node (Cast is not one, see conversions below), or null. Its operands are all
/// of one computation type but for Where's condition.
const MicroOp* find_micro_op(const NodeFacts& node);
/// The computation type that decides: that of the first operand, the second one's for Where.
Compute deciding_type(const NodeFacts& node);

// --- conversions -------------------------------------------------------------------------------
/// Cast between computation types, with PyTorch's rules: towards zero to integers, != 0 to bool.
MicroFn conversion(Compute from, Compute to);
/// Rounds a tile of the computation type to what `dtype` can hold; null if that is everything.
MicroFn rounding(DType dtype);
/// Reads `count` elements `stride` elements apart into a tile.
using LoadFn = void (*)(void* tile, const void* from, int64_t count, int64_t stride);
LoadFn load_of(DType dtype);
/// Writes a tile to elements `stride` elements apart.
using StoreFn = void (*)(void* to, const void* tile, int64_t count, int64_t stride);
StoreFn store_of(DType dtype);

// --- loops -------------------------------------------------------------------------------------
// F is a functor; one that needs attributes is constructed from MicroParams.
template <class F>
inline F make_functor(const MicroArgs& m) {
  if constexpr (std::is_constructible_v<F, const MicroParams&>) {
    return F(*m.params);
  } else {
    (void)m;
    return F();
  }
}

template <class F, class In, class Out = In>
void unary(const MicroArgs& m) {
  const F f = make_functor<F>(m);
  const In* a = static_cast<const In*>(m.in[0]);
  Out* out = static_cast<Out*>(m.out);
  const int64_t count = m.count;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) out[i] = f(a[i]);
}

/// The same for functors over scalar_math.h's formulas, which take double and FloatVec.
template <class F, class T>
void unary_formula(const MicroArgs& m) {
  if constexpr (std::is_same_v<T, float>) {
    map_vectors(make_functor<F>(m), m.count, static_cast<float*>(m.out),
                static_cast<const float*>(m.in[0]));
  } else {
    unary<F, T>(m);
  }
}

template <class F, class In, class Out = In>
void binary(const MicroArgs& m) {
  const F f = make_functor<F>(m);
  const In* a = static_cast<const In*>(m.in[0]);
  const In* b = static_cast<const In*>(m.in[1]);
  Out* out = static_cast<Out*>(m.out);
  const int64_t count = m.count;
  ORTM_SIMD
  for (int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
}

template <class F, class T>
void binary_formula(const MicroArgs& m) {
  if constexpr (std::is_same_v<T, float>) {
    map_vectors(make_functor<F>(m), m.count, static_cast<float*>(m.out),
                static_cast<const float*>(m.in[0]), static_cast<const float*>(m.in[1]));
  } else {
    binary<F, T>(m);
  }
}

}  // namespace ORTM_ISA
}  // namespace ortmodule

/// Rows of a table for float and double.
#define ORTM_FLOAT_ROWS(name, loop, F)                   \
  {name, Compute::F32, Compute::F32, &loop<F, float>}, { \
    name, Compute::F64, Compute::F64, &loop<F, double>   \
  }
/// The same with attributes.
#define ORTM_FLOAT_ROWS_WITH(name, loop, F, configure)              \
  {name, Compute::F32, Compute::F32, &loop<F, float>, configure}, { \
    name, Compute::F64, Compute::F64, &loop<F, double>, configure   \
  }
#define ORTM_INTEGER_ROW(name, loop, F) \
  { name, Compute::I64, Compute::I64, &loop<F, int64_t> }
#define ORTM_BOOL_ROW(name, loop, F) \
  { name, Compute::Bool, Compute::Bool, &loop<F, bool> }
