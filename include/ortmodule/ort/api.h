// The functions of onnxruntime's C interface that C++ programs use beside namespace Ort: status,
// options of providers, and names of providers.
#pragma once

#include <ortmodule/ort/session.h>

#include <cstring>
#include <string>
#include <vector>

namespace Ort::detail {

inline void update(std::map<std::string, std::string>& values, const char* const* keys,
                   const char* const* texts, size_t count) {
  for (size_t i = 0; i < count; ++i) values[keys[i]] = texts[i];
}

}  // namespace Ort::detail

/// Functions that return a status, null for success. Free a status by ReleaseStatus.
struct OrtApi {
  OrtStatus* CreateStatus(OrtErrorCode code, const char* message) const {
    return new OrtStatus{code, message};
  }
  OrtErrorCode GetErrorCode(const OrtStatus* status) const { return status->code; }
  const char* GetErrorMessage(const OrtStatus* status) const { return status->message.c_str(); }

  static void ReleaseStatusImpl(OrtStatus* status) { delete status; }
  static void ReleaseCUDAProviderOptionsImpl(OrtCUDAProviderOptionsV2* options) { delete options; }
  static void ReleaseTensorRTProviderOptionsImpl(OrtTensorRTProviderOptionsV2* options) {
    delete options;
  }
  static void ReleaseThreadingOptionsImpl(OrtThreadingOptions* options) { delete options; }
  // Pointers, because programs take their types and pass them on as deleters.
  void (*ReleaseStatus)(OrtStatus*) = ReleaseStatusImpl;
  void (*ReleaseCUDAProviderOptions)(OrtCUDAProviderOptionsV2*) = ReleaseCUDAProviderOptionsImpl;
  void (*ReleaseTensorRTProviderOptions)(OrtTensorRTProviderOptionsV2*) =
      ReleaseTensorRTProviderOptionsImpl;
  void (*ReleaseThreadingOptions)(OrtThreadingOptions*) = ReleaseThreadingOptionsImpl;

  OrtStatus* CreateThreadingOptions(OrtThreadingOptions** out) const {
    *out = new OrtThreadingOptions;
    return nullptr;
  }
  OrtStatus* SetGlobalIntraOpNumThreads(OrtThreadingOptions* options, int threads) const {
    options->intra_op_threads = threads;
    return nullptr;
  }
  OrtStatus* SetGlobalInterOpNumThreads(OrtThreadingOptions* options, int threads) const {
    options->inter_op_threads = threads;
    return nullptr;
  }
  OrtStatus* SetGlobalSpinControl(OrtThreadingOptions* options, int allow) const {
    options->spin_control = allow;
    return nullptr;
  }
  OrtStatus* SetGlobalDenormalAsZero(OrtThreadingOptions* options) const {
    options->denormals_as_zero = true;
    return nullptr;
  }

  OrtStatus* CreateCUDAProviderOptions(OrtCUDAProviderOptionsV2** out) const {
    *out = new OrtCUDAProviderOptionsV2;
    return nullptr;
  }
  OrtStatus* UpdateCUDAProviderOptions(OrtCUDAProviderOptionsV2* options, const char* const* keys,
                                       const char* const* values, size_t count) const {
    return Ort::detail::status_of(
        [&] { Ort::detail::update(options->values, keys, values, count); });
  }
  OrtStatus* CreateTensorRTProviderOptions(OrtTensorRTProviderOptionsV2** out) const {
    *out = new OrtTensorRTProviderOptionsV2;
    return nullptr;
  }
  OrtStatus* UpdateTensorRTProviderOptions(OrtTensorRTProviderOptionsV2* options,
                                           const char* const* keys, const char* const* values,
                                           size_t count) const {
    return Ort::detail::status_of(
        [&] { Ort::detail::update(options->values, keys, values, count); });
  }

  OrtStatus* SessionOptionsAppendExecutionProvider_CUDA(OrtSessionOptions* options,
                                                        const OrtCUDAProviderOptions*) const {
    return append(options, "CUDA");
  }
  OrtStatus* SessionOptionsAppendExecutionProvider_CUDA_V2(OrtSessionOptions* options,
                                                           const OrtCUDAProviderOptionsV2*) const {
    return append(options, "CUDA");
  }
  OrtStatus* SessionOptionsAppendExecutionProvider_TensorRT(
      OrtSessionOptions* options, const OrtTensorRTProviderOptions*) const {
    return append(options, "Tensorrt");
  }
  OrtStatus* SessionOptionsAppendExecutionProvider_TensorRT_V2(
      OrtSessionOptions* options, const OrtTensorRTProviderOptionsV2*) const {
    return append(options, "Tensorrt");
  }
  OrtStatus* SessionOptionsAppendExecutionProvider_OpenVINO(
      OrtSessionOptions* options, const OrtOpenVINOProviderOptions*) const {
    return append(options, "OpenVINO");
  }
  OrtStatus* AddSessionConfigEntry(OrtSessionOptions* options, const char* key,
                                   const char* value) const {
    return Ort::detail::status_of([&] { options->config[key] = value; });
  }

  static OrtStatus* append(OrtSessionOptions* options, const std::string& name) {
    return Ort::detail::status_of(
        [&] { Ort::UnownedSessionOptions(options).AppendExecutionProvider(name); });
  }
};

/// Where a program gets the functions by version.
struct OrtApiBase {
  /// Null for a version that this header does not cover.
  const OrtApi* GetApi(uint32_t version) const {
    static const OrtApi api;
    return version <= ORT_API_VERSION ? &api : nullptr;
  }
  const char* GetVersionString() const {
    static const std::string version = ortmodule::inference::version();
    return version.c_str();
  }
};

inline const OrtApiBase* OrtGetApiBase() {
  static const OrtApiBase base;
  return &base;
}

// Functions of the headers of single providers.
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_CPU(OrtSessionOptions* options, int) {
  return OrtApi::append(options, "CPU");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_CUDA(OrtSessionOptions* options, int) {
  return OrtApi::append(options, "CUDA");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_Tensorrt(OrtSessionOptions* options,
                                                                    int) {
  return OrtApi::append(options, "Tensorrt");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_Dnnl(OrtSessionOptions* options, int) {
  return OrtApi::append(options, "Dnnl");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_DML(OrtSessionOptions* options, int) {
  return OrtApi::append(options, "DML");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_ROCM(OrtSessionOptions* options, int) {
  return OrtApi::append(options, "ROCM");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_MIGraphX(OrtSessionOptions* options,
                                                                    int) {
  return OrtApi::append(options, "MIGraphX");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_CoreML(OrtSessionOptions* options,
                                                                  uint32_t) {
  return OrtApi::append(options, "CoreML");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_Nnapi(OrtSessionOptions* options,
                                                                 uint32_t) {
  return OrtApi::append(options, "NNAPI");
}
inline OrtStatus* OrtSessionOptionsAppendExecutionProvider_OpenVINO(OrtSessionOptions* options,
                                                                    const char*) {
  return OrtApi::append(options, "OpenVINO");
}

namespace Ort {

inline const OrtApi& GetApi() { return *OrtGetApiBase()->GetApi(ORT_API_VERSION); }

namespace detail {

/// Options of a provider as texts by key.
template <class Options>
class ProviderOptions : public Base<Options> {
 public:
  ProviderOptions() { this->p_ = new Options; }
  explicit ProviderOptions(std::nullptr_t) {}
  void Update(const std::unordered_map<std::string, std::string>& entries) {
    for (const auto& entry : entries) values()[entry.first] = entry.second;
  }

 protected:
  auto& values() const { return checked(this->p_, "ProviderOptions").values; }
  /// key=value;key=value
  std::string text() const {
    std::string joined;
    for (const auto& entry : values())
      joined += (joined.empty() ? "" : ";") + entry.first + "=" + entry.second;
    return joined;
  }
};

}  // namespace detail

class CUDAProviderOptions : public detail::ProviderOptions<OrtCUDAProviderOptionsV2> {
 public:
  using ProviderOptions::ProviderOptions;
  std::string GetCUDAProviderOptionsAsString() const { return text(); }
};

class TensorRTProviderOptions : public detail::ProviderOptions<OrtTensorRTProviderOptionsV2> {
 public:
  using ProviderOptions::ProviderOptions;
  std::string GetTensorRTProviderOptionsAsString() const { return text(); }
};

/// Nothing has to be loaded first.
inline void InitApi() {}
inline std::string GetVersionString() { return OrtGetApiBase()->GetVersionString(); }
inline std::string GetBuildInfoString() {
  return "ortmodule " + GetVersionString() + ", CPUExecutionProvider";
}
/// The providers of this build, best first.
inline std::vector<std::string> GetAvailableProviders() { return {"CPUExecutionProvider"}; }

}  // namespace Ort
