// The time of work on a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace ortmodule::cudnn {

inline void check_event(cudaError_t status) {
  ORTM_CHECK(status == cudaSuccess, "[convolution] an event must be timed, but found ",
             cudaGetErrorString(status),
             "; with ORTMODULE_CONV_ALGO_SEARCH=HEURISTIC nothing is timed");
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

/// Milliseconds that `work` takes on the stream; waits for it.
template <class Work>
float stream_ms(cudaStream_t stream, const Work& work) {
  const Event begin, end;
  float ms = 0;
  check_event(cudaEventRecord(begin.get(), stream));
  work();
  check_event(cudaEventRecord(end.get(), stream));
  check_event(cudaEventSynchronize(end.get()));
  check_event(cudaEventElapsedTime(&ms, begin.get(), end.get()));
  return ms;
}

}  // namespace ortmodule::cudnn
