// Inputs and outputs of a session bound to memory, for runs without copies.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "inference/inference_session.h"
#include "inference/value.h"

namespace ortmodule {

/// Bindings of one session. Several bindings may run at once; one binding belongs to one thread at
/// a time, which is checked. Member functions throw Error.
class IoBinding {
 public:
  /// The session must outlive the binding.
  explicit IoBinding(InferenceSession& session);

  /// Feeds the value from now on. Shared memory is read in each run, so later changes of it count.
  void bind_input(const std::string& name, SharedValue value);
  /// Has each run allocate the output, on the host or on the session's device.
  void bind_output(const std::string& name, int device = kOnHost);
  /// Has each run write the output to this memory. Its type and sizes are checked in the run.
  void bind_output(const std::string& name, SharedTensor place);
  void clear_inputs();
  void clear_outputs();

  /// Runs the session. All inputs must be bound, and at least one output. `terminate` as in
  /// InferenceSession::run.
  void run(const std::atomic<bool>* terminate = nullptr);

  /// What is bound, by input of the model.
  const std::vector<std::optional<SharedValue>>& inputs() const { return inputs_; }
  size_t output_count() const { return outputs_.size(); }
  /// An output of the last run, in the order of their first binding; without a value before a run.
  SharedValue output(size_t i);
  /// The same in memory that nothing else writes to: a copy only where others share the memory.
  SharedValue output_alone(size_t i);
  const InferenceSession& session() const { return session_; }

 private:
  struct Output {
    size_t index = 0;                   // in the model
    std::optional<SharedTensor> place;  // none: allocated by each run
    int device = kOnHost;               // where it then is
    SharedValue value{};
    bool given_alone = false;  // by output_alone(), without a copy
  };
  class Use;

  size_t input_index(const std::string& name) const;
  Output& output_slot(const std::string& name);
  void check_inputs() const;
  std::vector<HostFeed> feeds() const;
  HostTargets targets() const;

  InferenceSession& session_;
  std::vector<std::optional<SharedValue>> inputs_;  // by input of the model
  std::vector<Output> outputs_;
  std::atomic<bool> in_use_{false};
};

}  // namespace ortmodule
