// Device types with their own kernels.
#pragma once

#include <cstdint>

namespace ortmodule {

enum class Device : uint8_t { CPU, CUDA };

}  // namespace ortmodule
