#include "kernels/graph_convolutions.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace ortmodule {
namespace {

struct State {
  std::atomic<bool> built = false, used = false;
  std::atomic<int64_t> runs = 0;
  std::mutex mutex;
  std::string device;
  GraphConvolutionCounts counts;
};

State& state() {
  static State of_process;
  return of_process;
}

}  // namespace

bool has_graph_convolutions() { return state().built; }

RegisterGraphConvolutions::RegisterGraphConvolutions() { state().built = true; }

bool uses_graph_convolutions() { return state().used; }

void use_graph_convolutions(bool use, const std::string& device) {
  const std::lock_guard lock(state().mutex);
  state().device = device;
  state().used = use;
}

std::string graph_convolution_device() {
  const std::lock_guard lock(state().mutex);
  return state().device;
}

GraphConvolutionCounts graph_convolution_counts() {
  const std::lock_guard lock(state().mutex);
  GraphConvolutionCounts counts = state().counts;
  counts.runs = state().runs;
  return counts;
}

void note_graph_convolution(std::optional<int64_t> workspace_bytes) {
  const std::lock_guard lock(state().mutex);
  GraphConvolutionCounts& counts = state().counts;
  ++counts.problems;
  if (!workspace_bytes) ++counts.without_plan;
  counts.most_workspace_bytes = std::max(counts.most_workspace_bytes, workspace_bytes.value_or(0));
}

void note_graph_convolution_run() { ++state().runs; }

}  // namespace ortmodule
