// Division of a position n >= 0 by a number d that stays the same: kernels are templates over the
// kind of d, of which cuda/fast_divisor.h has another one.
#pragma once

#include "kernels/scalar_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {

ORTM_HD int64_t quotient(int64_t n, int64_t d) { return n / d; }
ORTM_HD int64_t value_of(int64_t d) { return d; }

}  // namespace ORTM_ISA
}  // namespace ortmodule
