#include "bindings/cuda/stream_copies.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/mman.h>

#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace ortmodule::bindings {
namespace {

/// One stream of torch's pool for each direction, as a GPU has a copy engine for each. The copies
/// of a run begin behind its steps, and thereby behind those of earlier runs on the same stream.
class StreamCopies : public HostCopies {
 public:
  explicit StreamCopies(c10::DeviceIndex device)
      : to_host_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device)),
        to_device_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device)) {}

  ~StreamCopies() override {
    try {
      finish();
    } catch (const std::exception&) {  // CUDA has failed before and will say so again
    }
  }

  void to_host(void* host, const void* device, int64_t bytes) override {
    begin(to_host_, host, device, bytes, cudaMemcpyDeviceToHost);
  }

  void to_device(void* device, const void* host, int64_t bytes) override {
    begin(to_device_, device, host, bytes, cudaMemcpyHostToDevice);
  }

  void await(const void* destination) override {
    const auto found = pending_.find(destination);
    ORTM_ASSERT(found != pending_.end(), "a step waits for a copy that has not begun");
    found->second.ended.block(c10::cuda::getCurrentCUDAStream());
    pending_.erase(found);
  }

  /// On the streams of the steps that began the copies: the memory is freed there.
  void finish() override {
    for (auto& [destination, copy] : pending_) copy.ended.block(copy.steps);
    pending_.clear();
  }

 private:
  struct Copy {
    at::cuda::CUDAEvent ended;
    c10::cuda::CUDAStream steps;
  };

  void begin(const c10::cuda::CUDAStream& stream, void* to, const void* from, int64_t bytes,
             cudaMemcpyKind kind) {
    const c10::cuda::CUDAStream steps = c10::cuda::getCurrentCUDAStream();
    at::cuda::CUDAEvent ready;
    ready.record(steps);
    ready.block(stream);
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream.stream()));
    Copy copy{at::cuda::CUDAEvent(), steps};
    copy.ended.record(stream);
    pending_.insert_or_assign(to, std::move(copy));
  }

  c10::cuda::CUDAStream to_host_, to_device_;
  std::unordered_map<const void*, Copy> pending_;  // by destination
};

struct Mapped {
  void* data = nullptr;
  size_t bytes = 0;
};

void unregister(void* context) {
  const std::unique_ptr<Mapped> mapped(static_cast<Mapped*>(context));
  cudaHostUnregister(mapped->data);  // waits for the device
  munmap(mapped->data, mapped->bytes);
}

}  // namespace

std::unique_ptr<HostCopies> stream_copies(c10::DeviceIndex device) {
  return std::make_unique<StreamCopies>(device);
}

Buffer allocate_registered(int64_t bytes) {
  auto mapped = std::make_unique<Mapped>();
  mapped->bytes = static_cast<size_t>(bytes);
  mapped->data =
      mmap(nullptr, mapped->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ORTM_CHECK(mapped->data != MAP_FAILED, "[offload] the host must have ", bytes,
             " bytes for values of the GPU, but found no room; set a smaller "
             "ORTMODULE_OFFLOAD_BUDGET, or ORTMODULE_OFFLOAD=0");
  const cudaError_t error = cudaHostRegister(mapped->data, mapped->bytes, cudaHostRegisterDefault);
  if (error != cudaSuccess) {
    cudaGetLastError();  // clears the error
    munmap(mapped->data, mapped->bytes);
    throw Error(str("[offload] ", bytes,
                    " bytes of host memory must be registered with CUDA, but "
                    "found: ",
                    cudaGetErrorString(error),
                    "; set a smaller ORTMODULE_OFFLOAD_BUDGET, or ORTMODULE_OFFLOAD=0"));
  }
  void* data = mapped->data;
  return {data, bytes, mapped.release(), &unregister};
}

}  // namespace ortmodule::bindings
