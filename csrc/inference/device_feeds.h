// Feeds of sessions that run on a device.
#pragma once

#include <vector>

#include "inference/host_tensor.h"
#include "runtime/host_memory.h"
#include "runtime/program.h"
#include "runtime/run_device.h"

namespace ortmodule {

/// Replaces feeds in memory of `device` by what can be planned on the host: small vectors, whose
/// content may decide sizes, by copies, which `copies` keeps; others lose their address. Returns by
/// tensor where it is on the device, null for those on the host; nothing if all are. Throws Error
/// for a feed on another device.
std::vector<const void*> take_device_feeds(std::vector<HostTensorView>& tensors, int device,
                                           HostMemory& memory, std::vector<Buffer>& copies);

/// The feeds in memory of the host, which `copies` keeps where they are on a device.
std::vector<HostFeed> feeds_on_host(std::vector<HostFeed> feeds, HostMemory& memory,
                                    std::vector<Buffer>& copies);

/// The bytes of these copies.
int64_t download_bytes(const std::vector<HostFeed>& feeds);

/// The feeds' addresses on the device. Those on the host that steps read are uploaded to memory
/// that `uploads` keeps.
std::vector<const void*> device_arguments(const Program& program,
                                          const std::vector<HostTensorView>& tensors,
                                          const std::vector<const void*>& on_device,
                                          RunDevice& device, std::vector<Buffer>& uploads);

/// The bytes that these uploads take.
int64_t upload_bytes(const Plan& plan, const std::vector<HostTensorView>& tensors,
                     const std::vector<const void*>& on_device);

}  // namespace ortmodule
