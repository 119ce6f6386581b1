// Which algorithm computes a convolution: chosen once per problem, device, flags and search, among
// those that give the same bits in every run and that the planned scratch is enough for, so that
// what is recomputed has the bits of the original. FFT and Winograd are never chosen: what is
// refused while a CUDA graph is captured would give a replayed step other bits than a launched one.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/cudnn/directions.h"
#include "kernels/gpu_runtime.h"

namespace ortmodule::cudnn {

template <class Direction>
struct Choice {
  typename Direction::Algorithm algorithm = Direction::kDefault;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

/// One call of a direction: where its operands are, and the scratch that the plan gave it.
struct Call {
  const ConvolutionProblem& problem;
  const Descriptors& descriptors;
  Addresses at;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  const KernelContext& context;
  cudnnHandle_t handle = nullptr;
};

template <class Direction>
class Chooser {
 public:
  explicit Chooser(const Call& call) : call_(call) {}

  /// The algorithm of this call; nothing if cuDNN has none.
  std::optional<Choice<Direction>> choice() const {
    {
      const std::lock_guard lock(known().mutex);
      const auto& choices = known().choices;
      if (const auto found = choices.find(key()); found != choices.end()) return found->second;
    }
    const bool measures = call_.context.convolution_search == ConvolutionSearch::Exhaustive;
    // While a CUDA graph is captured nothing can be measured, and nothing is to be remembered.
    if (measures && is_captured(call_.context.stream)) return first_fitting(estimated());
    return note(search());
  }

  /// From now on there is none: it was named, but does not run. What is refused while a CUDA graph
  /// is captured may run elsewhere.
  void forget() const {
    if (is_captured(call_.context.stream)) return;
    const std::lock_guard lock(known().mutex);
    known().choices[key()] = std::nullopt;
  }

 private:
  using Candidate = typename Direction::Candidate;
  using Candidates = std::vector<Candidate>;
  using Found = std::optional<Choice<Direction>>;
  using Key = std::tuple<int, bool, ConvolutionSearch, ConvolutionProblem>;

  struct Known {
    std::mutex mutex;
    std::map<Key, Found> choices;
  };
  static Known& known() {
    static Known all;
    return all;
  }

  Key key() const {
    const KernelContext& context = call_.context;
    return {context.device_index, context.allow_convolution_tf32, context.convolution_search,
            call_.problem};
  }

  /// The first that was found holds, if two threads looked at once.
  Found note(const Found& found) const {
    const std::lock_guard lock(known().mutex);
    return known().choices.emplace(key(), found).first->second;
  }

  Found search() const {
    switch (call_.context.convolution_search) {
      case ConvolutionSearch::Exhaustive: return first_fitting(measured());
      case ConvolutionSearch::Heuristic: return first_fitting(estimated());
      case ConvolutionSearch::Default: break;
    }
    static_assert(can_be_captured(Direction::kDefault));
    const Choice<Direction> usual{Direction::kDefault, wanted()};
    return fits(usual) ? Found(usual) : first_fitting(estimated());
  }

  cudnnMathType_t wanted() const {
    return wanted_math(call_.problem.dtype, call_.context.allow_convolution_tf32);
  }

  Candidates room() const {
    int count = 0;
    check(Direction::count(call_.handle, &count), "a question for the number of algorithms");
    return Candidates(static_cast<size_t>(count));
  }

  Candidates estimated() const {
    call_.descriptors.set_math(wanted());
    Candidates candidates = room();
    int found = 0;
    const cudnnStatus_t status =
        Direction::estimate(call_.handle, call_.descriptors, static_cast<int>(candidates.size()),
                            &found, candidates.data());
    candidates.resize(status == CUDNN_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    return candidates;
  }

  /// Runs each of them; the result is written, which it will be again.
  Candidates measured() const {
    call_.descriptors.set_math(wanted());
    Candidates candidates = room();
    int found = 0;
    const cudnnStatus_t status = Direction::measure(
        call_.handle, call_.descriptors, call_.at, static_cast<int>(candidates.size()), &found,
        candidates.data(), call_.workspace, call_.workspace_bytes);
    candidates.resize(status == CUDNN_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
    return candidates.empty() ? estimated() : candidates;
  }

  /// The fastest comes first.
  Found first_fitting(const Candidates& candidates) const {
    // What cuDNN says of the math of a candidate may allow TF32 again.
    const bool keeps_math = wanted() == CUDNN_FMA_MATH;
    for (const Candidate& candidate : candidates) {
      if (candidate.status != CUDNN_STATUS_SUCCESS ||
          candidate.determinism != CUDNN_DETERMINISTIC || !can_be_captured(candidate.algo))
        continue;
      const Choice<Direction> choice{candidate.algo, keeps_math ? wanted() : candidate.mathType};
      if (fits(choice)) return choice;
    }
    return std::nullopt;
  }

  static constexpr bool can_be_captured(typename Direction::Algorithm algorithm) {
    const auto& others = Direction::kNotCaptured;
    return std::find(others.begin(), others.end(), algorithm) == others.end();
  }

  bool fits(const Choice<Direction>& choice) const {
    call_.descriptors.set_math(choice.math);
    size_t bytes = 0;
    const cudnnStatus_t status =
        Direction::workspace(call_.handle, call_.descriptors, choice.algorithm, &bytes);
    return status == CUDNN_STATUS_SUCCESS && bytes <= call_.workspace_bytes;
  }

  const Call& call_;
};

/// Computes one direction; false, with nothing of use written, if cuDNN has no algorithm for it.
template <class Direction>
bool compute(const Call& call) {
  const Chooser<Direction> chooser(call);
  const auto choice = chooser.choice();
  if (!choice) return false;
  call.descriptors.set_math(choice->math);
  const bool wide = call.problem.dtype == DType::Float64;
  const double wide_one = 1.0, wide_zero = 0.0;
  const float one = 1.0f, zero = 0.0f;
  const cudnnStatus_t status =
      Direction::run(call.handle, call.descriptors, call.at, choice->algorithm, call.workspace,
                     call.workspace_bytes, wide ? static_cast<const void*>(&wide_one) : &one,
                     wide ? static_cast<const void*>(&wide_zero) : &zero);
  if (status == CUDNN_STATUS_NOT_SUPPORTED) {
    chooser.forget();
    return false;
  }
  check(status, Direction::kName);
  return true;
}

}  // namespace ortmodule::cudnn
