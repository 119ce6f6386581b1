// Devices of torch for inference sessions.
#include <deque>
#include <limits>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "bindings/device_runtime.h"
#include "bindings/emulated_memory.h"
#include "bindings/topics.h"
#include "kernels/step_compiler.h"
#include "runtime/run_device.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

class TorchRunDevice : public RunDevice {
 public:
  explicit TorchRunDevice(DeviceRuntime& runtime) : runtime_(runtime), allocator_(runtime) {}

  Device kernels() const override { return runtime_.kernels(); }
  Allocator& allocator() override { return allocator_; }
  void run(const std::function<void(KernelContext&)>& body) override {
    const DeviceScope scope(runtime_);
    KernelContext context;
    runtime_.fill(context);
    if (kernels() == Device::CUDA) context.generated_code = newest_generated_code(context);
    body(context);
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    const DeviceScope scope(runtime_);
    runtime_.copy(to, from, bytes);
  }
  void download(void* to, const void* from, int64_t bytes) override { upload(to, from, bytes); }
  void synchronize() override {
    const DeviceScope scope(runtime_);
    runtime_.synchronize();
  }
  void return_kept() override { runtime_.return_kept(); }

 private:
  // torch allocates on the current device.
  class OnDevice : public Allocator {
   public:
    explicit OnDevice(DeviceRuntime& runtime) : runtime_(runtime) {}
    Buffer allocate(int64_t bytes) override {
      const DeviceScope scope(runtime_);
      return runtime_.allocate(bytes);
    }

   private:
    DeviceRuntime& runtime_;
  };

  DeviceRuntime& runtime_;
  OnDevice allocator_;
};

// CUDA kernels on the host, with memory that only they and copies may touch.
class EmulatedRunDevice : public TorchRunDevice {
 public:
  using TorchRunDevice::TorchRunDevice;

  Allocator& allocator() override { return memory_; }
  void run(const std::function<void(KernelContext&)>& body) override {
    const EmulatedMemoryScope scope;
    TorchRunDevice::run(body);
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    const EmulatedMemoryScope scope;
    TorchRunDevice::upload(to, from, bytes);
  }

 private:
  EmulatedMemory memory_;
};

RunDevice& emulated_device(int number) {
  ORTM_CHECK(number == 0, "[device] the emulation has device 0, but found ", number);
  static EmulatedRunDevice device(device_runtime(c10::kCPU, true));
  return device;
}

RunDevice& cuda_device(int number) {
  static std::mutex mutex;
  static std::deque<std::optional<TorchRunDevice>> devices;  // a deque never moves its elements
  ORTM_CHECK(number <= std::numeric_limits<c10::DeviceIndex>::max(),
             "[device] device_id must be one of this machine's GPUs, but found ", number);
  const auto place = static_cast<size_t>(number);
  const std::lock_guard lock(mutex);
  if (devices.size() <= place) devices.resize(place + 1);
  if (!devices[place]) {
    DeviceRuntime& runtime =
        device_runtime(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number)), false);
    ORTM_CHECK(runtime.present(), "[device] device_id must be one of this machine's GPUs, but ",
               "found ", number);
    devices[place].emplace(runtime);
  }
  return *devices[place];
}

}  // namespace

void init_run_device(py::module_& m) {
  m.def(
      "provide_run_devices",
      [](bool emulate) { set_run_device_source(emulate ? emulated_device : cuda_device); },
      py::arg("emulate"), "Lets inference sessions of this process run on CUDA.");
}

}  // namespace ortmodule::bindings
