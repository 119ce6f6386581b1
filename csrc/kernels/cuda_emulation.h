// Whether this program holds the CUDA kernels compiled for the CPU (tests/cuda_emulation): they are
// registered for Device::CUDA and take tensors in host memory. Only builds with ORTMODULE_TESTS do.
#pragma once

namespace ortmodule::cuda {

bool emulated();

/// The emulation constructs one before main().
class LinkedEmulation {
 public:
  LinkedEmulation();
};

}  // namespace ortmodule::cuda
