// Where the random numbers of a forward run come from.
#pragma once

#include <cstdint>

namespace ortmodule {

/// Philox key of a forward run. A step that is captured as a CUDA graph draws a new one with every
/// replay: then `pointer` is device memory, and the key is what it holds when a kernel runs.
/// Kernels take it whole and call seed_of() (philox.h) where they draw.
struct RunSeed {
  uint64_t value = 0;
  const uint64_t* pointer = nullptr;
};

}  // namespace ortmodule
