// Computes the constant part of a model within the memory of its results.
#pragma once

#include <vector>

#include "inference/host_tensor.h"
#include "inference/loaded_model.h"
#include "runtime/worker_pool.h"
#include "session/planner.h"

namespace ortmodule {

/// Runs the plan of a constant part. A weight that no kernel can read where it is, is copied for
/// the steps that read it, so that never all of them are there twice. `weights` by graph input.
std::vector<HostTensor> compute_constants(const PlanEntry& entry, const LoadedModel& model,
                                          const std::vector<OnnxTensor>& weights, WorkerPool& pool);

}  // namespace ortmodule
