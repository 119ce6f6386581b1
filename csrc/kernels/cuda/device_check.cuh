// Checks of operands' values, which only the device knows. A broken rule is a device-side assertion
// as torch's kernels have them: the kernel stops before it touches memory, `rule` is printed to
// stderr with block and thread, and the next call that waits for the device reports "device-side
// assert triggered"; the process needs a new CUDA context then. In the emulation it is an Error
// with the message, as on the CPU.
#pragma once

#include <cassert>

#include "base/error.h"
#include "kernels/cuda/launch.cuh"

/// ORTM_DEVICE_CHECK(condition, "rule", message...): the message exists in the emulation only.
#if defined(ORTM_CUDA_EMULATION)
#define ORTM_DEVICE_CHECK(condition, rule, ...) ORTM_CHECK(condition, __VA_ARGS__)
#elif defined(__CUDA_ARCH__)
#define ORTM_DEVICE_CHECK(condition, rule, ...)                                           \
  do {                                                                                    \
    if (!(condition)) __assert_fail(rule, __FILE__, static_cast<unsigned>(__LINE__), ""); \
  } while (false)
#else
#define ORTM_DEVICE_CHECK(condition, rule, ...) static_cast<void>(condition)
#endif
