#include <algorithm>
#include <utility>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/nvrtc_code.h"
#include "kernels/cuda/rtc_compiler.h"

namespace ortmodule::cuda {
namespace {

/// A group that fails here stays interpreted, so nothing may be left for its next launch to report.
void require_success(cudaError_t status, const char* what) {
  if (status != cudaSuccess) cudaGetLastError();
  ORTM_CHECK(status == cudaSuccess, "[generated code] ", what, " must succeed, but found \"",
             cudaGetErrorString(status), "\"");
}

/// Loading is not allowed while any thread captures a graph in CUDA's global mode, unless the
/// calling thread says that what it does is not part of it.
class OutsideCaptures {
 public:
  OutsideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;
  ~OutsideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Never unloaded: work that is under way and recorded graphs may use it.
class DeviceCode : public LoadedCode {
 public:
  DeviceCode(const std::string& cubin, const std::string& name) {
    const OutsideCaptures loading;
    cudaLibrary_t library = nullptr;
    require_success(
        cudaLibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cudaLibraryLoadData");
    require_success(cudaLibraryGetKernel(&kernel_, library, name.c_str()), "cudaLibraryGetKernel");
    // Otherwise the first launch loads it, which may be within a capture.
    cudaFuncAttributes attributes{};
    require_success(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel_)),
                    "cudaFuncGetAttributes");
  }

  void launch(const PointwiseLaunch& launch, int64_t blocks,
              const KernelContext& context) const override {
    void* parameters[] = {const_cast<PointwiseLaunch*>(&launch)};
    check_launch("pointwise_group (generated)",
                 cudaLaunchKernel(reinterpret_cast<const void*>(kernel_), grid_of(blocks),
                                  dim3(kPointwiseThreads), parameters, 0, stream_of(context)));
  }

 private:
  cudaKernel_t kernel_ = nullptr;
};

class NvrtcCodeMaker : public CodeMaker {
 public:
  explicit NvrtcCodeMaker(const std::string& folder) : compiler_(folder) {}

  std::string environment(int device) const override {
    return str("sm_", architecture(device), "\n", compiler_.environment(), "\n");
  }

  std::string compile(const PointwiseSource& source, int device) const override {
    return compiler_.compile(source.text, architecture(device));
  }

  std::unique_ptr<LoadedCode> load(const std::string& code, const PointwiseSource& source,
                                   int) const override {
    return std::make_unique<DeviceCode>(code, source.name);
  }

  bool may_load(const KernelContext& context) const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_of(context), &status) != cudaSuccess) {
      cudaGetLastError();  // clears it
      return false;
    }
    return status == cudaStreamCaptureStatusNone;
  }

 private:
  // The device's own architecture, or the newest one whose code it runs.
  int architecture(int device) const {
    int major = 0, minor = 0;
    require_success(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                    "cudaDeviceGetAttribute");
    require_success(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                    "cudaDeviceGetAttribute");
    int best = 0;
    for (int known : compiler_.architectures())
      if (known / 10 == major && known % 10 <= minor) best = std::max(best, known);
    ORTM_CHECK(best > 0, "[generated code] NVRTC ", compiler_.version(),
               " must know the GPU's architecture, but found sm_", major, minor);
    return best;
  }

  RtcCompiler compiler_;
};

const RegisterStepCompiler nvrtc_of_build([](const std::vector<std::string>& folders,
                                             const std::string& cache_folder) {
  const std::string folder = folder_with_rtc(folders);
  std::string searched;
  for (const std::string& each : folders) searched += str(" ", each);
  ORTM_CHECK(!folder.empty(),
             "[generated code] NVRTC, a part of torch's wheels and of the CUDA Toolkit, must be "
             "installed, but found it in none of",
             searched);
  enable_generated_code(nvrtc_code_maker(folder), cache_folder);
});

}  // namespace

std::unique_ptr<CodeMaker> nvrtc_code_maker(const std::string& folder) {
  return std::make_unique<NvrtcCodeMaker>(folder);
}

}  // namespace ortmodule::cuda
