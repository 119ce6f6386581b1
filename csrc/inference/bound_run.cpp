#include "inference/bound_run.h"

#include <vector>

#include "inference/device_feeds.h"
#include "inference/device_run.h"

namespace ortmodule {

HostRun run_bound(SegmentHost& host, const Segment::Bound& bound, uint64_t seed,
                  const HostTargets& targets, const RunWatch& watch) {
  if (!host.device)
    return run_on_host(*bound.entry, bound.arguments(), host.memory, host.pool, seed, targets,
                       watch);
  std::vector<Buffer> uploads;
  std::vector<const void*> arguments = device_arguments(bound.entry->program, bound.call.tensors,
                                                        bound.on_device, *host.device, uploads);
  const auto& weights = bound.outcome->weights;
  arguments.insert(arguments.end(), weights.begin(), weights.end());
  HostRun run = run_on_device(*bound.entry, arguments, host.options.device, host.memory, seed,
                              targets, watch);
  for (const Buffer& upload : uploads) run.peak_bytes += upload.bytes();
  return run;
}

int64_t feed_bytes(const SegmentHost& host, const Segment::Bound& bound) {
  int64_t bytes = bound.copied_bytes();
  if (host.device) bytes += upload_bytes(bound.plan(), bound.call.tensors, bound.on_device);
  return bytes;
}

}  // namespace ortmodule
