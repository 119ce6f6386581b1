// One run of a plan on a device beside the host.
#pragma once

#include <vector>

#include "inference/host_run.h"
#include "runtime/run_device.h"

namespace ortmodule {

/// As run_on_host, with `arguments` on the device of `where`. Targets may be on the device or the
/// host; one on the device without an address leaves the output there. Other outputs come to the
/// host, in memory of `memory`. Returns when all of them are written.
HostRun run_on_device(const PlanEntry& entry, const std::vector<const void*>& arguments,
                      const RunDeviceOptions& where, HostMemory& memory, uint64_t seed,
                      const HostTargets& targets = {}, const RunWatch& watch = {});

}  // namespace ortmodule
