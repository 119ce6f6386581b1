// NVRTC, the compiler that comes with torch's CUDA wheels. It needs neither a driver nor a GPU.
#pragma once

#include <string>
#include <vector>

namespace ortmodule::cuda {

class RtcCompiler {
 public:
  /// Loads the library from a folder. Throws Error if it is not there.
  explicit RtcCompiler(const std::string& folder);

  int version() const { return version_; }  // 13000 for 13.0
  /// 90 for sm_90, rising.
  const std::vector<int>& architectures() const { return architectures_; }
  /// The machine code of `source`, which may include what rtc_headers() lists. Throws Error with
  /// the compiler's messages.
  std::string compile(const std::string& source, int architecture) const;

  /// What code depends on beside its text: headers, options and the compiler's version.
  std::string environment() const;

 private:
  using Program = void*;
  using Result = int;  // 0: success

  template <class F>
  void find(F*& function, const char* name) const;
  void require(Result result, const char* what) const;
  std::string log_of(Program program) const;

  void* library_ = nullptr;  // stays loaded: the driver may keep what it made
  int version_ = 0;
  std::vector<int> architectures_;
  Result (*create_)(Program*, const char*, const char*, int, const char* const*,
                    const char* const*) = nullptr;
  Result (*compile_)(Program, int, const char* const*) = nullptr;
  Result (*destroy_)(Program*) = nullptr;
  Result (*log_size_)(Program, size_t*) = nullptr;
  Result (*log_)(Program, char*) = nullptr;
  Result (*cubin_size_)(Program, size_t*) = nullptr;
  Result (*cubin_)(Program, char*) = nullptr;
  const char* (*error_)(Result) = nullptr;
};

/// The first of these folders that holds NVRTC, or an empty string.
std::string folder_with_rtc(const std::vector<std::string>& folders);

}  // namespace ortmodule::cuda
