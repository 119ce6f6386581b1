// Code of steps that is compiled while they run, as seen by what runs steps. The one implementation
// is kernels/cuda/generated_group.h; builds without CUDA kernels have none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

struct StepCompilerCounts {
  int64_t compiled = 0, from_disk = 0, failed = 0, loaded = 0, launches = 0;
  std::string failure;  // the first one
};

/// Compiles in the background; a step whose code is not there yet is run by its kernel.
class StepCompiler {
 public:
  virtual ~StepCompiler() = default;
  /// For the context of a run that begins: loads what has been compiled for its device since and
  /// returns the number of the newest code, at least 1.
  virtual uint64_t newest(const KernelContext& context) = 0;
  /// Waits until everything that was asked for is compiled: before steps are captured, which keep
  /// the kernels that they are captured with.
  virtual void finish() = 0;
  virtual StepCompilerCounts counts() = 0;
};

/// That of this process; null while it is off.
StepCompiler* step_compiler();
/// From now on the steps of new plans are compiled. A second call changes nothing. The compiler is
/// in one of `folders`; its results are kept in `cache_folder` (empty: not at all). Throws Error if
/// the build has no such compiler, none of the folders has it, or the cache may not be used.
void enable_step_compiler(const std::vector<std::string>& folders, const std::string& cache_folder);

/// KernelContext::generated_code of a run that begins, on CUDA's kernels; 0 while it is off.
uint64_t newest_generated_code(const KernelContext& context);

// --- for implementations -------------------------------------------------------------------------
void set_step_compiler(StepCompiler* compiler);
/// A static object of a build's compiler. `start` calls set_step_compiler().
struct RegisterStepCompiler {
  using Start = void (*)(const std::vector<std::string>& folders, const std::string& cache_folder);
  explicit RegisterStepCompiler(Start start);
};

}  // namespace ortmodule
