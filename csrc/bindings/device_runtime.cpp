#include "bindings/device_runtime.h"

#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string_view>

#include "bindings/emulated_copies.h"
#include "bindings/host_recorder.h"

namespace ortmodule::bindings {
namespace {

void parallel_for_at(void*, int64_t count, int64_t grain, const ParallelFor::Body& body) {
  at::parallel_for(0, count, grain, body);
}

/// Asks Linux for huge pages inside a block. Blocks that the heap maps anew in each step then cause
/// 512 times fewer page faults.
void ask_for_huge_pages([[maybe_unused]] const Buffer& memory) {
#ifdef __linux__
  constexpr uintptr_t kHugePageBytes = 2 << 20;
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = begin + static_cast<uintptr_t>(memory.bytes());
  const uintptr_t first = (begin + kHugePageBytes - 1) & ~(kHugePageBytes - 1);
  const uintptr_t last = end & ~(kHugePageBytes - 1);
  // Only advice, so errors do not matter.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

/// Keeps the memory of a step in glibc's heap for the next step. By default the heap returns free
/// memory at its top to the system beyond twice its largest mapped block. That would happen in each
/// backward pass, and cost ten thousand page faults per step, up to an eighth of its time.
class HeapThresholds {
 public:
  /// Lets the heap keep up to twice `bytes`. Blocks above 32 MiB are still mapped and unmapped.
  void keep([[maybe_unused]] int64_t bytes) {
#ifdef __GLIBC__
    const std::lock_guard lock(mutex_);
    if (bytes <= kept_bytes_ || set_by_user()) return;
    kept_bytes_ = bytes;
    constexpr int kLargestInHeap = 32 << 20;  // glibc's DEFAULT_MMAP_THRESHOLD_MAX
    const bool fits = bytes <= std::numeric_limits<int>::max() / 2;
    mallopt(M_MMAP_THRESHOLD, kLargestInHeap);
    mallopt(M_TRIM_THRESHOLD, fits ? static_cast<int>(2 * bytes) : -1);  // -1: never trimmed
#endif
  }

 private:
  static bool set_by_user() {
    const char* tunables = std::getenv("GLIBC_TUNABLES");
    return std::getenv("MALLOC_TRIM_THRESHOLD_") || std::getenv("MALLOC_MMAP_THRESHOLD_") ||
           (tunables && std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos);
  }

  std::mutex mutex_;
  int64_t kept_bytes_ = 0;
};

/// CPU tensors; `kernels` is CUDA where its kernels are emulated on the host.
class CpuRuntime : public DeviceRuntime {
 public:
  explicit CpuRuntime(Device kernels) : DeviceRuntime(c10::kCPU, kernels) {}

  // Looked up each time, since an allocator (a counting one) may be installed later.
  c10::Allocator* torch_allocator() const override { return c10::GetCPUAllocator(); }

  Buffer allocate(int64_t bytes) const override {
    if (HostRecorder* recorder = HostRecorder::current()) return recorder->allocate(bytes);
    Buffer memory = DeviceRuntime::allocate(bytes);
    ask_for_huge_pages(memory);
    return memory;
  }

  void expect_again(int64_t bytes) override { heap_.keep(bytes); }

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
    // As in a CUDA graph: the key is in memory, and drawn again by each replay.
    drawn.memory = recorder->allocate(sizeof(uint64_t));
    auto* key = static_cast<uint64_t*>(drawn.memory.data());
    recorder->draw_into(key, random64);
    drawn.seed.pointer = key;
    return drawn;
  }

  std::unique_ptr<HostCopies> host_copies() const override {
    if (kernels() == Device::CPU) return nullptr;
    return std::make_unique<EmulatedCopies>();
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

  HeapThresholds heap_;
};

}  // namespace

// Builds emulate all CUDA kernels or none, so one op tells: "Contiguous" always has our own kernel.
bool has_cuda_emulation() {
#ifdef ORTM_WITH_CUDA
  return false;
#else
  const std::vector<const KernelDef*> copies = kernels_of("Contiguous");
  return std::any_of(copies.begin(), copies.end(),
                     [](const KernelDef* kernel) { return kernel->device == Device::CUDA; });
#endif
}

ParallelFor torch_parallel_for() { return {&parallel_for_at, nullptr}; }

int64_t torch_threads() { return at::get_num_threads(); }

Buffer DeviceRuntime::TorchAllocator::allocate(int64_t bytes) { return runtime_.allocate(bytes); }

Buffer DeviceRuntime::allocate(int64_t bytes) const {
  return allocate_from(*torch_allocator(), bytes);
}

void DeviceRuntime::copy(void* to, const void* from, int64_t bytes) const {
  std::memcpy(to, from, static_cast<size_t>(bytes));
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
