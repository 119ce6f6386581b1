#include "kernels/aten/engine_device.h"

#include <atomic>
#include <utility>

namespace ortmodule {
namespace {

// Forward runs on the caller's thread, backward on one of autograd's, both for many pieces.
thread_local c10::Device current_device{c10::kCPU};

std::atomic<bool (*)(const void*)> is_gpu_memory{nullptr};

}  // namespace

c10::Device engine_device() { return current_device; }

bool lies_on_engine_device(const void* address) {
  const auto test = is_gpu_memory.load();
  return !engine_device().is_cuda() || !test || test(address);
}

void tell_gpu_memory_by(bool (*test)(const void*)) { is_gpu_memory = test; }

EngineDeviceScope::EngineDeviceScope(c10::Device device)
    : before_(std::exchange(current_device, device)) {}

EngineDeviceScope::~EngineDeviceScope() { current_device = before_; }

AtenKernelRegistrar::AtenKernelRegistrar(KernelDef def, OnCuda on_cuda) {
  KernelDef cuda = def;
  cuda.device = Device::CUDA;
  cuda.priority -= 1;
  cuda.deterministic = cuda.deterministic && on_cuda.deterministic;
  cuda.inexact = cuda.inexact || on_cuda.inexact;
  KernelRegistrar{std::move(def)};
  KernelRegistrar{std::move(cuda)};
}

}  // namespace ortmodule
