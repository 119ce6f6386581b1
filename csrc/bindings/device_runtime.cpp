#include "bindings/device_runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>

#include "bindings/host_recorder.h"
#include "kernels/worker_threads.h"

namespace ortmodule::bindings {
namespace {

void parallel_for_at(int64_t count, int64_t grain,
                     const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, count, grain, body);
}

/// CPU tensors; `kernels` is CUDA where its kernels are emulated on the host.
class CpuRuntime : public DeviceRuntime {
 public:
  explicit CpuRuntime(Device kernels) : DeviceRuntime(c10::kCPU, kernels) {
    set_worker_threads([]() -> int64_t { return at::get_num_threads(); });
  }

  // Asked each time, so that an allocator installed later (a counting one) sees every block.
  c10::Allocator* torch_allocator() const override { return c10::GetCPUAllocator(); }

  Buffer allocate(int64_t bytes) const override {
    if (HostRecorder* recorder = HostRecorder::current()) return recorder->allocate(bytes);
    return DeviceRuntime::allocate(bytes);
  }

  void fill(KernelContext& context) const override {
    context.parallel_for = torch_parallel_for();
    if (HostRecorder* recorder = HostRecorder::current()) context.log = recorder->log();
  }

  DrawnSeed draw_seed() const override {
    DrawnSeed drawn;
    HostRecorder* recorder = HostRecorder::current();
    if (!recorder) {
      drawn.seed.value = random64();
      return drawn;
    }
    // As in a CUDA graph: the key lies in memory, anew with each replay.
    drawn.memory = recorder->allocate(sizeof(uint64_t));
    auto* key = static_cast<uint64_t*>(drawn.memory.data());
    recorder->draw_into(key, random64);
    drawn.seed.pointer = key;
    return drawn;
  }

  std::unique_ptr<StepRecorder> step_recorder() const override {
    if (kernels() == Device::CPU) return nullptr;
    return std::make_unique<HostRecorder>();
  }

 private:
  static uint64_t random64() {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
};

}  // namespace

// All of them are, if any is; a copy is a kernel of our own everywhere.
bool has_cuda_emulation() {
#ifdef ORTM_WITH_CUDA
  return false;
#else
  const std::vector<const KernelDef*> copies = kernels_of("Contiguous");
  return std::any_of(copies.begin(), copies.end(),
                     [](const KernelDef* kernel) { return kernel->device == Device::CUDA; });
#endif
}

ParallelFor torch_parallel_for() { return &parallel_for_at; }

Buffer DeviceRuntime::TorchAllocator::allocate(int64_t bytes) { return runtime_.allocate(bytes); }

Buffer DeviceRuntime::allocate(int64_t bytes) const {
  return allocate_from(*torch_allocator(), bytes);
}

Buffer allocate_from(c10::Allocator& allocator, int64_t bytes) {
  at::DataPtr data = allocator.allocate(static_cast<size_t>(bytes));
  void* pointer = data.get();
  const auto deleter = data.get_deleter();
  return Buffer(pointer, bytes, data.release_context(), deleter);
}

DeviceRuntime& device_runtime(c10::Device device, bool emulate_cuda) {
  static CpuRuntime cpu(Device::CPU), emulated(Device::CUDA);
  if (emulate_cuda) {
    ORTM_CHECK(device.is_cpu(),
               "[ORTMODULE_CUDA_EMULATION] the model must be on the CPU, but found it on ",
               device.str());
    ORTM_CHECK(has_cuda_emulation(),
               "[ORTMODULE_CUDA_EMULATION] the build must hold the CUDA kernels compiled for the "
               "host, but found none; a developer build for a CPU torch has them");
    return emulated;
  }
  if (device.is_cpu()) return cpu;
#ifdef ORTM_WITH_CUDA
  if (device.is_cuda()) return cuda_runtime(device.index());
#endif
  throw Error(
      str("[device] tensors must be on a device that this build of ortmodule_py knows, but "
          "found them on ",
          device.str()));
}

}  // namespace ortmodule::bindings
