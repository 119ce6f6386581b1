// Attributes of a pointwise node in the form that its functor wants.
#pragma once

#include <cstdint>

namespace ortmodule {

/// Of a functor that draws random numbers, word[0] is the stream: it differs between nodes that are
/// otherwise equal.
struct MicroParams {
  double number[2] = {0, 0};
  uint64_t word[2] = {0, 0};
};

}  // namespace ortmodule
