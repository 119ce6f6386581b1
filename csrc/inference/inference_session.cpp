#include "inference/inference_session.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "inference/check_feeds.h"
#include "inference/check_sizes.h"
#include "inference/compute_constants.h"
#include "inference/copy_elements.h"
#include "inference/half_weights.h"
#include "inference/host_run.h"
#include "inference/readable_feeds.h"
#include "inference/recent_calls.h"
#include "inference/save_optimized.h"
#include "ir/text.h"
#include "onnx/onnx_types.h"
#include "ops/known_value.h"
#include "optimizer/pipeline.h"
#include "plan/plan_bytes.h"
#include "runtime/idle_clock.h"

namespace ortmodule {
namespace {

constexpr size_t kMostOutcomes = 32;
// What is freed about when a model was imported, and when a plan was made.
constexpr int64_t kImportBytes = 8 << 20, kPlanBytes = 1 << 20;
// Of imports and plans: while runs follow each other, and when a session is idle.
constexpr int64_t kBusyPlanBytes = 16 << 20, kIdleBytes = 2 << 20;
constexpr int kQuietTicks = 2;

int64_t thread_count(int64_t wanted) {
  if (wanted > 0) return wanted;
  return std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()));
}

uint64_t seed_of(const InferenceOptions& options) {
  if (options.seed != 0) return options.seed;
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// onnxruntime's levels: 0 none, 1 basic, 2 extended, 3 layouts, 99 all.
OptimizationLevel optimization_level(int64_t level) {
  if (level <= 0) return OptimizationLevel::None;
  if (level == 1) return OptimizationLevel::Cleanup;
  if (level == 2) return OptimizationLevel::Fusions;
  return level < InferenceOptions::kAllOptimizations ? OptimizationLevel::Layouts
                                                     : OptimizationLevel::All;
}

}  // namespace

// A call: the tensors of all feeds, and which of them are those of each input.
struct InferenceSession::Call {
  std::vector<HostTensorView> tensors;
  std::vector<ValueForm> forms;

  explicit Call(const std::vector<HostFeed>& feeds) {
    for (const HostFeed& feed : feeds) {
      const auto kind = feed.is_map            ? ValueForm::Kind::Map
                        : feed.is_sequence     ? ValueForm::Kind::Sequence
                        : feed.tensors.empty() ? ValueForm::Kind::Absent
                                               : ValueForm::Kind::Tensor;
      forms.push_back({kind, tensors.size(), feed.tensors.size()});
      tensors.insert(tensors.end(), feed.tensors.begin(), feed.tensors.end());
    }
  }
};

// The model imported for the decisions of a first call.
struct InferenceSession::Outcome {
  std::vector<ValueForm> forms, outputs;
  std::vector<OutputMeaning> meanings;
  std::vector<size_t> ranks;  // by tensor of the inputs
  std::vector<DType> dtypes;
  std::vector<Dims> input_dims;
  std::vector<ContentSymbol> contents;
  std::vector<ContentGuard> content_guards;
  std::vector<SizeGuard> guards;
  std::vector<const void*> weights;  // elements, by graph input after the inputs' tensors
  std::vector<Sizes> weight_sizes, weight_strides;
  std::shared_ptr<const std::vector<HostTensor>> constants;            // the last of the weights
  std::vector<std::shared_ptr<const std::vector<HostTensor>>> halves;  // weights in float16
  std::unique_ptr<Session> session;
  std::set<std::vector<int64_t>> checked;  // values of symbols for which the sizes fit

  bool fits(const Call& call) const;
  /// What sizes, guards and plans depend on in the feeds of a call that fits.
  std::vector<FeedContent> contents_of(const Call& call) const;
  int64_t graph_bytes() const {
    return approximate_bytes(session->exported_graph()) +
           approximate_bytes(*session->lowered().graph);
  }
};

// A call with its plan.
struct InferenceSession::Bound {
  Call call;
  std::vector<Buffer> copies{};  // of feeds
  std::shared_ptr<Outcome> outcome{};
  std::shared_ptr<PlanEntry> entry{};
  std::shared_ptr<const Plan> shown{};  // instead, of a plan to look at

  int64_t copied_bytes() const {
    int64_t bytes = 0;
    for (const Buffer& copy : copies) bytes += copy.bytes();
    return bytes;
  }
};

// The outcomes, and their plans. The idle clock may see them for a moment longer than the session.
struct InferenceSession::Imports : IdleKeeper, std::enable_shared_from_this<Imports> {
  std::mutex mutex;                              // guards the next ones
  std::list<std::shared_ptr<Outcome>> outcomes;  // the most recently used one first
  int quiet_ticks = 0;
  RecentCalls recent;
  std::atomic<bool> is_used = false;  // since the last tick
  std::atomic<bool> is_watched = false;
  std::function<int64_t()> weight_bytes;

  /// To be called when something was added.
  void watch() {
    if (!is_watched.exchange(true) || !idle_clock_runs()) tick_until_idle(weak_from_this());
  }
  bool tick() override;
  int64_t shrink(int64_t bytes);
};

bool InferenceSession::Imports::tick() {
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock) return true;  // a model is imported
  if (is_used.exchange(false)) quiet_ticks = 0;
  if (++quiet_ticks <= kQuietTicks) return true;
  quiet_ticks = 0;
  is_watched = false;
  recent.clear();  // calls of imports that may go
  shrink(kIdleBytes + weight_bytes() / 40);
  for (const auto& outcome : outcomes) outcome->checked.clear();
  note_freed_heap(kPlanBytes);
  return false;
}

// Keeps what was used last within that many bytes, imports before plans, which are made faster.
int64_t InferenceSession::Imports::shrink(int64_t bytes) {
  int64_t kept = 0;
  for (auto outcome = outcomes.begin(); outcome != outcomes.end();) {
    const int64_t graphs = (*outcome)->graph_bytes();
    if (outcome != outcomes.begin() && kept + graphs > bytes) {
      outcome = outcomes.erase(outcome);
      continue;
    }
    kept += graphs;
    ++outcome;
  }
  for (const auto& outcome : outcomes)
    kept += outcome->session->shrink_plans(std::max<int64_t>(bytes - kept, 0));
  return kept;
}

bool InferenceSession::Outcome::fits(const Call& call) const {
  const std::vector<HostTensorView>& feeds = call.tensors;
  if (call.forms != forms) return false;
  SymbolValues values;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].sizes.size() != ranks[i] || feeds[i].dtype != dtypes[i]) return false;
    for (size_t d = 0; d < ranks[i]; ++d) {
      std::string symbol;
      const int64_t size = feeds[i].sizes[d];
      if (!input_dims[i][d].is_symbol(&symbol)) continue;
      const int64_t* known = values.find(symbol);
      if (known && *known != size) return false;
      if (!known) values.bind(symbol, size);
    }
  }
  for (const ContentGuard& guard : content_guards) {
    const void* data = feeds[guard.input].data;
    if (!data || std::memcmp(data, guard.bytes.data(), guard.bytes.size()) != 0) return false;
  }
  for (const ContentSymbol& content : contents) {
    const HostTensorView& feed = feeds[content.input];
    if (!feed.data || content.element >= element_count(feed.sizes)) return false;
    values.bind(content.symbol, saturated(integer_element(feed.data, content.element, feed.dtype)));
  }
  return std::all_of(guards.begin(), guards.end(),
                     [&](const SizeGuard& guard) { return guard.holds(values); });
}

std::vector<FeedContent> InferenceSession::Outcome::contents_of(const Call& call) const {
  std::vector<FeedContent> found;
  for (const ContentGuard& guard : content_guards) found.push_back({guard.input, 0, guard.bytes});
  for (const ContentSymbol& content : contents) {
    const HostTensorView& tensor = call.tensors[content.input];
    const auto size = static_cast<int64_t>(size_of(tensor.dtype));
    const char* element = static_cast<const char*>(tensor.data) + content.element * size;
    found.push_back(
        {content.input, content.element * size, std::string(element, static_cast<size_t>(size))});
  }
  return found;
}

InferenceSession::InferenceSession(std::shared_ptr<LoadedModel> model, InferenceOptions options)
    : model_(std::move(model)),
      options_(std::move(options)),
      inputs_(called_inputs(model_->model().graph)),
      overridable_(overridable_inputs(model_->model())),
      named_(inputs_, options_.fixed_sizes),
      pool_(thread_count(options_.threads)),
      memory_(options_.memory.keep_block ? HostMemory::Keep::WhileUsed : HostMemory::Keep::Nothing),
      imports_(std::make_shared<Imports>()),
      runs_(seed_of(options_)) {
  imports_->weight_bytes = [model = model_] { return model->weight_bytes(); };
  if (options_.profiling) start_profiling();
}

InferenceSession::~InferenceSession() = default;

std::shared_ptr<InferenceSession::Outcome> InferenceSession::outcome_for(const Call& call) {
  std::list<std::shared_ptr<Outcome>>& outcomes = imports_->outcomes;
  const std::lock_guard lock(imports_->mutex);
  auto known = std::find_if(outcomes.begin(), outcomes.end(),
                            [&](const auto& outcome) { return outcome->fits(call); });
  if (known != outcomes.end()) {
    outcomes.splice(outcomes.begin(), outcomes, known);
  } else {
    outcomes.push_front(import(call));
    if (outcomes.size() > kMostOutcomes) outcomes.pop_back();
  }
  return outcomes.front();
}

std::shared_ptr<InferenceSession::Outcome> InferenceSession::import(const Call& call,
                                                                    bool to_save) {
  model_->check_files(false);
  ImportRequest request;
  request.fixed_sizes = options_.fixed_sizes;
  for (const auto& [input, denotations] : model_->facts().denotations)
    for (const auto& [axis, denotation] : denotations)
      if (auto fixed = options_.fixed_denotations.find(denotation);
          fixed != options_.fixed_denotations.end())
        request.fixed_axes[input][axis] = fixed->second;
  request.forms = call.forms;
  request.texts = &model_->texts();
  auto outcome = std::make_shared<Outcome>();
  for (const HostTensorView& tensor : call.tensors) {
    request.inputs.push_back({tensor.dtype, tensor.sizes, tensor.data, tensor.texts});
    outcome->ranks.push_back(tensor.sizes.size());
    outcome->dtypes.push_back(tensor.dtype);
  }
  ImportedModel imported = import_model(model_->model(), request);
  outcome->forms = call.forms;
  outcome->outputs = std::move(imported.outputs);
  outcome->meanings = std::move(imported.meanings);
  outcome->input_dims = std::move(imported.input_dims);
  outcome->contents = std::move(imported.contents);
  outcome->content_guards = std::move(imported.content_guards);
  outcome->guards = std::move(imported.guards);
  std::optional<ConstantPart> constant;
  if (options_.optimization_level >= InferenceOptions::kAllOptimizations) {
    // Before the constant part is taken: passes make more of the model depend on weights alone.
    optimize_forward(*imported.piece.graph, session_options(to_save).optimizer);
    constant = take_constant_part(imported.piece, !to_save);
  }
  add_weights(*outcome, imported);
  if (constant) add_constants(*outcome, imported, *constant);
  outcome->session = std::make_unique<Session>(std::move(imported.piece), session_options(to_save));
  model_->forget_pages();
  note_freed_heap(kImportBytes);
  return outcome;
}

SessionOptions InferenceSession::session_options(bool to_save) const {
  SessionOptions options;
  options.optimizer.device = Device::Host;
  options.optimizer.training = false;
  options.placement = options_.memory.placement();
  options.keep_graphs = to_save;
  options.plan_cache_bytes = kBusyPlanBytes;
  options.fewest_plans = 1;
  options.threads = [count = pool_.threads()] { return count; };
  const OptimizationLevel level = optimization_level(options_.optimization_level);
  options.optimizer.disabled = passes_beyond(level);
  options.optimizer.disabled.insert(options_.disabled_passes.begin(),
                                    options_.disabled_passes.end());
  if (to_save || model_->keeps_originals()) options.optimizer.disabled.merge(packing_passes());
  return options;
}

void InferenceSession::add_weights(Outcome& outcome, const ImportedModel& imported) {
  const auto& inputs = imported.piece.graph->inputs();
  for (size_t i = 0; i < imported.weights.size(); ++i) {
    const OnnxTensor& weight = imported.weights[i];
    const Value& value = *inputs[outcome.ranks.size() + i].value;
    const bool read = !value.uses().empty() || value.is_graph_output();
    const void* elements = nullptr;
    if (read && options_.half_weights)
      elements =
          halved(outcome, *imported.piece.graph, inputs[outcome.ranks.size() + i].value, weight);
    if (read && !elements) elements = model_->elements(weight);
    outcome.weights.push_back(elements);
    outcome.weight_sizes.push_back(weight.dims);
    outcome.weight_strides.push_back(contiguous_strides(weight.dims));
  }
}

// The weight in float16, for a graph that widens it; null if it must stay as it is.
const void* InferenceSession::halved(Outcome& outcome, Graph& graph, Value* value,
                                     const OnnxTensor& weight) {
  if (!is_halvable(value->dtype, weight.dims) || value->is_graph_output()) return nullptr;
  auto halves = model_->constants("half " + LoadedModel::key_of(weight), [&] {
    std::vector<HostTensor> made;
    if (auto half = to_half(weight.bytes.data(), weight.dims, memory_))
      made.push_back(std::move(*half));
    return made;
  });
  if (halves->empty()) {
    std::string name = value->name;
    for (const OnnxInitializer& initializer : model_->model().graph.initializers)
      if (initializer.tensor.bytes.data() == weight.bytes.data()) name = initializer.name;
    wide_weights_.insert(name);
    return nullptr;
  }
  widen_at_reader(graph, value);
  outcome.halves.push_back(halves);
  return halves->front().memory.data();
}

// Computes the constant part, unless another import has, and binds its results.
void InferenceSession::add_constants(Outcome& outcome, const ImportedModel& imported,
                                     const ConstantPart& part) {
  std::vector<OnnxTensor> weights;
  std::string key = print(*part.piece.graph);
  for (size_t input : part.inputs) {
    weights.push_back(imported.weights.at(input - outcome.ranks.size()));
    key += " " + LoadedModel::key_of(weights.back());
  }
  if (options_.half_weights) key += " half";
  outcome.constants = model_->constants(key, [&] {
    std::vector<HostTensor> made = compute(part, weights);
    for (HostTensor& tensor : made)
      if (options_.half_weights && is_halvable(tensor.dtype, tensor.sizes))
        if (auto half = to_half(tensor.memory.data(), tensor.sizes, memory_))
          tensor = std::move(*half);
    return made;
  });
  Graph& graph = *imported.piece.graph;
  for (const HostTensor& constant : *outcome.constants) {
    Value* value = graph.inputs()[outcome.ranks.size() + outcome.weights.size()].value;
    if (constant.dtype != value->dtype) widen_at_reader(graph, value);
    outcome.weights.push_back(constant.memory ? constant.memory.data() : nullptr);
    outcome.weight_sizes.push_back(constant.sizes);
    outcome.weight_strides.push_back(contiguous_strides(constant.sizes));
  }
}

std::vector<HostTensor> InferenceSession::compute(const ConstantPart& part,
                                                  const std::vector<OnnxTensor>& weights) {
  ExportedPiece piece;
  piece.graph = part.piece.graph->clone();
  piece.arguments = part.piece.arguments;
  piece.output_strides = part.piece.output_strides;
  Session session(std::move(piece), session_options());
  std::vector<Sizes> strides;
  std::vector<LayoutView> layouts;
  strides.reserve(weights.size());
  for (const OnnxTensor& weight : weights) {
    strides.push_back(contiguous_strides(weight.dims));
    layouts.push_back({weight.dims, strides.back()});
  }
  return compute_constants(*session.plan_for({layouts, {}}), *model_, weights, pool_);
}

InferenceSession::Bound InferenceSession::bind(const std::vector<HostFeed>& feeds, bool to_show) {
  Bound bound{Call(feeds)};
  const Call& call = bound.call;
  make_readable(bound.call.tensors, memory_, bound.copies);
  imports_->is_used = true;
  RecentCalls::Found known;
  if (!to_show) known = imports_->recent.find(call.forms, call.tensors);
  if (known.entry) {
    bound.outcome = std::static_pointer_cast<Outcome>(known.outcome);
    bound.entry = std::move(known.entry);
    return bound;
  }
  check_feeds(inputs_, overridable_, feeds);
  bound.outcome = outcome_for(call);
  const Outcome& outcome = *bound.outcome;
  const std::vector<HostTensorView>& tensors = call.tensors;
  std::vector<LayoutView> arguments;
  std::vector<Sizes> strides;
  strides.reserve(tensors.size());
  arguments.reserve(tensors.size() + outcome.weights.size());
  for (const HostTensorView& tensor : tensors) {
    strides.push_back(tensor.strides.empty() ? contiguous_strides(tensor.sizes) : tensor.strides);
    arguments.push_back({tensor.sizes, strides.back()});
  }
  for (size_t i = 0; i < outcome.weights.size(); ++i)
    arguments.push_back({outcome.weight_sizes[i], outcome.weight_strides[i]});
  std::vector<int64_t> symbols;
  for (const ContentSymbol& content : outcome.contents)
    symbols.push_back(saturated(integer_element(tensors[content.input].data, content.element,
                                                tensors[content.input].dtype)));
  check_once(*bound.outcome, {arguments, symbols});
  if (to_show) {
    bound.shown = outcome.session->plan_to_show({arguments, symbols});
    return bound;
  }
  bound.entry = outcome.session->plan_for({arguments, symbols});
  imports_->recent.add(
      {call.forms, call.tensors, outcome.contents_of(call), bound.outcome, bound.entry});
  return bound;
}

void InferenceSession::check_once(Outcome& outcome, const CallShapes& call) {
  const SymbolValues values = outcome.session->symbols().bind_all(call);
  std::vector<int64_t> numbers;
  for (const auto& entry : values.entries()) numbers.push_back(entry.second);
  {
    const std::lock_guard lock(imports_->mutex);
    if (outcome.checked.count(numbers)) return;
  }
  check_sizes(outcome.session->exported_graph(), values);
  note_freed_heap(kPlanBytes);
  imports_->watch();
  constexpr size_t kMostKnown = 4096;
  const std::lock_guard lock(imports_->mutex);
  if (outcome.checked.size() >= kMostKnown) outcome.checked.clear();
  outcome.checked.insert(std::move(numbers));
}

// The targets by output of the plan, checked.
HostTargets InferenceSession::plan_targets(const Bound& bound, const HostTargets& targets) const {
  if (targets.empty()) return {};
  const Plan& plan = *bound.entry->program.plan;
  ORTM_CHECK(targets.size() == outputs().size(), "[run] there must be ", outputs().size(),
             " targets, but found ", targets.size());
  HostTargets planned(plan.output_tensors.size());
  std::vector<std::pair<ByteRange, size_t>> ranges;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i]) continue;
    const HostTarget& target = *targets[i];
    const ValueForm& form = bound.outcome->outputs.at(i);
    const std::string& name = outputs()[i].name;
    ORTM_CHECK(form.kind == ValueForm::Kind::Tensor, "[run] output '", name,
               "' must be a tensor to be bound to memory: bind it without a buffer");
    const PlannedTensor& tensor = plan.tensors[plan.output_tensors.at(form.first)];
    ORTM_CHECK(target.dtype == tensor.dtype && target.sizes == tensor.layout.sizes,
               "[run] the memory bound to output '", name, "' must have type ",
               onnx_type_name(onnx_number(tensor.dtype)), " and sizes ",
               sizes_text(tensor.layout.sizes), ", but found ",
               onnx_type_name(onnx_number(target.dtype)), " ", sizes_text(target.sizes));
    ORTM_CHECK(!has_shared_elements(target.sizes, target.strides), "[run] the memory bound to '",
               name, "' must have a place for each element, but found overlapping strides");
    const ByteRange range =
        byte_range(target.data, target.sizes, target.strides, size_of(target.dtype));
    for (const auto& [other, k] : ranges)
      ORTM_CHECK(!range.overlaps(other), "[run] outputs must be bound to memory of their own, but ",
                 "found '", outputs()[k].name, "' and '", name, "' in the same");
    ranges.emplace_back(range, i);
    planned.at(form.first) = target;
  }
  return planned;
}

std::vector<HostResult> InferenceSession::run(const std::vector<HostFeed>& feeds,
                                              const HostTargets& targets,
                                              const std::atomic<bool>* terminate) {
  const std::shared_ptr<Profile> profile = profile_.load();
  const auto begin = profile ? Profile::Clock::now() : Profile::Clock::time_point();
  const Bound bound = bind(feeds);
  const HostTargets places = plan_targets(bound, targets);
  if (profile) profile->add_stage("plan", begin, Profile::Clock::now());
  std::vector<const void*> arguments;
  for (const HostTensorView& tensor : bound.call.tensors) arguments.push_back(tensor.data);
  const std::vector<const void*>& weights = bound.outcome->weights;
  arguments.insert(arguments.end(), weights.begin(), weights.end());
  model_->check_files(true);
  const bool limited = options_.memory.limit_bytes > 0;
  const Admission::Pass pass = limited ? admit(memory_of(bound), feeds) : Admission::Pass();
  HostRun run = run_on_host(*bound.entry, arguments, memory_, pool_, runs_++, places,
                            {terminate, profile.get()});
  last_peak_bytes_ = run.peak_bytes + bound.copied_bytes();
  copied_bytes_ += run.copied_bytes + bound.copied_bytes();
  if (profile) profile->add_stage("model_run", begin, Profile::Clock::now());
  std::vector<HostResult> results;
  for (const ValueForm& form : bound.outcome->outputs) {
    HostResult& result = results.emplace_back();
    result.meaning = bound.outcome->meanings.at(results.size() - 1);
    result.is_sequence = form.kind == ValueForm::Kind::Sequence;
    for (size_t i = form.first; i < form.first + form.count; ++i)
      result.tensors.push_back(std::move(run.outputs[i]));
  }
  return results;
}

void InferenceSession::save_optimized(const std::vector<HostFeed>& feeds, const std::string& path) {
  check_feeds(inputs_, overridable_, feeds);
  const Call call(feeds);
  std::shared_ptr<Outcome> outcome;  // not one to keep
  {
    const std::lock_guard lock(imports_->mutex);
    outcome = import(call, true);
  }
  OptimizedModel optimized;
  for (const ValueForm& form : outcome->outputs)
    ORTM_CHECK(form.kind == ValueForm::Kind::Tensor,
               "[save_onnx] outputs must be tensors, but found a sequence or an optional");
  for (const OutputMeaning& output : outcome->meanings)
    ORTM_CHECK(output.meaning == OnnxMeaning::Numbers,
               "[save_onnx] outputs must be numbers, but found strings or maps");
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].tensors.empty() && i >= inputs_.size()) continue;
    ORTM_CHECK(feeds[i].tensors.size() == 1 && !feeds[i].is_sequence,
               "[save_onnx] inputs must be tensors, but found a sequence or an optional");
    ORTM_CHECK(!feeds[i].tensors[0].texts, "[save_onnx] inputs must be numbers, but found strings");
    optimized.inputs.push_back(i < inputs_.size() ? inputs_[i] : overridable_[i - inputs_.size()]);
  }
  optimized.graph = &outcome->session->joint_graph();
  optimized.tensors = call.tensors;
  optimized.input_dims = outcome->input_dims;
  optimized.weights = outcome->weights;
  optimized.weight_sizes = outcome->weight_sizes;
  for (const OnnxValue& output : outputs()) optimized.outputs.push_back(output.name);
  ::ortmodule::save_optimized(optimized, path);
}

std::set<std::string> InferenceSession::wide_weights() const {
  const std::lock_guard lock(imports_->mutex);
  return wide_weights_;
}

InferenceMemory InferenceSession::memory_of(const Bound& bound) const {
  InferenceMemory memory = memory_of(*bound.entry->program.plan);
  memory.peak += bound.copied_bytes();
  memory.total += bound.copied_bytes();
  return memory;
}

InferenceMemory InferenceSession::memory(const std::vector<HostFeed>& feeds) {
  return memory_of(bind(feeds));
}

int64_t InferenceSession::plan_bytes() const {
  const std::lock_guard lock(imports_->mutex);
  return imports_->shrink(std::numeric_limits<int64_t>::max());
}

std::shared_ptr<const Plan> InferenceSession::plan(const std::vector<HostFeed>& feeds) {
  return bind(feeds, true).shown;
}

}  // namespace ortmodule
