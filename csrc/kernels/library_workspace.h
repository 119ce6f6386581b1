// Scratch for NVIDIA's libraries, which demand more alignment than a plan gives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortmodule {

inline constexpr size_t kLibraryAlignment = 256;
inline constexpr size_t kPlannedAlignment = 64;

/// Scratch to declare, so that `bytes` are left from the first aligned address on.
constexpr size_t declared_workspace_bytes(size_t bytes) {
  return bytes + kLibraryAlignment - kPlannedAlignment;
}

/// The first address of planned scratch that a library may be given.
inline void* aligned_workspace(void* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  return static_cast<char*>(workspace) + (0 - address) % kLibraryAlignment;
}

}  // namespace ortmodule
