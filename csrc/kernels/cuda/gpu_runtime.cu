#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/gpu_runtime.h"

namespace ortmodule {
namespace {

void check_event(cudaError_t status) {
  ORTM_CHECK(status == cudaSuccess, "[timing] an event must be timed, but found ",
             cudaGetErrorString(status),
             "; with ORTMODULE_CONV_ALGO_SEARCH=HEURISTIC and ORTMODULE_PRODUCT_EPILOGUES=1 "
             "nothing is timed");
}

class Event {
 public:
  Event() { check_event(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

bool is_captured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) {
    cudaGetLastError();  // clears the error, which the next launch would report as its own
    return true;
  }
  return status != cudaStreamCaptureStatusNone;
}

float stream_ms(void* stream, const std::function<void()>& work) {
  const Event begin, end;
  float ms = 0;
  check_event(cudaEventRecord(begin.get(), static_cast<cudaStream_t>(stream)));
  work();
  check_event(cudaEventRecord(end.get(), static_cast<cudaStream_t>(stream)));
  check_event(cudaEventSynchronize(end.get()));
  check_event(cudaEventElapsedTime(&ms, begin.get(), end.get()));
  return ms;
}

std::string gpu_name(int device_index) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device_index) == cudaSuccess) return properties.name;
  cudaGetLastError();
  return "unknown";
}

}  // namespace ortmodule
