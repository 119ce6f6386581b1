// Operands of ops that take bytes and quantize their result.
#pragma once

#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/integer_finish.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// One tensor of bytes and what makes numbers of it.
template <class Q>
struct QuantizedTerms {
  const Q* bytes;
  FloatVec zero, scale;

  QuantizedTerms(const void* data, const Each& of_scale, const Each& of_zero)
      : bytes(static_cast<const Q*>(data)),
        zero(static_cast<float>(of_zero.point(0))),
        scale(of_scale.number(0)) {}
  FloatVec at(int64_t i) const { return (load_wide<FloatVec>(bytes + i) - zero) * scale; }
  /// The last `count` < 16 bytes, from `from` on, with room behind them.
  QuantizedTerms last(int64_t from, int64_t count, Q* room) const {
    QuantizedTerms terms = *this;
    std::copy_n(bytes + from, count, room);
    terms.bytes = room;
    return terms;
  }
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
