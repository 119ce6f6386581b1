#include "kernels/cuda/rtc_compiler.h"

#include <dlfcn.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "kernels/cuda/rtc_headers.h"

namespace ortmodule::cuda {
namespace {

namespace fs = std::filesystem;

/// As nvcc compiles the other kernels (tools/cmake/cuda.cmake).
constexpr const char* kRtcOptions[] = {"--std=c++20", "--fmad=false",
                                       "--device-as-default-execution-space"};

/// The file libNAME.so.<version> of a folder.
std::string library_file(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  const std::string start = "lib" + name + ".so.";
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().rfind(start, 0) == 0) return entry.path().string();
  return {};
}

void* load_library(const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  ORTM_CHECK(library, "[nvrtc] a library of CUDA must load, but found \"", dlerror(), "\"");
  return library;
}

}  // namespace

std::string folder_with_rtc(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (!library_file(folder, "nvrtc").empty()) return folder;
  return {};
}

RtcCompiler::RtcCompiler(const std::string& folder) {
  const std::string file = library_file(folder, "nvrtc"),
                    builtins = library_file(folder, "nvrtc-builtins");
  ORTM_CHECK(!file.empty() && !builtins.empty(),
             "[nvrtc] the folder must hold libnvrtc and libnvrtc-builtins, but \"", folder,
             "\" does not: install nvidia-cuda-nvrtc");
  // NVRTC asks for the builtins by name only, which finds them where they are loaded already.
  load_library(builtins);
  library_ = load_library(file);
  find(create_, "nvrtcCreateProgram");
  find(compile_, "nvrtcCompileProgram");
  find(destroy_, "nvrtcDestroyProgram");
  find(log_size_, "nvrtcGetProgramLogSize");
  find(log_, "nvrtcGetProgramLog");
  find(cubin_size_, "nvrtcGetCUBINSize");
  find(cubin_, "nvrtcGetCUBIN");
  find(error_, "nvrtcGetErrorString");
  Result (*version)(int*, int*) = nullptr;
  find(version, "nvrtcVersion");
  int major = 0, minor = 0, count = 0;
  require(version(&major, &minor), "nvrtcVersion");
  version_ = major * 1000 + minor * 10;
  Result (*count_architectures)(int*) = nullptr;
  Result (*list_architectures)(int*) = nullptr;
  find(count_architectures, "nvrtcGetNumSupportedArchs");
  find(list_architectures, "nvrtcGetSupportedArchs");
  require(count_architectures(&count), "nvrtcGetNumSupportedArchs");
  architectures_.resize(static_cast<size_t>(count));
  require(list_architectures(architectures_.data()), "nvrtcGetSupportedArchs");
}

template <class F>
void RtcCompiler::find(F*& function, const char* name) const {
  function = reinterpret_cast<F*>(dlsym(library_, name));
  ORTM_CHECK(function, "[nvrtc] the library must have ", name, ", but found \"", dlerror(), "\"");
}

void RtcCompiler::require(Result result, const char* what) const {
  ORTM_CHECK(result == 0, "[nvrtc] ", what, " must succeed, but found \"", error_(result), "\"");
}

std::string RtcCompiler::log_of(Program program) const {
  size_t size = 0;
  if (log_size_(program, &size) != 0 || size < 2) return "no messages";
  std::string log(size, '\0');
  log_(program, log.data());
  return log;
}

std::string RtcCompiler::compile(const std::string& source, int architecture) const {
  std::vector<const char*> texts, names;
  for (const RtcHeader& header : rtc_headers()) {
    texts.push_back(header.text);
    names.push_back(header.name);
  }
  Program program = nullptr;
  require(create_(&program, source.c_str(), "pointwise_group.cu", static_cast<int>(texts.size()),
                  texts.data(), names.data()),
          "nvrtcCreateProgram");
  const auto destroy = [this](Program* held) { destroy_(held); };
  const std::unique_ptr<Program, decltype(destroy)> owner(&program, destroy);
  const std::string target = str("--gpu-architecture=sm_", architecture);
  std::vector<const char*> options(std::begin(kRtcOptions), std::end(kRtcOptions));
  options.push_back(target.c_str());
  const Result result = compile_(program, static_cast<int>(options.size()), options.data());
  ORTM_CHECK(result == 0, "[nvrtc] the code must compile for sm_", architecture, ", but found \"",
             error_(result), "\":\n", log_of(program));
  size_t size = 0;
  require(cubin_size_(program, &size), "nvrtcGetCUBINSize");
  std::string cubin(size, '\0');
  require(cubin_(program, cubin.data()), "nvrtcGetCUBIN");
  return cubin;
}

std::string RtcCompiler::environment() const {
  std::string all = str("nvrtc ", version_);
  for (const char* option : kRtcOptions) all += str(" ", option);
  for (const RtcHeader& header : rtc_headers()) all += str("\n", header.name, "\n", header.text);
  return all;
}

}  // namespace ortmodule::cuda
