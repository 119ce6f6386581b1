// What a session says and keeps about its memory.
#include <algorithm>

#include "base/error.h"
#include "inference/host_run.h"
#include "inference/inference_session.h"
#include "inference/largest_that.h"
#include "plan/replay.h"

namespace ortmodule {
namespace {

// 12,345,678
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first = text.front() == '-' ? 1 : 0;
  for (size_t i = text.size(); i > first + 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

}  // namespace

InferenceMemory InferenceSession::memory_of(const Plan& plan) const {
  InferenceMemory memory;
  memory.weights = host_.weight_bytes();
  if (const BufferId block = block_of(plan)) memory.block = plan.buffers[block].bytes;
  memory.outputs = output_bytes(plan);
  memory.peak = plan.forward_peak_bytes;
  memory.total = memory.weights + memory.peak;
  memory.exact = plan.exact;
  return memory;
}

int64_t InferenceSession::largest(const std::string& name, int64_t limit_bytes,
                                  std::vector<HostFeed> feeds, int64_t step) {
  constexpr int64_t kMostSize = int64_t{1} << 31;
  ORTM_CHECK(step >= 1 && step <= kMostSize, "[run] sizes must be multiples of 1 to ", kMostSize,
             ", but found ", step);
  std::string refused;  // why the model cannot have the last size that it refused
  bool planned = false;
  const auto fits = [&](int64_t n) {
    named_.set(feeds, name, n * step);
    try {
      const Segment::Bound bound = whole_.bind(feeds, true);
      const int64_t total = bound.outcome->cut ? memory(feeds).total : memory_of(bound).total;
      planned = true;
      return total <= limit_bytes;
    } catch (const Error& error) {
      refused = error.what();
      return false;
    }
  };
  const int64_t found = largest_that(fits, kMostSize / step);
  if (found == 0 && !planned) throw Error(refused);
  return found * step;
}

Admission::Pass InferenceSession::admit(const InferenceMemory& memory,
                                        const std::vector<HostFeed>& feeds, const RunWatch& watch) {
  if (memory.total > host_.options.memory.limit_bytes) refuse(memory, feeds, "");
  const int64_t left = host_.options.memory.limit_bytes - memory.weights;
  host_.memory.limit_kept(left);
  return admission_.admit(memory.peak, left, watch.terminate);
}

void InferenceSession::refuse(const InferenceMemory& memory, const std::vector<HostFeed>& feeds,
                              const std::string& why_whole) {
  std::string hint = "give smaller inputs";
  if (const auto batch = named_.batch_of(feeds)) {
    const auto& [name, size] = *batch;
    const int64_t most = largest(name, host_.options.memory.limit_bytes, feeds);
    hint = most > 0 ? str("the largest '", name, "' that fits is ", most)
                    : str("no '", name, "' fits");
  }
  const std::string whole =
      why_whole.empty() ? std::string() : str(", and cannot run in parts (", why_whole, ")");
  throw Error(str("[memory] a run must fit in the memory_limit of ",
                  grouped(host_.options.memory.limit_bytes), " bytes, but needs ",
                  grouped(memory.total), " (weights ", grouped(memory.weights), ", run ",
                  grouped(memory.peak), ")", whole, ": ", hint));
}

InferenceHeld InferenceSession::held() const {
  InferenceHeld held;
  held.runs = host_.memory.held_bytes();
  held.peak = host_.memory.peak_bytes();
  held.kept = host_.memory.kept_bytes();
  held.plans = plan_bytes();
  return held;
}

}  // namespace ortmodule
