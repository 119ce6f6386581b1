#include "kernels/cublas/followed_product.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/gpu_runtime.h"

namespace ortmodule::cublas {
namespace {

/// The least of a few rounds counts; each has several runs, so that the host is ahead of the GPU.
constexpr int kRounds = 3, kRuns = 5;

/// Lowers `least_us` to the time of one run, if that is less.
template <class Run>
void time_runs(float& least_us, void* stream, const Run& run) {
  const float ms = stream_ms(stream, [&] {
    for (int i = 0; i < kRuns; ++i) run();
  });
  least_us = std::min(least_us, 1000 * ms / kRuns);
}

}  // namespace

FollowedProduct::FollowedProduct(const StepFacts& facts, Problem problem,
                                 void (*self)(const KernelArgs&))
    : product(std::move(problem)), fallback(facts, self) {}

void FollowedProduct::run(const Operands& operands, const KernelArgs& args) const {
  const bool computed = prefers_epilogue(operands, args) && product.run(1.0, 0.0, operands, args);
  if (!computed) fallback.run(args);
}

bool FollowedProduct::prefers_epilogue(const Operands& operands, const KernelArgs& args) const {
  if (!choices_) return true;
  const KernelContext& context = args.context;
  const Circumstances now{context.device_index, context.allow_tf32, context.allow_float16_reduction,
                          context.allow_bfloat16_reduction};
  const std::lock_guard lock(mutex_);
  if (const auto found = known_.find(now); found != known_.end()) return found->second;
  const std::string problem = problem_text(product.problem(), context);
  return known_[now] = choices_->chooses_epilogue(problem, [&] { return times(operands, args); });
}

std::optional<EpilogueTimes> FollowedProduct::times(const Operands& operands,
                                                    const KernelArgs& args) const {
  const auto epilogue = [&] { return product.run(1.0, 0.0, operands, args); };
  const auto parts = [&] { fallback.run(args); };
  // While a CUDA graph is captured nothing can be timed; the first runs load code.
  if (is_captured(args.context.stream) || !epilogue()) return {};
  parts();
  constexpr float kMost = std::numeric_limits<float>::max();
  EpilogueTimes least{kMost, kMost};
  for (int round = 0; round < kRounds; ++round) {
    time_runs(least.epilogue_us, args.context.stream, epilogue);
    time_runs(least.parts_us, args.context.stream, parts);
  }
  return least;
}

Reason epilogue_unwanted() {
  if (product_epilogue_use() == EpilogueUse::Never) return "epilogues are turned off";
  return {};
}

}  // namespace ortmodule::cublas
