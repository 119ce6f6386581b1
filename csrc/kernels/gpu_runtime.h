// What kernels that call NVIDIA's libraries ask of the CUDA runtime, to choose between two ways of
// computing something. The code is in kernels/cuda.
#pragma once

#include <functional>
#include <string>

namespace ortmodule {

/// Whether a CUDA graph is being captured on the stream, or that cannot be said.
bool is_captured(void* stream);

/// Milliseconds that `work` takes on the stream; waits for it. Throws Error if it cannot be timed.
float stream_ms(void* stream, const std::function<void()>& work);

/// The name of a GPU.
std::string gpu_name(int device_index);

}  // namespace ortmodule
