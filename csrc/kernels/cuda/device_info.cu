#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/device_info.h"

namespace ortmodule::cuda {

std::vector<int> compiled_architectures() { return {__CUDA_ARCH_LIST__}; }

std::vector<DeviceInfo> visible_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // clear it: no GPU is no error here
    return {};
  }
  std::vector<DeviceInfo> devices(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    DeviceInfo& device = devices[static_cast<size_t>(i)];
    cudaDeviceGetAttribute(&device.major, cudaDevAttrComputeCapabilityMajor, i);
    cudaDeviceGetAttribute(&device.minor, cudaDevAttrComputeCapabilityMinor, i);
  }
  return devices;
}

static __global__ void write_architecture(int* out) {
#ifdef __CUDA_ARCH__
  *out = __CUDA_ARCH__;
#endif
}

static void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

int running_architecture() {
  int* pinned = nullptr;
  check(cudaMallocHost(&pinned, sizeof(int)));
  *pinned = 0;
  write_architecture<<<1, 1>>>(pinned);
  const cudaError_t status = cudaDeviceSynchronize();
  const int architecture = *pinned;
  cudaFreeHost(pinned);
  check(status);
  return architecture;
}

}  // namespace ortmodule::cuda
