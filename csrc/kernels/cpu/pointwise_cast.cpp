// Casts of dense memory go from one type to the other in one loop, without tiles of the computation
// type between them: an int8 that becomes a float would be an int64 there. The results are those of
// the tiles (kernels/pointwise_convert.h).
#include "kernels/cpu/pointwise_cast.h"

#include <cmath>

#include "kernels/cpu/half_rows.h"
#include "kernels/cpu/read_range.h"
#include "kernels/pointwise_convert.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kPiece = 1024;

/// Real numbers to integers: by way of an int32 where that is the rule, or gives the same.
template <class From, class To>
void convert_reals(const From* x, int64_t count, To* y) {
  constexpr bool kThroughInt32 =
      std::is_same_v<To, int32_t> || std::is_same_v<To, int16_t> || std::is_same_v<To, int8_t>;
  using Mask = std::conditional_t<sizeof(From) == 4, int32_t, int64_t>;  // lanes as wide as x's
  Mask far = 0;
  if constexpr (!kThroughInt32 && sizeof(To) < 8) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i)
      far |= std::fabs(x[i]) < From(2147483648.0) ? Mask(0) : Mask(1);
  }
  if (sizeof(To) < 8 && far == 0) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<To>(static_cast<int32_t>(x[i]));
  } else if constexpr (std::is_same_v<To, uint64_t>) {
    for (int64_t i = 0; i < count; ++i) y[i] = formulas::Convert<uint64_t>()(x[i]);
  } else {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<To>(static_cast<int64_t>(x[i]));
  }
}

/// A truth in memory, of which any bit may be set. Of a loop over bool, GCC 12 makes a branch per
/// element.
enum class Truth : uint8_t { False };

/// Of numbers that are no 16-bit floats.
template <class From, class To>
void convert_numbers(const From* x, int64_t count, To* y) {
  if constexpr (std::is_same_v<From, Truth>) {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] != Truth::False ? To(1) : To(0);
  } else if constexpr (std::is_same_v<To, bool>) {
    auto* truths = reinterpret_cast<uint8_t*>(y);
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) truths[i] = x[i] != From(0) ? 1 : 0;
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    convert_reals(x, count, y);
  } else {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = static_cast<To>(x[i]);
  }
}

template <class To>
void store_floats(const float* x, int64_t count, To* y) {
  if constexpr (std::is_same_v<To, Float16>) {
    narrow_row(x, count, y);
  } else {
    ORTM_SIMD
    for (int64_t i = 0; i < count; ++i) y[i] = stored<To>(x[i]);
  }
}

template <class From, class To>
void cast_piece(const From* x, int64_t count, To* y) {
  if constexpr (!kIsHalf<From> && !kIsHalf<To>) {
    convert_numbers(x, count, y);
  } else {
    float floats[kPiece];  // everything from and to a 16-bit float goes through a float
    if constexpr (kIsHalf<From>)
      widen_row(x, count, floats);
    else
      convert_numbers(x, count, floats);
    if constexpr (kIsHalf<To>)
      store_floats(floats, count, y);
    else
      convert_numbers(floats, count, y);
  }
}

template <class From, class To>
void cast_elements(const void* from, void* to, int64_t count) {
  using Stored = std::conditional_t<std::is_same_v<From, bool>, Truth, From>;
  for (int64_t at = 0; at < count; at += kPiece)
    cast_piece(static_cast<const Stored*>(from) + at, std::min(kPiece, count - at),
               static_cast<To*>(to) + at);
}

}  // namespace

void add_direct_cast(const StepFacts& facts, PointwiseProgram& program) {
  if (facts.nodes.size() != 1 || facts.nodes[0].op != "Cast" || facts.inputs.size() != 1) return;
  const Layout &x = facts.inputs[0].layout, &y = facts.outputs[0].layout;
  if (x.sizes != y.sizes || x.strides != y.strides || !is_dense(x)) return;
  dispatch_number(facts.inputs[0].dtype, [&]<class From> {
    dispatch_number(facts.outputs[0].dtype,
                    [&]<class To> { program.cast = &cast_elements<From, To>; });
  });
}

void run_direct_cast(const PointwiseProgram& program, const KernelArgs& args) {
  const auto* x = args.in[0].as<std::byte>();
  auto* y = args.out[0].as<std::byte>();
  const auto from = static_cast<int64_t>(size_of(args.in[0].dtype)),
             to = static_cast<int64_t>(size_of(args.out[0].dtype));
  constexpr int64_t kAtOnce = 16 * kPiece;
  const int64_t items = ceil_div(program.total, kAtOnce);
  followed_ranges(args.context, items, 4, kAtOnce * to, [&](int64_t begin, int64_t end) {
    ReadRange read(args.context);
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item * kAtOnce, last = std::min(first + kAtOnce, program.total);
      program.cast(x + first * from, y + first * to, last - first);
      read.has_read(x + first * from, x + last * from);
    }
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
