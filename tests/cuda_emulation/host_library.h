// Generated CUDA code (kernels/cuda/pointwise_source.h) compiled by the C++ compiler that built
// this program and loaded into the emulation.
#pragma once

#include <string>

#include "kernels/cuda/pointwise_launch.h"

namespace ortmodule::cuda::emulation {

/// A shared library of `text`, as the bytes of its file. Throws Error with the compiler's messages.
std::string compile_for_host(const std::string& text);

/// Such a library, loaded for the rest of the process.
class HostLibrary {
 public:
  using Kernel = void (*)(PointwiseLaunch);

  explicit HostLibrary(const std::string& bytes);
  Kernel kernel(const std::string& name) const;

 private:
  void* library_ = nullptr;
};

}  // namespace ortmodule::cuda::emulation
