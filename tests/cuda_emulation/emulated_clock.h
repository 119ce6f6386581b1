// The time of the emulated GPU, which passes where a test says so.
#pragma once

namespace ortmodule::cuda::emulation {

/// What is launched next begins so much later.
void pass_time(float ms);
float time_ms();

/// Whether a CUDA graph is being captured, on every stream.
void pretend_capture(bool captures);
bool captures();

}  // namespace ortmodule::cuda::emulation
