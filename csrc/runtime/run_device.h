// A device beside the host that sessions run on, from the module that links its libraries.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/buffer.h"
#include "base/device.h"
#include "kernels/kernel.h"
#include "runtime/device_number.h"

namespace ortmodule {

/// Thread-safe. Work is ordered as on one stream of the calling thread.
class RunDevice {
 public:
  virtual ~RunDevice() = default;
  /// Whose kernels run the steps.
  virtual Device kernels() const = 0;
  /// Of memory on the device, which the host must not touch.
  virtual Allocator& allocator() = 0;
  /// Calls `body` while the device is the thread's current one, with a context that lacks a seed.
  virtual void run(const std::function<void(KernelContext&)>& body) = 0;
  /// Copies to the device. `from` may change when it returns.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  /// Copies to the host, after all work so far. `to` is written when it returns.
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  /// Waits for all work so far.
  virtual void synchronize() = 0;
  /// Returns memory that the allocator keeps to the system.
  virtual void return_kept() = 0;
};

/// How a session runs on a device.
struct RunDeviceOptions {
  int number = kOnHost;
  std::optional<ConvolutionSearch> convolution_search = std::nullopt;  // none: the device's own
  bool allow_tf32 = true;  // products and convolutions of float32 may round operands to TF32
};

/// Gives the device of a number. It lives as long as the process. Throws Error if there is none.
using RunDeviceSource = RunDevice& (*)(int number);

/// Called once, by the module that knows devices, when it is loaded.
void set_run_device_source(RunDeviceSource source);

/// The device of that number. Throws Error if no module of this process knows devices.
RunDevice& run_device(int number);

}  // namespace ortmodule
