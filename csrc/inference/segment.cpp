#include "inference/segment.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "inference/check_sizes.h"
#include "inference/compute_constants.h"
#include "inference/device_feeds.h"
#include "inference/half_weights.h"
#include "inference/readable_feeds.h"
#include "ir/text.h"
#include "ops/known_value.h"
#include "optimizer/pipeline.h"
#include "optimizer/rewrite.h"
#include "plan/plan_bytes.h"
#include "runtime/idle_clock.h"
#include "runtime/idle_pages.h"

namespace ortmodule {
namespace {

constexpr size_t kMostOutcomes = 32;
// What is freed about when a model was imported, and when a plan was made.
constexpr int64_t kImportBytes = 8 << 20, kPlanBytes = 1 << 20;
// Of imports and plans: while runs follow each other, and when a session is idle.
constexpr int64_t kBusyPlanBytes = 16 << 20, kIdleBytes = 256 << 10;
constexpr int kQuietTicks = 2;

int64_t thread_count(int64_t wanted) {
  if (wanted > 0) return wanted;
  return std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()));
}

// onnxruntime's levels: 0 none, 1 basic, 2 extended, 3 layouts, 99 all.
OptimizationLevel optimization_level(int64_t level) {
  if (level <= 0) return OptimizationLevel::None;
  if (level == 1) return OptimizationLevel::Cleanup;
  if (level == 2) return OptimizationLevel::Fusions;
  return level < InferenceOptions::kAllOptimizations ? OptimizationLevel::Layouts
                                                     : OptimizationLevel::All;
}

// The names of dimensions that are symbols, "" of others.
std::vector<std::vector<std::string>> symbols_in(const std::vector<Dims>& inputs) {
  std::vector<std::vector<std::string>> symbols;
  for (const Dims& dims : inputs) {
    std::vector<std::string>& names = symbols.emplace_back(dims.size());
    for (size_t d = 0; d < dims.size(); ++d)
      if (!dims[d].is_symbol(&names[d])) names[d].clear();
  }
  return symbols;
}

// Whether an import for one without contents is one for the other.
bool is_alike(const Segment::Call& a, const Segment::Call& b) {
  const auto alike = [](const HostTensorView& x, const HostTensorView& y) {
    return x.dtype == y.dtype && x.sizes == y.sizes && x.texts == y.texts;
  };
  return a.forms == b.forms && std::ranges::equal(a.tensors, b.tensors, alike);
}

}  // namespace

SegmentHost::SegmentHost(std::shared_ptr<LoadedModel> of, InferenceOptions with)
    : model(std::move(of)),
      options(std::move(with)),
      device(options.device.number == kOnHost ? nullptr : &run_device(options.device.number)),
      device_weights(device ? std::make_unique<DeviceWeights>(*device) : nullptr),
      pool(thread_count(options.threads)),
      memory(options.memory.keep_block ? HostMemory::Keep::WhileUsed : HostMemory::Keep::Nothing) {}

Segment::Call::Call(const std::vector<HostFeed>& feeds) {
  for (const HostFeed& feed : feeds) {
    const auto kind = feed.is_map            ? ValueForm::Kind::Map
                      : feed.is_sequence     ? ValueForm::Kind::Sequence
                      : feed.tensors.empty() ? ValueForm::Kind::Absent
                                             : ValueForm::Kind::Tensor;
    forms.push_back({kind, tensors.size(), feed.tensors.size()});
    tensors.insert(tensors.end(), feed.tensors.begin(), feed.tensors.end());
  }
}

int64_t Segment::Bound::copied_bytes() const {
  int64_t bytes = unmade_bytes;
  for (const Buffer& copy : copies) bytes += copy.bytes();
  return bytes;
}

std::vector<const void*> Segment::Bound::arguments() const {
  std::vector<const void*> arguments;
  for (const HostTensorView& tensor : call.tensors) arguments.push_back(tensor.data);
  arguments.insert(arguments.end(), outcome->weights.begin(), outcome->weights.end());
  return arguments;
}

// Segments that follow each other go one by one: thousands of nested destructors exhaust the stack.
Segment::Outcome::~Outcome() {
  thread_local std::vector<std::unique_ptr<Segment>>* waiting = nullptr;
  if (!rest) return;
  if (waiting) {
    waiting->push_back(std::move(rest));
    return;
  }
  std::vector<std::unique_ptr<Segment>> segments;
  segments.push_back(std::move(rest));
  waiting = &segments;
  while (!segments.empty()) {
    const std::unique_ptr<Segment> last = std::move(segments.back());
    segments.pop_back();
  }
  waiting = nullptr;
}

int64_t Segment::Outcome::graph_bytes() const { return session->lowered_bytes(); }

// The outcomes, and their plans. The idle clock may see them for a moment longer than the session.
struct Segment::Imports : IdleKeeper, std::enable_shared_from_this<Imports> {
  std::mutex mutex;                              // guards the next ones
  std::list<std::shared_ptr<Outcome>> outcomes;  // the most recently used one first
  int quiet_ticks = 0;
  RecentCalls recent;
  std::atomic<bool> is_used = false;  // since the last tick
  std::atomic<bool> is_watched = false;
  std::shared_ptr<LoadedModel> model;

  /// To be called when something was added.
  void watch() {
    if (!is_watched.exchange(true) || !idle_clock_runs()) tick_until_idle(weak_from_this());
  }
  bool tick() override;
  int64_t shrink(int64_t bytes);
};

bool Segment::Imports::tick() {
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock) return true;  // a model is imported
  if (is_used.exchange(false)) quiet_ticks = 0;
  if (++quiet_ticks <= kQuietTicks) return true;
  quiet_ticks = 0;
  is_watched = false;
  recent.clear();  // calls of imports that may go
  shrink(kIdleBytes + model->weight_bytes() / 40);
  for (const auto& outcome : outcomes) {
    outcome->checked.clear();
    outcome->size_checks.clear();
    outcome->session->pack();
  }
  model->pack();
  forget_compiled_rules();
  note_freed_heap(kPlanBytes);
  return false;
}

// Keeps what was used last within that many bytes, imports before plans, which are made faster.
int64_t Segment::Imports::shrink(int64_t bytes) {
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

bool Segment::Outcome::fits(const Call& call) const {
  const std::vector<HostTensorView>& feeds = call.tensors;
  if (call.forms != forms) return false;
  SymbolValues values;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].sizes.size() != ranks[i] || feeds[i].dtype != dtypes[i]) return false;
    for (size_t d = 0; d < ranks[i]; ++d) {
      const std::string& symbol = input_symbols[i][d];
      if (symbol.empty()) continue;
      const int64_t size = feeds[i].sizes[d];
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
    const int64_t number = integer_element(feed.data, content.element, feed.dtype);
    if (!content.is_place && number != saturated(number)) return false;
    values.bind(content.symbol, saturated(number));
  }
  return std::all_of(guards.begin(), guards.end(),
                     [&](const SizeGuard& guard) { return guard.holds(values); });
}

SymbolValues Segment::Outcome::symbols_of(const Call& call) const {
  SymbolValues values;
  for (size_t i = 0; i < call.tensors.size(); ++i)
    for (size_t d = 0; d < ranks[i]; ++d)
      if (const std::string& symbol = input_symbols[i][d]; !symbol.empty() && !values.find(symbol))
        values.bind(symbol, call.tensors[i].sizes[d]);
  for (const ContentSymbol& content : contents) {
    const HostTensorView& feed = call.tensors[content.input];
    values.bind(content.symbol, saturated(integer_element(feed.data, content.element, feed.dtype)));
  }
  return values;
}

std::vector<FeedContent> Segment::Outcome::contents_of(const Call& call) const {
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

Segment::Segment(SegmentHost& host, Check check, std::optional<ModelPart> part)
    : host_(host),
      check_(std::move(check)),
      part_(std::move(part)),
      imports_(std::make_shared<Imports>()) {
  imports_->model = host.model;
}

Segment::~Segment() = default;

std::shared_ptr<Segment::Outcome> Segment::import_to_save(Call call) {
  std::vector<Buffer> copies;
  take_device_feeds(call.tensors, host_.options.device.number, host_.memory, copies);
  make_readable(call.tensors, host_.memory, copies);
  const std::lock_guard lock(imports_->mutex);
  return import(call, true);
}

int64_t Segment::plan_bytes() const {
  const std::lock_guard lock(imports_->mutex);
  return imports_->shrink(std::numeric_limits<int64_t>::max());
}

std::shared_ptr<Segment::Outcome> Segment::outcome_for(const Call& call) {
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

void Segment::import_early(Call call) {
  if (auto imported = import_types(call))
    early_.emplace(Early{std::move(call), std::move(*imported)});
}

std::optional<ImportedModel> Segment::import_types(const Call& call) const {
  return import_without_contents(*host_.model->with_nodes(), request_of(call));
}

ImportRequest Segment::request_of(const Call& call) const {
  ImportRequest request;
  if (part_) request.part = &*part_;
  request.fixed_sizes = host_.options.fixed_sizes;
  for (const auto& [input, denotations] : host_.model->facts().denotations)
    for (const auto& [axis, denotation] : denotations)
      if (auto fixed = host_.options.fixed_denotations.find(denotation);
          fixed != host_.options.fixed_denotations.end())
        request.fixed_axes[input][axis] = fixed->second;
  request.forms = call.forms;
  request.texts = &host_.model->texts();
  for (const HostTensorView& tensor : call.tensors)
    request.inputs.push_back({tensor.dtype, tensor.sizes, tensor.data, tensor.texts});
  return request;
}

ImportedModel Segment::imported_model(const Call& call, bool to_save) {
  if (!to_save && early_) {
    Early early = std::move(*early_);
    early_.reset();
    if (is_alike(early.call, call)) return std::move(early.imported);
  }
  return import_model(*host_.model->with_nodes(), request_of(call));
}

std::shared_ptr<Segment::Outcome> Segment::import(const Call& call, bool to_save) {
  host_.model->check_files(false);
  auto outcome = std::make_shared<Outcome>(host_.model->long_lived());
  for (const HostTensorView& tensor : call.tensors) {
    outcome->ranks.push_back(tensor.sizes.size());
    outcome->dtypes.push_back(tensor.dtype);
  }
  ImportedModel imported = imported_model(call, to_save);
  outcome->forms = call.forms;
  outcome->outputs = std::move(imported.outputs);
  outcome->meanings = std::move(imported.meanings);
  outcome->input_symbols = symbols_in(imported.input_dims);
  if (part_ || imported.cut) {
    const std::shared_ptr<const OnnxModel> nodes = host_.model->with_nodes();
    const ModelPart part = part_ ? *part_ : whole_model(*nodes);
    outcome->unread = fix_unread_sizes(imported, part, call.forms, outcome->input_symbols);
  }
  outcome->input_dims = std::move(imported.input_dims);
  outcome->contents = std::move(imported.contents);
  outcome->content_guards = std::move(imported.content_guards);
  outcome->guards = std::move(imported.guards);
  outcome->cut = std::move(imported.cut);
  if (outcome->cut) {
    outcome->nodes = host_.model->with_nodes();
    outcome->rest = std::make_unique<Segment>(host_, Check(), std::move(outcome->cut->rest));
    for (ModelPart& body : outcome->cut->bodies)
      outcome->bodies.push_back(std::make_unique<Segment>(host_, Check(), std::move(body)));
  }
  if (host_.options.memory.limit_bytes > 0 && !part_ && !outcome->cut)
    outcome->imported = imported_rows(*imported.piece.graph, imported.weights);
  outcome->on_device = host_.device && !to_save;
  const Device device = outcome->on_device ? host_.device->kernels() : Device::Host;
  std::vector<ConstantPart> constants;
  if (host_.options.optimization_level >= InferenceOptions::kAllOptimizations) {
    // Before the constant parts are taken: passes make more of the model depend on weights alone.
    optimize_forward(*imported.piece.graph, session_options(device, to_save).optimizer);
    constants = take_constant_parts(imported.piece, device == Device::Host && !to_save);
  }
  host_.model->forget_pages();      // neither they nor the code so far are there beside the weights
  if (!part_) forget_code_pages();  // of which the next part would read the same
  add_weights(*outcome, imported);
  add_constants(*outcome, imported, constants);
  SessionOptions options = session_options(device, to_save);
  // What can be packed once is; more would be packed in every run.
  options.optimizer.disabled.merge(packing_passes());
  // A call names the tensors by the graph's inputs; there is an argument for each weight, too.
  std::erase_if(imported.piece.arguments, [](const BoundInput& argument) {
    return argument.kind == BoundInput::Kind::Tensor;
  });
  imported.piece.arguments.shrink_to_fit();
  outcome->session = std::make_unique<Session>(std::move(imported.piece), options);
  host_.model->forget_pages();
  note_freed_heap(kImportBytes);
  return outcome;
}

SessionOptions Segment::session_options(Device device, bool to_save) const {
  SessionOptions options;
  options.optimizer.device = device;
  options.optimizer.training = false;
  options.optimizer.channels_last = device == Device::Host && !to_save;
  options.placement = host_.options.memory.placement();
  options.keep_graphs = to_save;
  options.plan_cache_bytes = kBusyPlanBytes;
  options.fewest_plans = 1;
  options.threads = [count = host_.pool.threads()] { return count; };
  const OptimizationLevel level = optimization_level(host_.options.optimization_level);
  options.optimizer.disabled = passes_beyond(level);
  options.optimizer.disabled.insert(host_.options.disabled_passes.begin(),
                                    host_.options.disabled_passes.end());
  if (to_save || host_.model->keeps_originals()) {
    std::set<std::string> packing = packing_passes();
    // Products of integers would pack their factor in every run, which takes longer than they do
    // with few rows.
    if (!to_save) packing.erase("pack_integer_weights");
    options.optimizer.disabled.merge(packing);
  }
  return options;
}

const void* Segment::elements_of(const Outcome& outcome, const OnnxTensor& weight) {
  return outcome.on_device ? host_.device_weights->elements(weight, *host_.model)
                           : host_.model->elements(weight);
}

std::vector<ConstantStore::Tensors> Segment::constants_of(const Outcome& outcome,
                                                          const std::vector<std::string>& keys,
                                                          const ConstantStore::Compute& compute) {
  return outcome.on_device ? host_.device_weights->constants(keys, compute)
                           : host_.model->constants(keys, compute);
}

void Segment::add_weights(Outcome& outcome, const ImportedModel& imported) {
  const auto& inputs = imported.piece.graph->inputs();
  outcome.weights.reserve(inputs.size() - outcome.ranks.size());
  outcome.weight_sizes.reserve(inputs.size() - outcome.ranks.size());
  for (size_t i = 0; i < imported.weights.size(); ++i) {
    const OnnxTensor& weight = imported.weights[i];
    const Value& value = *inputs[outcome.ranks.size() + i].value;
    const bool read = !value.uses().empty() || value.is_graph_output();
    const void* elements = nullptr;
    if (read && host_.options.half_weights)
      elements =
          halved(outcome, *imported.piece.graph, inputs[outcome.ranks.size() + i].value, weight);
    if (read && !elements) elements = elements_of(outcome, weight);
    outcome.weights.push_back(elements);
    outcome.weight_sizes.push_back(weight.dims);
  }
}

// The weight in 16 bits, for a graph that widens it; null if it must stay as it is.
const void* Segment::halved(Outcome& outcome, Graph& graph, Value* value,
                            const OnnxTensor& weight) {
  if (!is_halvable(value->dtype, weight.dims) || value->is_graph_output()) return nullptr;
  const std::string key = "half " + LoadedModel::key_of(weight);
  const auto make = [&](const std::vector<size_t>&) {
    std::vector<std::vector<HostTensor>> made(1);
    const auto read = [&](int64_t first, int64_t count, float* to) {
      host_.model->copy_part(weight, static_cast<size_t>(first) * sizeof(float),
                             static_cast<size_t>(count) * sizeof(float), to);
    };
    if (auto half = to_half(read, weight.dims, host_.memory)) made[0].push_back(std::move(*half));
    return made;
  };
  const ConstantStore::Tensors halves = constants_of(outcome, {key}, make).front();
  outcome.halves.push_back(halves);  // also that there are none
  const DType type = halves->empty() ? DType::Float32 : halves->front().dtype;
  if (type != DType::Float16) {
    std::string name = value->name;
    const auto model = host_.model->with_nodes();
    for (const OnnxInitializer& initializer : model->graph.initializers)
      if (initializer.tensor.bytes.data() == weight.bytes.data()) name = initializer.name;
    const std::lock_guard lock(host_.mutex);
    host_.wide_weights[name] = type;
  }
  if (halves->empty()) return nullptr;
  widen_at_reader(graph, value, type);
  return halves->front().memory.data();
}

// Computes the constant parts that no other import has, and binds their results.
void Segment::add_constants(Outcome& outcome, const ImportedModel& imported,
                            const std::vector<ConstantPart>& parts) {
  const size_t first = outcome.ranks.size();  // graph input that is a weight
  std::vector<std::string> keys;
  for (const ConstantPart& part : parts) {
    std::string& key = keys.emplace_back(print(*part.piece.graph));
    for (size_t input : part.inputs)
      key += " " + LoadedModel::key_of(imported.weights.at(input - first));
    if (host_.options.half_weights) key += " half";
  }
  const auto bytes_of = [&](const ConstantPart* part) {
    int64_t bytes = 0;
    for (size_t input : part->inputs)
      bytes += LoadedModel::memory_bytes(imported.weights.at(input - first));
    return bytes;
  };
  const auto constants = constants_of(outcome, keys, [&](const std::vector<size_t>& places) {
    std::vector<const ConstantPart*> missing;
    for (size_t place : places) missing.push_back(&parts[place]);
    // Large ones first: their copies take what results of the others will take later.
    std::ranges::stable_sort(missing, std::greater(), bytes_of);
    ConstantPart whole = joined(missing);
    std::vector<OnnxTensor> weights;
    for (size_t input : whole.inputs) weights.push_back(imported.weights.at(input - first));
    const auto compute = host_.options.half_weights ? compute_halves : compute_constants;
    SessionOptions options = session_options(Device::Host);
    // Passes have optimized it as a part of the model.
    options.optimizer.disabled.merge(all_passes());
    auto made = compute(std::move(whole), options, *host_.model, weights, host_.pool);
    std::unordered_map<const ConstantPart*, std::vector<HostTensor>> by_part;
    auto next = std::make_move_iterator(made.begin());
    for (const ConstantPart* part : missing) {
      const auto end = next + static_cast<ptrdiff_t>(part->piece.graph->outputs().size());
      by_part.try_emplace(part, next, end);
      next = end;
    }
    std::vector<std::vector<HostTensor>> in_order;
    for (size_t place : places) in_order.push_back(std::move(by_part.at(&parts[place])));
    return in_order;
  });
  outcome.constants.assign(constants.begin(), constants.end());
  for (const ConstantStore::Tensors& part : constants)
    for (const HostTensor& constant : *part) add_constant(outcome, *imported.piece.graph, constant);
}

void Segment::add_constant(Outcome& outcome, Graph& graph, const HostTensor& constant) {
  Value* value = graph.inputs()[outcome.ranks.size() + outcome.weights.size()].value;
  if (constant.dtype != value->dtype) widen_at_reader(graph, value, constant.dtype);
  outcome.weights.push_back(constant.memory ? constant.memory.data() : nullptr);
  outcome.weight_sizes.push_back(constant.sizes);
}

Segment::Bound Segment::readable(const std::vector<HostFeed>& feeds) {
  Bound bound{Call(feeds)};
  bound.on_device = take_device_feeds(bound.call.tensors, host_.options.device.number, host_.memory,
                                      bound.copies);
  bound.unmade_bytes = make_readable(bound.call.tensors, host_.memory, bound.copies);
  imports_->is_used = true;
  return bound;
}

Segment::Bound Segment::bind(const std::vector<HostFeed>& feeds, bool to_show) {
  Bound bound = readable(feeds);
  const Call& call = bound.call;
  RecentCalls::Found known;
  if (!to_show) known = imports_->recent.find(call.forms, call.tensors);
  if (known.entry) {
    bound.outcome = std::static_pointer_cast<Outcome>(known.outcome);
    bound.entry = std::move(known.entry);
    return bound;
  }
  if (check_) check_(feeds);
  bound.outcome = outcome_for(call);
  plan(bound, to_show);
  if (to_show) return bound;
  // Importing reads megabytes of code that runs do not: they would add up with the run's memory.
  if (bound.outcome->is_new.exchange(false) && !part_) forget_code_pages();
  imports_->recent.add(
      {call.forms, call.tensors, bound.outcome->contents_of(call), bound.outcome, bound.entry},
      bound.outcome->unread);
  return bound;
}

Segment::Bound Segment::bind_part(const std::vector<HostFeed>& feeds,
                                  std::shared_ptr<Outcome> outcome) {
  Bound bound = readable(feeds);
  bound.outcome = std::move(outcome);
  plan(bound, false);
  return bound;
}

void Segment::plan(Bound& bound, bool to_show) {
  const Outcome& outcome = *bound.outcome;
  const std::vector<HostTensorView>& tensors = bound.call.tensors;
  std::vector<LayoutView> arguments;
  std::vector<Sizes> sizes, strides;
  sizes.reserve(tensors.size());
  strides.reserve(tensors.size() + outcome.weights.size());
  arguments.reserve(tensors.size() + outcome.weights.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Sizes& given = tensors[i].strides;
    sizes.push_back(planned_sizes(outcome.unread, i, tensors[i].sizes));
    const bool is_dense = given.empty() || sizes.back() != tensors[i].sizes;
    strides.push_back(is_dense ? contiguous_strides(sizes.back()) : given);
    arguments.push_back({sizes.back(), strides.back()});
  }
  for (const Sizes& weight : outcome.weight_sizes) {
    strides.push_back(contiguous_strides(weight));
    arguments.push_back({weight, strides.back()});
  }
  std::vector<int64_t> symbols;
  for (const ContentSymbol& content : outcome.contents)
    symbols.push_back(saturated(integer_element(tensors[content.input].data, content.element,
                                                tensors[content.input].dtype)));
  const bool is_first = check_once(*bound.outcome, {arguments, symbols});
  if (to_show)
    bound.shown = outcome.session->plan_to_show({arguments, symbols});
  else
    bound.entry = outcome.session->plan_for({arguments, symbols});
  if (is_first) note_freed_heap(kPlanBytes);
}

// Returns whether these sizes were not known yet.
bool Segment::check_once(Outcome& outcome, const CallShapes& call) {
  const SymbolValues values = outcome.session->symbols().bind_all(call);
  std::vector<int64_t> numbers;
  for (const auto& entry : values.entries()) numbers.push_back(entry.second);
  {
    const std::lock_guard lock(imports_->mutex);
    if (outcome.checked.count(numbers)) return false;
  }
  outcome.size_checks.check(*outcome.session->lowered()->graph, values);
  imports_->watch();
  constexpr size_t kMostKnown = 4096;
  const std::lock_guard lock(imports_->mutex);
  if (outcome.checked.size() >= kMostKnown) outcome.checked.clear();
  outcome.checked.insert(std::move(numbers));
  return true;
}

}  // namespace ortmodule
