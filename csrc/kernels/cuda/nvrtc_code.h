// Generated code on a GPU: compiled by NVRTC, loaded by CUDA.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/generated_group.h"

namespace ortmodule::cuda {

/// With the NVRTC of a folder. Throws Error if it is not there.
std::unique_ptr<CodeMaker> nvrtc_code_maker(const std::string& folder);

}  // namespace ortmodule::cuda
