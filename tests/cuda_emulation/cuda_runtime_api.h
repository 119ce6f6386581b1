// Stands in for CUDA's header where kernels/cuda asks the runtime for more than launches: events in
// the time of the emulated GPU (emulated_clock.h), captures, the name of the device.
#pragma once

#include <cuda_runtime.h>

#include "emulated_clock.h"

using cudaEvent_t = float*;
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new float(0);
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  *event = ortmodule::cuda::emulation::time_ms();
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = *end - *begin;
  return cudaSuccess;
}

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = ortmodule::cuda::emulation::captures() ? cudaStreamCaptureStatusActive
                                                   : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

struct cudaDeviceProp {
  char name[256];
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated"};
  return cudaSuccess;
}
