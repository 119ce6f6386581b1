// The runtime of a GPU. The only file that uses torch's CUDA libraries: current stream, caching
// allocator, handles, flags, generator. Nothing synchronizes with the device but copies for
// sessions.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#ifdef ORTM_WITH_CUDNN
#include <ATen/cudnn/Handle.h>
#endif
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <deque>
#include <mutex>
#include <optional>

#include "bindings/cuda/graph_recorder.h"
#include "bindings/cuda/stream_copies.h"
#include "bindings/device_runtime.h"
#include "kernels/aten/engine_device.h"
#include "kernels/cuda/run_seed.h"
#include "kernels/philox.h"

namespace ortmodule::bindings {
namespace {

/// How far a run advances the generator's offset; torch requires a multiple of 4. Each run makes
/// its own Philox key from seed and offset.
constexpr uint64_t kNumbersPerRun = 4;

/// torch has the same query, but throws for memory that CUDA does not know, which is too slow
/// within a step.
bool is_gpu_memory(const void* address) {
  cudaPointerAttributes facts{};
  if (cudaPointerGetAttributes(&facts, address) != cudaSuccess) {
    cudaGetLastError();  // clears the error, which is expected
    return false;
  }
  return facts.type == cudaMemoryTypeDevice || facts.type == cudaMemoryTypeManaged;
}

#ifdef ORTM_WITH_CUDNN
/// The thread's handle and the stream that it was last set to. torch sets the stream again each
/// time that it gives the handle, which a run does once instead of for each convolution.
struct DnnHandle {
  void* handle;
  c10::cuda::CUDAStream stream;  // names its device, too
};
thread_local std::optional<DnnHandle> run_dnn_handle;

/// Created on demand: the first handle takes time and memory, which models without convolutions
/// need not spend.
void* dnn_handle() {
  const c10::cuda::CUDAStream stream = at::cuda::getCurrentCUDAStream();
  if (!run_dnn_handle || run_dnn_handle->stream != stream)
    run_dnn_handle = DnnHandle{at::native::getCudnnHandle(), stream};
  return run_dnn_handle->handle;
}
#endif

class CudaRuntime : public DeviceRuntime {
 public:
  explicit CudaRuntime(c10::DeviceIndex index)
      : DeviceRuntime(c10::Device(c10::kCUDA, index), Device::CUDA) {
    tell_gpu_memory_by(is_gpu_memory);
    // Sessions allocate from torch before anything else of the process has asked it for CUDA.
    if (present()) at::globalContext().lazyInitDevice(c10::kCUDA);
  }

  c10::Allocator* torch_allocator() const override {
    return c10::cuda::CUDACachingAllocator::get();
  }

  void fill(KernelContext& context) const override {
    enter_device();
    const at::Context& flags = at::globalContext();
    context.parallel_for = torch_parallel_for();
    context.stream = at::cuda::getCurrentCUDAStream().stream();
    context.blas = at::cuda::getCurrentCUDABlasHandle();
    context.blas_lt = at::cuda::getCurrentCUDABlasLtHandle();
#ifdef ORTM_WITH_CUDNN
    run_dnn_handle.reset();
    if (flags.userEnabledCuDNN()) context.dnn = dnn_handle;
#endif
    context.device_index = device().index();
    context.allow_tf32 = flags.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
                         at::Float32Precision::TF32;
    context.allow_convolution_tf32 =
        flags.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV) ==
        at::Float32Precision::TF32;
    if (flags.benchmarkCuDNN()) context.convolution_search = ConvolutionSearch::Exhaustive;
    context.allow_float16_reduction = flags.allowFP16ReductionCuBLAS() ==
                                      at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
    context.allow_bfloat16_reduction = flags.allowBF16ReductionCuBLAS() ==
                                       at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
    context.deterministic = flags.deterministicAlgorithms();
  }

  DrawnSeed draw_seed() const override {
    auto generator = at::cuda::detail::getDefaultCUDAGenerator(device().index());
    at::PhiloxCudaState state;
    {
      const std::lock_guard lock(generator.mutex());
      state =
          at::check_generator<at::CUDAGeneratorImpl>(generator)->philox_cuda_state(kNumbersPerRun);
    }
    DrawnSeed drawn;
    if (!state.captured_) {
      std::call_once(key_kernel_loaded_, [this] { load_key_kernel(); });
      drawn.seed.value = run_key(state.seed_.val, state.offset_.val);
      return drawn;
    }
    // Each replay of a graph sets its seed and offset in device memory. The key is computed from
    // them on the device, once per run, and kept for backward.
    drawn.memory = allocate_from(*torch_allocator(), sizeof(uint64_t));
    auto* key = static_cast<uint64_t*>(drawn.memory.data());
    drawn.seed.pointer = key;
    cuda::write_run_key(key, state.seed_.ptr, state.offset_.ptr, state.offset_intragraph_,
                        at::cuda::getCurrentCUDAStream().stream());
    return drawn;
  }

  bool present() const override { return c10::cuda::device_count() > device().index(); }

  bool capturing() const override {
    return present() &&
           c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }

  void copy(void* to, const void* from, int64_t bytes) const override {
    const auto stream = at::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream.stream()));
    stream.synchronize();
  }

  void synchronize() const override { at::cuda::getCurrentCUDAStream().synchronize(); }

  void return_kept() const override { c10::cuda::CUDACachingAllocator::emptyCache(); }

  std::unique_ptr<HostCopies> host_copies() const override {
    return stream_copies(device().index());
  }

  Buffer allocate_pinned(int64_t bytes) const override { return allocate_registered(bytes); }

  std::unique_ptr<StepRecorder> step_recorder() const override {
    return cuda_graph_recorder(*this);
  }

 private:
  /// The thread gets the device's context: autograd's threads come without one.
  void enter_device() const {
    static thread_local c10::DeviceIndex entered = -1;
    if (entered == device().index()) return;
    c10::cuda::set_device(device().index(), /*force=*/true);
    entered = device().index();
  }

  /// CUDA loads a kernel at its first launch, which a capture may not allow, and only captured
  /// steps need this one.
  void load_key_kernel() const {
    const Buffer numbers = allocate_from(*torch_allocator(), 3 * sizeof(int64_t));
    auto* key = static_cast<int64_t*>(numbers.data());
    const auto stream = at::cuda::getCurrentCUDAStream().stream();
    C10_CUDA_CHECK(cudaMemsetAsync(key, 0, 3 * sizeof(int64_t), stream));
    cuda::write_run_key(reinterpret_cast<uint64_t*>(key), key + 1, key + 2, 0, stream);
  }

  mutable std::once_flag key_kernel_loaded_;
};

}  // namespace

DeviceRuntime& cuda_runtime(c10::DeviceIndex index) {
  static std::mutex mutex;
  static std::deque<CudaRuntime> runtimes;  // a deque never moves its elements
  const std::lock_guard lock(mutex);
  while (runtimes.size() <= static_cast<size_t>(index))
    runtimes.emplace_back(static_cast<c10::DeviceIndex>(runtimes.size()));
  return runtimes[static_cast<size_t>(index)];
}

}  // namespace ortmodule::bindings
