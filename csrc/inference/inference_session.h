// Runs an ONNX model on the host: imports by outcome, plans by shape, one block of memory a run.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "importer/import_model.h"
#include "inference/admission.h"
#include "inference/constant_part.h"
#include "inference/host_run.h"
#include "inference/host_tensor.h"
#include "inference/loaded_model.h"
#include "inference/memory_options.h"
#include "inference/named_sizes.h"
#include "runtime/worker_pool.h"
#include "session.h"

namespace ortmodule {

struct InferenceOptions {
  int64_t threads = 0;  // 0: one for each core
  /// Values of named sizes.
  std::map<std::string, int64_t> fixed_sizes;
  std::map<std::string, int64_t> fixed_denotations;  // the same by what a size denotes
  uint64_t seed = 0;  // of random operators; 0: another one for each session
  int64_t optimization_level = kAllOptimizations;  // onnxruntime's GraphOptimizationLevel
  std::set<std::string> disabled_passes;           // of the optimizer, by name
  bool profiling = false;                          // from the start
  bool half_weights = false;                       // float32 weights are kept in float16

  static constexpr int64_t kAllOptimizations = 99;
  RunMemoryOptions memory = {};
};

/// What a run of given shapes takes, in bytes.
struct InferenceMemory {
  int64_t weights = 0;
  int64_t block = 0;    // that holds all temporaries; 0 where each has memory of its own
  int64_t outputs = 0;  // which belong to the caller after the run
  int64_t peak = 0;     // of the run, outputs included, weights and inputs not
  int64_t total = 0;    // weights and peak
  bool exact = true;    // false: a library may allocate more
};

/// What a session holds now, in bytes.
struct InferenceHeld {
  int64_t runs = 0;   // blocks of runs, and outputs that the caller still has
  int64_t peak = 0;   // the most of these so far
  int64_t kept = 0;   // freed blocks that wait for the next run
  int64_t plans = 0;  // plans and imported graphs, about
};

/// Thread-safe: runs may overlap.
class InferenceSession {
 public:
  InferenceSession(std::shared_ptr<LoadedModel> model, InferenceOptions options);
  ~InferenceSession();

  const std::vector<const OnnxValue*>& inputs() const { return inputs_; }
  /// Inputs that have an initializer, which a call may replace.
  const std::vector<const OnnxValue*>& overridable() const { return overridable_; }
  const std::vector<OnnxValue>& outputs() const { return model_->model().graph.outputs; }

  /// Runs the model. `feeds` by input, and then by overridable input, where an empty one keeps the
  /// initializer; the results by output. `targets`: none, or one for each output; an output with a
  /// target is written there, and its result has no memory. A target that does not fit is an error
  /// before anything is written; it may overlap feeds. Once `terminate` is true, the run ends with
  /// an Error before its next step. Throws Error.
  std::vector<HostResult> run(const std::vector<HostFeed>& feeds, const HostTargets& targets = {},
                              const std::atomic<bool>* terminate = nullptr);
  /// What such a run takes. Feeds need data only where sizes depend on their content.
  InferenceMemory memory(const std::vector<HostFeed>& feeds);
  /// Writes the graph of such a run as an ONNX file; see save_optimized.h. Throws Error.
  void save_optimized(const std::vector<HostFeed>& feeds, const std::string& path);
  const NamedSizes& named_sizes() const { return named_; }
  /// The largest value of a named size for which weights and run take at most `limit_bytes`, among
  /// the multiples of `step`; 0 if there is none. The other sizes are those of `feeds`. Makes
  /// plans, runs nothing. Throws Error if no such run can be planned at all.
  int64_t largest(const std::string& name, int64_t limit_bytes, std::vector<HostFeed> feeds,
                  int64_t step = 1);
  /// The plan of such a run, made for the caller and not kept.
  std::shared_ptr<const Plan> plan(const std::vector<HostFeed>& feeds);
  /// The same as text.
  std::string plan_text(const std::vector<HostFeed>& feeds) { return print(*plan(feeds)); }
  /// Returns blocks that are kept for the next run to the system.
  void return_kept() { memory_.return_kept(); }
  InferenceHeld held() const;
  /// Bytes of imported graphs and plans, about.
  int64_t plan_bytes() const;
  /// Bytes that the last finished run had at its peak.
  int64_t last_peak_bytes() const { return last_peak_bytes_; }
  /// Bytes of feeds and outputs that all runs so far copied: feeds that no kernel can read where
  /// they are, targets that no kernel can write to.
  int64_t copied_bytes() const { return copied_bytes_; }
  const LoadedModel& model() const { return *model_; }
  /// For another session of the model.
  const std::shared_ptr<LoadedModel>& shared_model() const { return model_; }
  int64_t threads() const { return pool_.threads(); }
  /// Weights that stay float32 because float16 cannot hold them, by name.
  std::set<std::string> wide_weights() const;

  /// Starts a trace of all runs.
  void start_profiling();
  /// On the clock of Profile; 0 without a trace.
  int64_t profiling_start_ns() const;
  /// Writes the trace, if there is one, and ends it.
  bool end_profiling(const std::string& path);

 private:
  struct Outcome;
  struct Imports;
  struct Call;
  struct Bound;

  std::shared_ptr<Outcome> outcome_for(const Call& call);
  /// `to_save`: for a file, which cannot have packed weights; the graphs are kept.
  std::shared_ptr<Outcome> import(const Call& call, bool to_save = false);
  SessionOptions session_options(bool to_save = false) const;
  void add_weights(Outcome& outcome, const ImportedModel& imported);
  const void* halved(Outcome& outcome, Graph& graph, Value* value, const OnnxTensor& weight);
  void add_constants(Outcome& outcome, const ImportedModel& imported, const ConstantPart& part);
  std::vector<HostTensor> compute(const ConstantPart& part, const std::vector<OnnxTensor>& weights);
  void check_once(Outcome& outcome, const CallShapes& call);
  /// With `to_show`, its plan is made anew and not kept.
  Bound bind(const std::vector<HostFeed>& feeds, bool to_show = false);
  HostTargets plan_targets(const Bound& bound, const HostTargets& targets) const;
  InferenceMemory memory_of(const Bound& bound) const;
  InferenceMemory memory_of(const Plan& plan) const;
  /// Waits until the run fits in the limit. Throws Error if it never will.
  Admission::Pass admit(const InferenceMemory& memory, const std::vector<HostFeed>& feeds);
  [[noreturn]] void refuse(const InferenceMemory& memory, const std::vector<HostFeed>& feeds);

  std::shared_ptr<LoadedModel> model_;
  const InferenceOptions options_;
  std::vector<const OnnxValue*> inputs_, overridable_;
  const NamedSizes named_;
  WorkerPool pool_;
  HostMemory memory_;
  Admission admission_;
  const std::shared_ptr<Imports> imports_;
  std::set<std::string> wide_weights_;  // guarded by the mutex of the imports
  std::atomic<uint64_t> runs_{0};
  std::atomic<int64_t> last_peak_bytes_{0};
  std::atomic<int64_t> copied_bytes_{0};
  std::atomic<std::shared_ptr<Profile>> profile_;
};

}  // namespace ortmodule
