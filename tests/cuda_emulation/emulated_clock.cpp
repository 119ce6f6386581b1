#include "emulated_clock.h"

#include <atomic>

namespace ortmodule::cuda::emulation {
namespace {

std::atomic<float> now{0};
std::atomic<bool> capturing{false};

}  // namespace

void pass_time(float ms) { now = now + ms; }
float time_ms() { return now; }

void pretend_capture(bool captures) { capturing = captures; }
bool captures() { return capturing; }

}  // namespace ortmodule::cuda::emulation
