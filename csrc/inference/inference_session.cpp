#include "inference/inference_session.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "ops/known_value.h"
#include "plan/replay.h"

namespace ortmodule {
namespace {

constexpr size_t kMostOutcomes = 32;

int64_t thread_count(int64_t wanted) {
  if (wanted > 0) return wanted;
  return std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()));
}

uint64_t seed_of(const InferenceOptions& options) {
  if (options.seed != 0) return options.seed;
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::string sizes_text(const Sizes& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += str(i ? "," : "", sizes[i]);
  return text + "]";
}

}  // namespace

// The model imported for the decisions of a first call.
struct InferenceSession::Outcome {
  std::vector<size_t> ranks;  // by input
  std::vector<Dims> input_dims;
  std::vector<ContentSymbol> contents;
  std::vector<ContentGuard> content_guards;
  std::vector<SizeGuard> guards;
  std::vector<const void*> weights;  // elements, by graph input after the model's inputs
  std::vector<Sizes> weight_sizes, weight_strides;
  std::unique_ptr<Session> session;

  bool fits(const std::vector<HostTensorView>& feeds) const;
};

// A call with its plan; the spans of `shapes` point into the rest.
struct InferenceSession::Bound {
  std::shared_ptr<Outcome> outcome;
  std::shared_ptr<PlanEntry> entry;
};

bool InferenceSession::Outcome::fits(const std::vector<HostTensorView>& feeds) const {
  SymbolValues values;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].sizes.size() != ranks[i]) return false;
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
    values.bind(content.symbol, integer_element(feed.data, content.element, feed.dtype));
  }
  return std::all_of(guards.begin(), guards.end(),
                     [&](const SizeGuard& guard) { return guard.holds(values); });
}

InferenceSession::InferenceSession(std::shared_ptr<LoadedModel> model, InferenceOptions options)
    : model_(std::move(model)),
      options_(std::move(options)),
      inputs_(called_inputs(model_->model().graph)),
      pool_(thread_count(options_.threads)),
      runs_(seed_of(options_)) {}

InferenceSession::~InferenceSession() = default;

void InferenceSession::check(const std::vector<HostTensorView>& feeds) const {
  ORTM_CHECK(feeds.size() == inputs_.size(), "[run] there must be ", inputs_.size(),
             " inputs, but found ", feeds.size());
  for (size_t i = 0; i < feeds.size(); ++i) {
    const OnnxValue& input = *inputs_[i];
    const HostTensorView& feed = feeds[i];
    ORTM_CHECK(input.type.kind == OnnxType::Kind::Tensor ||
                   input.type.kind == OnnxType::Kind::Unknown,
               "[run] input '", input.name, "' must be a tensor: sequences and optionals cannot be fed");
    ORTM_CHECK(input.type.element_type == 0 || onnx_number(feed.dtype) == input.type.element_type,
               "[run] input '", input.name, "' must have type ",
               onnx_type_name(input.type.element_type), ", but found ",
               onnx_type_name(onnx_number(feed.dtype)));
    if (!input.type.dims) continue;
    const std::vector<OnnxDim>& dims = *input.type.dims;
    ORTM_CHECK(feed.sizes.size() == dims.size(), "[run] input '", input.name, "' must have rank ",
               dims.size(), ", but found sizes ", sizes_text(feed.sizes));
    for (size_t d = 0; d < dims.size(); ++d)
      if (const auto* fixed = std::get_if<int64_t>(&dims[d]); fixed && *fixed >= 0)
        ORTM_CHECK(feed.sizes[d] == *fixed, "[run] input '", input.name, "' must have size ",
                   *fixed, " in dimension ", d, ", but found sizes ", sizes_text(feed.sizes));
  }
}

std::shared_ptr<InferenceSession::Outcome> InferenceSession::outcome_for(
    const std::vector<HostTensorView>& feeds) {
  const std::lock_guard lock(mutex_);
  auto known = std::find_if(outcomes_.begin(), outcomes_.end(),
                            [&](const auto& outcome) { return outcome->fits(feeds); });
  if (known != outcomes_.end()) {
    outcomes_.splice(outcomes_.begin(), outcomes_, known);
  } else {
    outcomes_.push_front(import(feeds));
    if (outcomes_.size() > kMostOutcomes) outcomes_.pop_back();
  }
  return outcomes_.front();
}

std::shared_ptr<InferenceSession::Outcome> InferenceSession::import(
    const std::vector<HostTensorView>& feeds) {
  ImportRequest request;
  request.fixed_sizes = options_.fixed_sizes;
  for (const HostTensorView& feed : feeds)
    request.inputs.push_back({feed.dtype, feed.sizes, feed.data});
  ImportedModel imported = import_model(model_->model(), request);
  auto outcome = std::make_shared<Outcome>();
  for (const HostTensorView& feed : feeds) outcome->ranks.push_back(feed.sizes.size());
  outcome->input_dims = std::move(imported.input_dims);
  outcome->contents = std::move(imported.contents);
  outcome->content_guards = std::move(imported.content_guards);
  outcome->guards = std::move(imported.guards);
  for (const OnnxTensor& weight : imported.weights) {
    outcome->weights.push_back(model_->elements(weight));
    outcome->weight_sizes.push_back(weight.dims);
    outcome->weight_strides.push_back(contiguous_strides(weight.dims));
  }
  SessionOptions options;
  options.optimizer.training = false;
  options.threads = [count = pool_.threads()] { return count; };
  outcome->session = std::make_unique<Session>(std::move(imported.piece), std::move(options));
  return outcome;
}

InferenceSession::Bound InferenceSession::bind(const std::vector<HostTensorView>& feeds) {
  check(feeds);
  Bound bound;
  bound.outcome = outcome_for(feeds);
  const Outcome& outcome = *bound.outcome;
  std::vector<LayoutView> arguments;
  std::vector<Sizes> strides;
  strides.reserve(feeds.size());
  arguments.reserve(feeds.size() + outcome.weights.size());
  for (const HostTensorView& feed : feeds) {
    strides.push_back(contiguous_strides(feed.sizes));
    arguments.push_back({feed.sizes, strides.back()});
  }
  for (size_t i = 0; i < outcome.weights.size(); ++i)
    arguments.push_back({outcome.weight_sizes[i], outcome.weight_strides[i]});
  std::vector<int64_t> symbols;
  for (const ContentSymbol& content : outcome.contents)
    symbols.push_back(integer_element(feeds[content.input].data, content.element,
                                      feeds[content.input].dtype));
  bound.entry = outcome.session->plan_for({arguments, symbols});
  return bound;
}

std::vector<HostTensor> InferenceSession::run(const std::vector<HostTensorView>& feeds) {
  const Bound bound = bind(feeds);
  const Program& program = bound.entry->program;
  const Plan& plan = *program.plan;
  Frame frame(program, memory_);
  for (BufferId buffer : plan.buffers.ids()) {
    const PlannedBuffer& planned = plan.buffers[buffer];
    if (planned.kind != BufferKind::Argument) continue;
    const void* data = planned.index < feeds.size()
                           ? feeds[planned.index].data
                           : bound.outcome->weights[planned.index - feeds.size()];
    frame.bind(buffer, const_cast<void*>(data));  // NOLINT: no step writes to an argument
  }
  KernelContext context;
  context.parallel_for = pool_.parallel_for();
  context.seed.value = runs_++;
  execute(program, frame, context, 0, plan.forward_steps, false);
  std::vector<HostTensor> outputs;
  for (TensorId output : plan.output_tensors) {
    const PlannedTensor& tensor = plan.tensors[output];
    const BufferId buffer = plan.storages[tensor.storage].buffer;
    HostTensor& result = outputs.emplace_back();
    result.dtype = tensor.dtype;
    result.sizes = tensor.layout.sizes;
    if (buffer) result.memory = frame.take(buffer);
  }
  last_peak_bytes_ = frame.peak_bytes();
  return outputs;
}

InferenceMemory InferenceSession::memory(const std::vector<HostTensorView>& feeds) {
  const Bound bound = bind(feeds);
  const Plan& plan = *bound.entry->program.plan;
  InferenceMemory memory;
  memory.weights = model_->weight_bytes();
  memory.outputs = output_bytes(plan);
  memory.peak = plan.forward_peak_bytes;
  memory.total = memory.weights + memory.peak;
  memory.exact = plan.exact;
  return memory;
}

std::string InferenceSession::plan_text(const std::vector<HostTensorView>& feeds) {
  return print(*bind(feeds).entry->program.plan);
}

}  // namespace ortmodule
