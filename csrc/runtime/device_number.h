// Devices of memory by number.
#pragma once

namespace ortmodule {

/// Stands for memory of the host in place of the number of a GPU.
inline constexpr int kOnHost = -1;

}  // namespace ortmodule
