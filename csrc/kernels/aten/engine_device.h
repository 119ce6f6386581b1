// The torch device of the running engine. Views of planned memory are bare addresses; kernels that
// call ATen must say what device they point at.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

#include "kernels/kernel.h"

namespace ortmodule {

/// The device on which this thread runs or plans steps; the CPU outside of any EngineDeviceScope.
c10::Device engine_device();

/// Whether memory of the engine's lies there, and not on the host, where operators may leave
/// numbers.
bool lies_on_engine_device(const void* address);

/// How to tell memory of GPUs from the host's; given by what speaks to the driver.
void tell_gpu_memory_by(bool (*is_gpu_memory)(const void* address));

/// Sets engine_device() of this thread until the end of the scope.
class EngineDeviceScope {
 public:
  explicit EngineDeviceScope(c10::Device device);
  EngineDeviceScope(const EngineDeviceScope&) = delete;
  EngineDeviceScope& operator=(const EngineDeviceScope&) = delete;
  ~EngineDeviceScope();

 private:
  c10::Device before_;
};

/// What a kernel that calls ATen does otherwise on CUDA than on the CPU.
struct OnCuda {
  bool deterministic = true;
  bool inexact = false;
};

/// Enters a kernel that calls ATen, and so runs where its operands are, for the CPU and for CUDA;
/// there with less priority, so that a kernel of our own comes first.
class AtenKernelRegistrar {
 public:
  explicit AtenKernelRegistrar(KernelDef def, OnCuda on_cuda = {});
};

}  // namespace ortmodule

#define REGISTER_ATEN_KERNEL(...)                                                \
  static const ::ortmodule::AtenKernelRegistrar ORTM_KERNEL_CONCAT(aten_kernel_, \
                                                                   __COUNTER__)(__VA_ARGS__)
