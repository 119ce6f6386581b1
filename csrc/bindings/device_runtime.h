// What the engine needs from a torch device: memory, stream, library handles, random numbers.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <memory>

#include "bindings/step_recorder.h"
#include "kernels/aten/engine_device.h"
#include "kernels/host_copies.h"
#include "kernels/kernel.h"

namespace ortmodule::bindings {

/// Memory from a torch allocator.
Buffer allocate_from(c10::Allocator& allocator, int64_t bytes);

/// The seed of one forward run, and its device memory while a CUDA graph is captured.
struct DrawnSeed {
  RunSeed seed;
  Buffer memory;
};

/// A torch device, shared by all pieces that run on it. Thread-safe.
class DeviceRuntime {
 public:
  explicit DeviceRuntime(c10::Device device, Device kernels)
      : device_(device), kernels_(kernels), allocator_(*this) {}
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;
  virtual ~DeviceRuntime() = default;

  /// Where tensors are.
  c10::Device device() const { return device_; }
  /// Whose kernels run the steps.
  Device kernels() const { return kernels_; }
  /// Allocates the engine's memory with torch's allocator of the device.
  Allocator& allocator() { return allocator_; }

  virtual c10::Allocator* torch_allocator() const = 0;
  /// Memory of at least `bytes` bytes.
  virtual Buffer allocate(int64_t bytes) const;
  /// Reports the peak bytes of a step, as a hint of what the next step will allocate.
  virtual void expect_again(int64_t) {}
  /// Fills in all but the seed: torch's current stream, library handles and flags of the calling
  /// thread. The device must be current.
  virtual void fill(KernelContext& context) const = 0;
  /// Draws a seed from torch's default generator of the device.
  virtual DrawnSeed draw_seed() const = 0;
  /// False on a machine without the device. A build with CUDA can still make plans there.
  virtual bool present() const { return true; }
  /// Whether the current stream is being captured as a CUDA graph.
  virtual bool capturing() const { return false; }
  /// Copies between host and device, after all work so far, and waits for it. Either side may be
  /// any memory.
  virtual void copy(void* to, const void* from, int64_t bytes) const;
  /// Waits for all work on the current stream.
  virtual void synchronize() const {}
  /// Returns memory that torch's allocator keeps to the system.
  virtual void return_kept() const {}
  /// What copies the values of a run to the host and back; null if the device has no such copies.
  virtual std::unique_ptr<HostCopies> host_copies() const { return nullptr; }
  /// Host memory of exactly `bytes` bytes that those copies can use. Error if there is none.
  virtual Buffer allocate_pinned(int64_t bytes) const { return allocate(bytes); }
  /// A recorder for the steps of a piece; null if the device cannot record and replay steps.
  virtual std::unique_ptr<StepRecorder> step_recorder() const { return nullptr; }

 private:
  class TorchAllocator : public Allocator {
   public:
    explicit TorchAllocator(const DeviceRuntime& runtime) : runtime_(runtime) {}
    Buffer allocate(int64_t bytes) override;

   private:
    const DeviceRuntime& runtime_;
  };

  c10::Device device_;
  Device kernels_;
  TorchAllocator allocator_;
};

/// The runtime of a CPU or GPU. With `emulate_cuda`, CPU tensors run on the CUDA kernels that
/// developer builds compile for the host. Throws Error if this build does not support it.
DeviceRuntime& device_runtime(c10::Device device, bool emulate_cuda);

/// Whether this build holds our own CUDA kernels compiled for the host.
bool has_cuda_emulation();

/// Makes the device current, for torch and for kernels that call ATen.
class DeviceScope {
 public:
  explicit DeviceScope(const DeviceRuntime& runtime) : engine_(runtime.device()) {
    if (runtime.device().is_cuda() && runtime.present()) guard_.reset_device(runtime.device());
  }

 private:
  EngineDeviceScope engine_;
  c10::OptionalDeviceGuard guard_;
};

/// Torch's thread pool as a ParallelFor.
ParallelFor torch_parallel_for();
/// Its number of threads.
int64_t torch_threads();

#ifdef ORTM_WITH_CUDA
/// Defined in bindings/cuda.
DeviceRuntime& cuda_runtime(c10::DeviceIndex index);
#endif

}  // namespace ortmodule::bindings
