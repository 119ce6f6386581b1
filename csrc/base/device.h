// Whose kernels run a graph.
#pragma once

#include <cstdint>

namespace ortmodule {

/// Host is the CPU without torch: kernels that call torch are not chosen, even if it is loaded.
enum class Device : uint8_t { CPU, CUDA, Host };

}  // namespace ortmodule
