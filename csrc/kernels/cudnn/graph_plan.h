// Convolutions of 16 bits by cuDNN's graph API. Its heuristics name engines with their settings,
// and an execution plan is made of one of them, which states its scratch and whether it gives the
// same bits in every run. All of that takes the properties of a device but no device, so that a
// plan of ours knows the scratch to the byte before the first run. A run then builds nothing, where
// each of the classic calls (directions.h) finds its kernel again.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cudnn/backend_object.h"
#include "kernels/cudnn/directions.h"

namespace ortmodule::cudnn {

/// What cuDNN can execute: one direction of one convolution.
class GraphPlan {
 public:
  GraphPlan(std::shared_ptr<const void> made_of, BackendObject plan, int64_t workspace_bytes)
      : made_of_(std::move(made_of)), plan_(std::move(plan)), workspace_bytes_(workspace_bytes) {}

  int64_t workspace_bytes() const { return workspace_bytes_; }

  /// Whether cuDNN took the launch; `workspace` has workspace_bytes(), and addresses are multiples
  /// of kGraphAlignment.
  bool run(cudnnHandle_t handle, const Addresses& at, void* workspace) const;

 private:
  std::shared_ptr<const void> made_of_;  // outlives the plan
  BackendObject plan_;
  int64_t workspace_bytes_;
};

using GraphPlans = std::vector<GraphPlan>;

inline constexpr size_t kGraphAlignment = 16;

/// Plans that give the same bits in every run and need no more scratch than
/// convolution_workspace_bytes(), the best by cuDNN's estimate first; found once per problem. Null
/// if there is none: the graph API is not used, no properties of a device are known, or the problem
/// has no such engine. Of problems of 32 or 64 bits there is none, since which engines may take
/// them depends on flags of the run. Thread-safe.
std::shared_ptr<const GraphPlans> graph_plans(const ConvolutionProblem& problem,
                                              const GraphNames& direction);

}  // namespace ortmodule::cudnn
