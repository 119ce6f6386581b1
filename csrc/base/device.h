// Kinds of devices, by the kernels that run there.
#pragma once

#include <cstdint>

namespace ortmodule {

enum class Device : uint8_t { CPU, CUDA };

}  // namespace ortmodule
