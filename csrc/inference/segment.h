// A part of a model that is planned and run as one: the whole model, unless data decides sizes or
// control flow. Imports by outcome, plans by shape.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "importer/import_model.h"
#include "inference/check_sizes.h"
#include "inference/constant_part.h"
#include "inference/device_weights.h"
#include "inference/host_tensor.h"
#include "inference/inference_options.h"
#include "inference/loaded_model.h"
#include "inference/recent_calls.h"
#include "inference/row_split.h"
#include "inference/unread_sizes.h"
#include "runtime/worker_pool.h"
#include "session.h"

namespace ortmodule {

/// What the segments of a session share. Thread-safe.
struct SegmentHost {
  SegmentHost(std::shared_ptr<LoadedModel> of, InferenceOptions with);

  /// Of the weights, where the session runs.
  int64_t weight_bytes() const { return device ? device_weights->bytes() : model->weight_bytes(); }

  const std::shared_ptr<LoadedModel> model;
  const InferenceOptions options;
  RunDevice* const device;  // null: the host
  const std::unique_ptr<DeviceWeights> device_weights;
  WorkerPool pool;
  HostMemory memory;
  std::mutex mutex;  // guards the next one
  /// That float16 cannot hold, and what they are kept in.
  std::map<std::string, DType> wide_weights;
};

/// Thread-safe: calls may overlap.
class Segment {
 public:
  struct Outcome;

  /// A call: the tensors of all feeds, and which of them are those of each input.
  struct Call {
    std::vector<HostTensorView> tensors;
    std::vector<ValueForm> forms;

    explicit Call(const std::vector<HostFeed>& feeds);
  };

  /// A call with its plan.
  struct Bound {
    Call call;
    std::vector<Buffer> copies{};          // of feeds
    std::vector<const void*> on_device{};  // by tensor: its address there; null: on the host
    std::shared_ptr<Outcome> outcome{};
    std::shared_ptr<PlanEntry> entry{};
    std::shared_ptr<const Plan> shown{};  // instead, of a plan to look at
    int64_t unmade_bytes = 0;             // of copies of feeds without data

    const Plan& plan() const { return shown ? *shown : *entry->program.plan; }
    int64_t copied_bytes() const;
    /// The elements of each graph input, for a run on the host.
    std::vector<const void*> arguments() const;
  };

  using Check = std::function<void(const std::vector<HostFeed>&)>;

  /// The whole model, or `part` of it. `check`: throws Error for feeds that do not fit the inputs.
  explicit Segment(SegmentHost& host, Check check = {}, std::optional<ModelPart> part = {});
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  /// With `to_show`, the plan is made anew and not kept. Throws Error.
  Bound bind(const std::vector<HostFeed>& feeds, bool to_show = false);
  /// Some rows of a call of that outcome: what the model would do for a call of so few rows does
  /// not count. Throws Error.
  Bound bind_part(const std::vector<HostFeed>& feeds, std::shared_ptr<Outcome> outcome);
  /// An import that is not kept, for a file: its weights are on the host and not packed, its graphs
  /// stay.
  std::shared_ptr<Outcome> import_to_save(Call call);
  /// Imports the model for a call of the sizes that it declares, before there is one; what is found
  /// is kept for it. Nothing is imported where contents of inputs decide. Throws Error.
  void import_early(Call call);
  /// What import_early() has found, until the first call.
  const ImportedModel* early() const { return early_ ? &early_->imported : nullptr; }
  /// As the model would be imported for the call; nullopt where contents of inputs decide. Throws
  /// Error.
  std::optional<ImportedModel> import_types(const Call& call) const;
  /// Bytes of imported graphs and plans, about.
  int64_t plan_bytes() const;
  const std::optional<ModelPart>& part() const { return part_; }

 private:
  struct Imports;

  struct Early {
    Call call;
    ImportedModel imported;
  };

  ImportRequest request_of(const Call& call) const;
  ImportedModel imported_model(const Call& call, bool to_save);
  /// The call, with all its feeds where it can read them.
  Bound readable(const std::vector<HostFeed>& feeds);
  /// Adds the plan of the outcome.
  void plan(Bound& bound, bool to_show);
  std::shared_ptr<Outcome> outcome_for(const Call& call);
  /// `to_save`: for a file, which cannot have packed weights; the graphs are kept.
  std::shared_ptr<Outcome> import(const Call& call, bool to_save = false);
  /// For graphs that run on `device`.
  SessionOptions session_options(Device device, bool to_save = false) const;
  /// Weights or constants where the steps read them.
  const void* elements_of(const Outcome& outcome, const OnnxTensor& weight);
  std::vector<ConstantStore::Tensors> constants_of(const Outcome& outcome,
                                                   const std::vector<std::string>& keys,
                                                   const ConstantStore::Compute& compute);
  void add_weights(Outcome& outcome, const ImportedModel& imported);
  const void* halved(Outcome& outcome, Graph& graph, Value* value, const OnnxTensor& weight);
  void add_constants(Outcome& outcome, const ImportedModel& imported,
                     const std::vector<ConstantPart>& parts);
  static void add_constant(Outcome& outcome, Graph& graph, const HostTensor& constant);
  bool check_once(Outcome& outcome, const CallShapes& call);

  SegmentHost& host_;
  const Check check_;
  const std::optional<ModelPart> part_;
  const std::shared_ptr<Imports> imports_;
  std::optional<Early> early_;
};

/// The segment imported for the decisions of a first call.
struct Segment::Outcome {
  const std::shared_ptr<std::pmr::memory_resource> long_lived;  // memory of what has many elements
  std::vector<ValueForm> forms, outputs;
  std::vector<OutputMeaning> meanings;  // by output
  std::vector<size_t> ranks;            // by tensor of the inputs
  std::vector<DType> dtypes;
  std::vector<Dims> input_dims;
  std::vector<std::vector<std::string>> input_symbols;  // of those; "" of dims that are none
  std::vector<ContentSymbol> contents;
  std::vector<ContentGuard> content_guards;
  std::vector<SizeGuard> guards;
  std::atomic<bool> is_new = true;  // no plan was made yet
  bool on_device = false;           // weights and constants, else on the host
  /// Elements, by graph input after the inputs' tensors.
  std::pmr::vector<const void*> weights;
  std::pmr::vector<Sizes> weight_sizes;                // they are row-major
  std::pmr::vector<ConstantStore::Tensors> constants;  // the last of the weights
  std::vector<ConstantStore::Tensors> halves;          // weights in float16
  std::unique_ptr<Session> session;
  std::set<std::vector<int64_t>> checked;  // values of symbols for which the sizes fit
  SizeChecks size_checks;
  ImportedRows imported;                   // before any pass, where a limit may cut runs in parts
  std::shared_ptr<const OnnxModel> nodes;  // to which the rest and the bodies refer
  /// Where the segment ends before the model does; then what follows.
  std::optional<ModelCut> cut;
  std::vector<std::unique_ptr<Segment>> bodies;  // of the node there
  std::unique_ptr<Segment> rest;
  UnreadSizes unread;  // by tensor of the inputs

  explicit Outcome(std::shared_ptr<std::pmr::memory_resource> memory)
      : long_lived(std::move(memory)),
        weights(long_lived.get()),
        weight_sizes(long_lived.get()),
        constants(long_lived.get()) {}
  ~Outcome();
  Outcome(const Outcome&) = delete;
  Outcome& operator=(const Outcome&) = delete;

  bool fits(const Call& call) const;
  /// The symbols of a call that fits.
  SymbolValues symbols_of(const Call& call) const;
  /// What sizes, guards and plans depend on in the feeds of a call that fits.
  std::vector<FeedContent> contents_of(const Call& call) const;
  int64_t graph_bytes() const;
};

}  // namespace ortmodule
