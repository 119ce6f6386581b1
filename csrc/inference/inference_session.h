// Runs an ONNX model on the host: imports by outcome, plans by shape, one block of memory a run.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "inference/admission.h"
#include "inference/host_run.h"
#include "inference/host_tensor.h"
#include "inference/inference_options.h"
#include "inference/loaded_model.h"
#include "inference/named_sizes.h"
#include "inference/run_texts.h"
#include "inference/segment.h"

namespace ortmodule {

/// What a run of given shapes takes, in bytes.
struct InferenceMemory {
  int64_t weights = 0;
  int64_t block = 0;    // that holds all temporaries; 0 where each has memory of its own
  int64_t outputs = 0;  // which belong to the caller after the run
  int64_t peak = 0;     // of the run, outputs included, weights and inputs not
  int64_t total = 0;    // weights and peak
  bool exact = true;    // false: a library may allocate more, or data decides
  int64_t parts = 1;    // into which the limit cuts the batch
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
  const std::vector<OnnxValue>& outputs() const { return host_.model->model().graph.outputs; }
  /// The outputs with types and sizes that the file leaves out, as far as they are the same for all
  /// calls. The first call may import the model for likely sizes.
  const std::vector<OnnxValue>& typed_outputs();
  /// The dimensions of an input of known rank, with the sizes that the options fix.
  std::vector<OnnxDim> input_dims(size_t input) const;

  /// Runs the model. `feeds` by input, and then by overridable input, where an empty one keeps the
  /// initializer; the results by output. `targets`: none, or one for each output; an output with a
  /// target is written there, and its result has no memory. A target that does not fit is an error
  /// before anything is written; it may overlap feeds. Once `terminate` is true, the run ends with
  /// an Error before its next step. `texts`: those that the feeds have, to which the run may add;
  /// null where neither feeds nor outputs are texts. Throws Error.
  std::vector<HostResult> run(const std::vector<HostFeed>& feeds, const HostTargets& targets = {},
                              const std::atomic<bool>* terminate = nullptr,
                              RunTexts* texts = nullptr);
  /// What such a run takes. Feeds need data only where sizes depend on their content. Where data
  /// decides sizes, the peak is the most that a run takes, or, if control flow or a shape depends
  /// on data, that of the part before; `exact` is false then.
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
  void return_kept() { host_.memory.return_kept(); }
  InferenceHeld held() const;
  /// Bytes of imported graphs and plans, about.
  int64_t plan_bytes() const;
  /// Bytes that the last finished run had at its peak.
  int64_t last_peak_bytes() const { return last_peak_bytes_; }
  /// Bytes of feeds and outputs that all runs so far copied: feeds that no kernel can read where
  /// they are, targets that no kernel can write to.
  int64_t copied_bytes() const { return copied_bytes_; }
  const LoadedModel& model() const { return *host_.model; }
  /// For another session of the model.
  const std::shared_ptr<LoadedModel>& shared_model() const { return host_.model; }
  int64_t threads() const { return host_.pool.threads(); }
  /// Weights that float16 cannot hold, by name, and what they are kept in: bfloat16 or float32.
  std::map<std::string, DType> wide_weights();

  /// Starts a trace of all runs.
  void start_profiling();
  /// On the clock of Profile; 0 without a trace.
  int64_t profiling_start_ns() const;
  /// Writes the trace, if there is one, and ends it.
  bool end_profiling(const std::string& path);

 private:
  /// Throws Error if the model is not valid for the sizes that it declares.
  void check_model();
  std::vector<HostResult> run_in_segments(const Segment::Bound& bound,
                                          const std::vector<HostFeed>& feeds,
                                          const HostTargets& targets, const RunWatch& watch,
                                          RunTexts* texts);
  InferenceMemory memory_of(const Segment::Bound& bound) const;
  InferenceMemory memory_of(const Plan& plan) const;
  /// Waits until the run fits in the limit. Throws Error if it never will, or is terminated.
  Admission::Pass admit(const InferenceMemory& memory, const std::vector<HostFeed>& feeds,
                        const RunWatch& watch);
  /// `why_whole`: why it cannot run in parts.
  [[noreturn]] void refuse(const InferenceMemory& memory, const std::vector<HostFeed>& feeds,
                           const std::string& why_whole);

  // --- runs in parts (run_in_parts.cpp)
  struct Parts;
  /// How a run that does not fit in the limit runs within it; nothing, and why, if it cannot.
  std::shared_ptr<const Parts> parts_for(const Segment::Bound& bound,
                                         const std::vector<HostFeed>& feeds, std::string& why);
  std::shared_ptr<Parts> split_along(const std::string& name, const Segment::Bound& bound,
                                     std::string& why);
  std::shared_ptr<Parts> split_of(const Segment::Bound& bound, const std::vector<HostFeed>& feeds,
                                  std::string& why);
  std::optional<InferenceMemory> memory_of_part(const Segment::Bound& bound, const Parts& parts,
                                                const std::vector<HostFeed>& feeds, int64_t rows);
  static HostTargets places_of(const Segment::Bound& bound, const Parts& parts, int64_t rows);
  InferenceMemory memory_in(const Parts& parts) const;
  std::vector<HostResult> run_in_parts(const Parts& parts, const Segment::Bound& bound,
                                       const std::vector<HostFeed>& feeds,
                                       const HostTargets& targets, const RunWatch& watch);

  SegmentHost host_;
  std::vector<const OnnxValue*> inputs_, overridable_;
  const NamedSizes named_;
  Admission admission_;
  Segment whole_;
  std::once_flag typed_;
  std::vector<OnnxValue> typed_outputs_;                                // once `typed_`
  std::mutex parts_mutex_;                                              // guards the next one
  std::map<std::vector<int64_t>, std::shared_ptr<const Parts>> parts_;  // by key_of()
  std::atomic<uint64_t> runs_{0};
  std::atomic<int64_t> last_peak_bytes_{0};
  std::atomic<int64_t> copied_bytes_{0};
  std::atomic<std::shared_ptr<Profile>> profile_;
};

}  // namespace ortmodule
