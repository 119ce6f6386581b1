// Which of several plans of the graph API runs: the best by cuDNN's estimate or, where the search
// is exhaustive, the fastest. It is measured once per problem and device, so that what is
// recomputed has the bits of the original.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/cudnn/algorithm_choice.h"
#include "kernels/cudnn/graph_plan.h"
#include "kernels/gpu_runtime.h"
#include "kernels/graph_convolutions.h"
#include "kernels/library_workspace.h"

namespace ortmodule::cudnn {

/// Scratch that is enough for each of the plans; 0 for null.
inline size_t most_bytes(const std::shared_ptr<const GraphPlans>& plans) {
  int64_t most = 0;
  if (plans)
    for (const GraphPlan& plan : *plans) most = std::max(most, plan.workspace_bytes());
  return static_cast<size_t>(most);
}

template <class Run>
size_t fastest(const GraphPlans& plans, void* stream, const Run& run) {
  size_t best = 0;
  float least_ms = std::numeric_limits<float>::max();
  for (size_t i = 0; i < plans.size(); ++i) {
    if (!run(plans[i])) continue;  // loads its code
    const float ms = stream_ms(stream, [&] { run(plans[i]); });
    if (ms < least_ms) best = i;
    least_ms = std::min(least_ms, ms);
  }
  return best;
}

/// Whether one of the plans computed the direction; false, with nothing of use written, if an
/// address is not aligned or cuDNN refuses the launch.
inline bool execute(const GraphPlans& plans, const GraphNames& direction,
                    const ConvolutionProblem& problem, const KernelArgs& args,
                    const Addresses& at) {
  using Key = std::tuple<int, cudnnBackendDescriptorType_t, ConvolutionProblem>;
  static std::mutex mutex;
  static std::map<Key, size_t> measured;
  const KernelContext& context = args.context;
  for (const void* address : {at.x, at.w, at.y})
    if (reinterpret_cast<uintptr_t>(address) % kGraphAlignment != 0) return false;
  void* const workspace = aligned_workspace(args.workspace);
  const auto run = [&](const GraphPlan& plan) {
    return plan.run(static_cast<cudnnHandle_t>(context.dnn()), at, workspace);
  };
  size_t chosen = 0;
  if (plans.size() > 1 && context.convolution_search == ConvolutionSearch::Exhaustive) {
    const std::lock_guard lock(mutex);  // others would disturb the measurement
    const Key key{context.device_index, direction.operation, problem};
    const auto found = measured.find(key);
    if (found != measured.end())
      chosen = found->second;
    else if (!is_captured(context.stream))
      chosen = measured[key] = fastest(plans, context.stream, run);
  }
  note_graph_convolution_run();
  return run(plans[chosen]);
}

}  // namespace ortmodule::cudnn
