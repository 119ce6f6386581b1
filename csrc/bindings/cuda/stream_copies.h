// Copies between a GPU and the host on streams of their own.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "base/buffer.h"
#include "kernels/host_copies.h"

namespace ortmodule::bindings {

/// The copies of one run on that GPU, from its current stream.
std::unique_ptr<HostCopies> stream_copies(c10::DeviceIndex device);

/// Host memory of exactly `bytes` bytes, in whole pages, registered with CUDA.
Buffer allocate_registered(int64_t bytes);

}  // namespace ortmodule::bindings
