// Generated CUDA code (kernels/cuda/pointwise_source.h) compiled by the C++ compiler that built
// this program and loaded into the emulation.
#pragma once

#include <string>

#include "kernels/cuda/generated_group.h"

namespace ortmodule::cuda::emulation {

/// A shared library of `text`, as the bytes of its file. Throws Error with the compiler's messages.
std::string compile_for_host(const std::string& text);

/// Such a library, loaded for the rest of the process.
class HostLibrary {
 public:
  using Kernel = void (*)(PointwiseLaunch);

  explicit HostLibrary(const std::string& bytes);
  Kernel kernel(const std::string& name) const;

 private:
  void* library_ = nullptr;
};

/// Compiles generated code for the emulation as it is compiled for a GPU elsewhere.
class HostCodeMaker : public CodeMaker {
 public:
  std::string environment(int device) const override;
  std::string compile(const PointwiseSource& source, int device) const override;
  std::unique_ptr<LoadedCode> load(const std::string& code, const PointwiseSource& source,
                                   int device) const override;
  bool may_load(const KernelContext&) const override { return true; }
};

}  // namespace ortmodule::cuda::emulation
