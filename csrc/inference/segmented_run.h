// A run of a model whose sizes or control flow depend on data: segment by segment. Each is planned
// when the sizes are known that the ones before it computed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "inference/host_run.h"
#include "inference/run_texts.h"
#include "inference/segment.h"

namespace ortmodule {

/// A tensor that segments pass on: memory of the caller, or of the run.
struct PassedTensor {
  struct Owned;

  HostTensorView view;
  std::shared_ptr<Owned> owner;  // null: the caller's
};

struct PassedValue {
  ValueForm::Kind kind = ValueForm::Kind::Tensor;
  std::vector<PassedTensor> tensors;
  OutputMeaning meaning{};  // of an output of the model
};

/// One run. Not thread-safe.
class SegmentedRun {
 public:
  using Values = std::unordered_map<std::string, PassedValue>;

  /// `limit_bytes`: of the weights and all that the run holds; 0: none. `next_seed`: of a plan.
  /// `texts` must outlive this.
  SegmentedRun(SegmentHost& host, int64_t limit_bytes, RunWatch watch,
               std::function<uint64_t()> next_seed, RunTexts& texts);

  /// The outputs of a segment and of what follows it, by name. Throws Error, also where more memory
  /// is needed than the limit leaves, before it is taken.
  std::vector<PassedValue> run(Segment& segment, std::vector<PassedValue> feeds,
                               const std::vector<std::string>& outputs);

  static std::vector<PassedValue> pass(const std::vector<HostFeed>& feeds);
  /// The value in memory of its own.
  HostResult take_result(PassedValue value);
  /// Counts bytes that are held until the end. Throws Error if the limit does not leave them.
  void hold(int64_t bytes);
  /// The most that was held at once.
  int64_t peak_bytes() const { return peak_bytes_; }

  // --- for control flow (control_steps.cpp)
  /// A row-major tensor of the run.
  PassedTensor allocate(DType dtype, const Sizes& sizes);
  PassedTensor single(DType dtype, const Sizes& sizes, int64_t value);
  PassedTensor row_major(PassedTensor tensor);
  /// Throws Error if the caller wants the run to end.
  void check_terminate(const OnnxNode& node) const;

 private:
  void execute(const Segment::Bound& bound, std::vector<PassedTensor>& outputs);
  void run_step(const Segment::Outcome& outcome, Values& values);
  void run_sized(const ModelCut& cut, Values& values);
  PassedTensor own(HostTensor tensor);
  PassedTensor own_copy(const PassedTensor& tensor);
  /// Throws Error if the limit does not leave so many bytes.
  void check_limit(int64_t bytes);

  SegmentHost& host_;
  const int64_t limit_bytes_;
  const RunWatch watch_;
  const std::function<uint64_t()> next_seed_;
  RunTexts& texts_;
  std::shared_ptr<int64_t> held_bytes_ = std::make_shared<int64_t>(0);
  int64_t peak_bytes_ = 0;
};

/// Runs the node of a cut of kind Control by its bodies, and adds its outputs to `values`.
void run_control(SegmentedRun& run, const Segment::Outcome& outcome, SegmentedRun::Values& values);
/// The outputs of one of its bodies, for its first inputs and what it captures.
std::vector<PassedValue> run_body(SegmentedRun& run, const Segment::Outcome& outcome,
                                  const SegmentedRun::Values& values, size_t which,
                                  std::vector<PassedValue> inputs);
/// Runs a search for texts (search_steps.cpp).
bool is_search(const OnnxNode& node);
std::vector<PassedValue> run_search(SegmentedRun& run, const Segment::Outcome& outcome,
                                    const SegmentedRun::Values& values);

}  // namespace ortmodule
