// All pointwise ops but the conversions, for whoever makes a table of them.
#pragma once

#include "kernels/pointwise_activation.h"
#include "kernels/pointwise_arithmetic.h"
#include "kernels/pointwise_comparison.h"
#include "kernels/pointwise_elementary.h"
#include "kernels/pointwise_gradient.h"
#include "kernels/pointwise_random.h"

#define ORTM_POINTWISE_OPS(ROW) \
  ORTM_ACTIVATION_OPS(ROW)      \
  ORTM_ARITHMETIC_OPS(ROW)      \
  ORTM_COMPARISON_OPS(ROW)      \
  ORTM_ELEMENTARY_OPS(ROW)      \
  ORTM_GRADIENT_OPS(ROW)        \
  ORTM_RANDOM_OPS(ROW)

namespace ortmodule {

/// Names and operand types of ORTM_POINTWISE_OPS in its order, usable in constant expressions.
struct PointwiseKey {
  const char* name;
  Compute in;
};
#define ORTM_POINTWISE_KEY(name, loop, F, In, Out) {name, kComputeOf<In>},
inline constexpr PointwiseKey kPointwiseKeys[] = {ORTM_POINTWISE_OPS(ORTM_POINTWISE_KEY)};
#undef ORTM_POINTWISE_KEY
inline constexpr int kPointwiseRows =
    static_cast<int>(sizeof(kPointwiseKeys) / sizeof(kPointwiseKeys[0]));

/// Position of a row in ORTM_POINTWISE_OPS, -1 if there is none.
constexpr int pointwise_index(const char* name, Compute in) {
  for (int i = 0; i < kPointwiseRows; ++i) {
    if (kPointwiseKeys[i].in != in) continue;
    const char *a = kPointwiseKeys[i].name, *b = name;
    while (*a && *a == *b) ++a, ++b;
    if (*a == *b) return i;
  }
  return -1;
}

}  // namespace ortmodule
