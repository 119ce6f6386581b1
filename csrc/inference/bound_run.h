// One run of a call that has its plan, where the session runs.
#pragma once

#include "inference/host_run.h"
#include "inference/segment.h"

namespace ortmodule {

/// `targets` as for run_on_host and run_on_device.
HostRun run_bound(SegmentHost& host, const Segment::Bound& bound, uint64_t seed,
                  const HostTargets& targets, const RunWatch& watch);

/// What such a run takes beside its plan: copies of feeds, in bytes.
int64_t feed_bytes(const SegmentHost& host, const Segment::Bound& bound);

}  // namespace ortmodule
