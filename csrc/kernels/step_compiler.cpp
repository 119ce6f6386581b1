#include "kernels/step_compiler.h"

#include <atomic>

#include "base/error.h"

namespace ortmodule {
namespace {

std::atomic<StepCompiler*> process_compiler{nullptr};

// Null in a build without one. Objects of other files set it before main().
RegisterStepCompiler::Start start_of_build = nullptr;

}  // namespace

StepCompiler* step_compiler() { return process_compiler; }

void set_step_compiler(StepCompiler* compiler) { process_compiler = compiler; }

RegisterStepCompiler::RegisterStepCompiler(Start start) { start_of_build = start; }

void enable_step_compiler(const std::vector<std::string>& folders,
                          const std::string& cache_folder) {
  if (step_compiler()) return;
  ORTM_CHECK(start_of_build,
             "[generated code] the build must hold CUDA kernels, but found none in it; set "
             "ORTMODULE_GENERATED_CODE=0, or build with ORTMODULE_CUDA=ON");
  start_of_build(folders, cache_folder);
}

uint64_t newest_generated_code(const KernelContext& context) {
  StepCompiler* compiler = step_compiler();
  return compiler ? compiler->newest(context) : 0;
}

}  // namespace ortmodule
