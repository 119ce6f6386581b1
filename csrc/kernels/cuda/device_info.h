// The architectures that the CUDA kernels were compiled for and the devices that are there.
#pragma once

#include <vector>

namespace ortmodule::cuda {

struct DeviceInfo {
  int major = 0;  // compute capability
  int minor = 0;
};

std::vector<int> compiled_architectures();  // 900 for sm_90, as in __CUDA_ARCH_LIST__

// Empty without a driver or a GPU. Creates no context.
std::vector<DeviceInfo> visible_devices();

// The architecture (900 for sm_90) of the code that really runs on the current device: shows that
// a compiled kernel can be launched. Throws std::runtime_error if it cannot.
int running_architecture();

}  // namespace ortmodule::cuda
