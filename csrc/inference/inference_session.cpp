#include "inference/inference_session.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "base/error.h"
#include "inference/bound_run.h"
#include "inference/plan_targets.h"
#include "inference/save_optimized.h"
#include "inference/segmented_memory.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

uint64_t seed_of(const InferenceOptions& options) {
  if (options.seed != 0) return options.seed;
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

InferenceSession::InferenceSession(std::shared_ptr<LoadedModel> model, InferenceOptions options)
    : host_(std::move(model), std::move(options)),
      inputs_(called_inputs(host_.model->model().graph)),
      overridable_(overridable_inputs(host_.model->model())),
      named_(inputs_, host_.options.fixed_sizes),
      whole_(host_, [this](const std::vector<HostFeed>& feeds) { check(feeds); }),
      runs_(seed_of(host_.options)) {
  if (host_.options.profiling) start_profiling();
}

InferenceSession::~InferenceSession() = default;

void InferenceSession::check(const std::vector<HostFeed>& feeds) const {
  const size_t called = inputs_.size();
  ORTM_CHECK(feeds.size() >= called && feeds.size() <= called + overridable_.size(),
             "[run] there must be ", called, " inputs, but found ", feeds.size());
  for (size_t i = 0; i < feeds.size(); ++i) {
    const OnnxValue& input = i < called ? *inputs_[i] : *overridable_[i - called];
    const OnnxType* type = &input.type;
    if (i >= called && feeds[i].tensors.empty() && !feeds[i].is_sequence) continue;
    if (type->kind == OnnxType::Kind::Optional && type->element) {
      if (feeds[i].tensors.empty() && !feeds[i].is_sequence) continue;
      type = type->element.get();
    }
    const bool sequence = type->kind == OnnxType::Kind::Sequence;
    ORTM_CHECK(
        sequence || type->kind == OnnxType::Kind::Tensor || type->kind == OnnxType::Kind::Unknown,
        "[run] input '", input.name,
        "' must be a tensor or a sequence of tensors: others cannot be fed");
    ORTM_CHECK(feeds[i].is_sequence == sequence && (sequence || feeds[i].tensors.size() == 1),
               "[run] input '", input.name, "' must be ", sequence ? "a list" : "a tensor",
               ", but found ", feeds[i].is_sequence ? "a list" : "another");
    for (const HostTensorView& tensor : feeds[i].tensors) check(input, tensor);
  }
}

namespace {

// The first node that reads a value, for errors.
std::string reader_of(const OnnxGraph& graph, const std::string& value) {
  for (const OnnxNode& node : graph.nodes)
    if (std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end())
      return str("it is read by ", node.op, " '", node.name, "'");
  return "no node reads it";
}

}  // namespace

void InferenceSession::check(const OnnxValue& input, const HostTensorView& tensor) const {
  const OnnxType* type = &input.type;
  while (type->element) type = type->element.get();
  constexpr int kString = 8;
  ORTM_CHECK(type->element_type != kString, "[run] input '", input.name, "' has type string, ",
             "which the engine lacks: ", reader_of(host_.model->model().graph, input.name));
  ORTM_CHECK(type->element_type == 0 || onnx_number(tensor.dtype) == type->element_type,
             "[run] input '", input.name, "' must have type ", onnx_type_name(type->element_type),
             ", but found ", onnx_type_name(onnx_number(tensor.dtype)));
  if (!input.type.dims) return;
  const std::vector<OnnxDim>& dims = *input.type.dims;
  ORTM_CHECK(tensor.sizes.size() == dims.size(), "[run] input '", input.name, "' must have rank ",
             dims.size(), ", but found sizes ", sizes_text(tensor.sizes));
  for (size_t d = 0; d < dims.size(); ++d)
    if (const auto* fixed = std::get_if<int64_t>(&dims[d]); fixed && *fixed >= 0)
      ORTM_CHECK(tensor.sizes[d] == *fixed, "[run] input '", input.name, "' must have size ",
                 *fixed, " in dimension ", d, ", but found sizes ", sizes_text(tensor.sizes));
}

std::vector<HostResult> InferenceSession::run(const std::vector<HostFeed>& feeds,
                                              const HostTargets& targets,
                                              const std::atomic<bool>* terminate) {
  const std::shared_ptr<Profile> profile = profile_.load();
  const auto begin = profile ? Profile::Clock::now() : Profile::Clock::time_point();
  const Segment::Bound bound = whole_.bind(feeds);
  const RunWatch watch{terminate, profile.get()};
  if (bound.outcome->cut) return run_in_segments(bound, feeds, targets, watch);
  const HostTargets places = plan_targets(*bound.entry->program.plan, bound.outcome->outputs,
                                          outputs(), host_.options.device.number, targets);
  if (profile) profile->add_stage("plan", begin, Profile::Clock::now());
  host_.model->check_files(true);
  const bool limited = host_.options.memory.limit_bytes > 0;
  const InferenceMemory memory = limited ? memory_of(bound) : InferenceMemory();
  if (limited && memory.total > host_.options.memory.limit_bytes) {
    std::string why;
    const std::shared_ptr<const Parts> parts = parts_for(bound, feeds, why);
    if (!parts) refuse(memory, feeds, why);
    return run_in_parts(*parts, bound, feeds, targets, watch);
  }
  const Admission::Pass pass = limited ? admit(memory, feeds) : Admission::Pass();
  HostRun run = run_bound(host_, bound, runs_++, places, watch);
  last_peak_bytes_ = run.peak_bytes + bound.copied_bytes();
  copied_bytes_ += run.copied_bytes + bound.copied_bytes();
  if (profile) profile->add_stage("model_run", begin, Profile::Clock::now());
  std::vector<HostResult> results;
  for (const ValueForm& form : bound.outcome->outputs) {
    HostResult& result = results.emplace_back();
    result.is_sequence = form.kind == ValueForm::Kind::Sequence;
    for (size_t i = form.first; i < form.first + form.count; ++i)
      result.tensors.push_back(std::move(run.outputs[i]));
  }
  return results;
}

void InferenceSession::save_optimized(const std::vector<HostFeed>& feeds, const std::string& path) {
  check(feeds);
  const Segment::Call call(feeds);
  const std::shared_ptr<Segment::Outcome> outcome = whole_.import_to_save(call);
  ORTM_CHECK(!outcome->cut, "[save_onnx] the model must have sizes and control flow that do not ",
             "depend on data, but found ", outcome->cut ? outcome->cut->node.op : "", " '",
             outcome->cut ? outcome->cut->node.name : "", "'");
  OptimizedModel optimized;
  for (const ValueForm& form : outcome->outputs)
    ORTM_CHECK(form.kind == ValueForm::Kind::Tensor,
               "[save_onnx] outputs must be tensors, but found a sequence or an optional");
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].tensors.empty() && i >= inputs_.size()) continue;
    ORTM_CHECK(feeds[i].tensors.size() == 1 && !feeds[i].is_sequence,
               "[save_onnx] inputs must be tensors, but found a sequence or an optional");
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

std::map<std::string, DType> InferenceSession::wide_weights() {
  const std::lock_guard lock(host_.mutex);
  return host_.wide_weights;
}

InferenceMemory InferenceSession::memory_of(const Segment::Bound& bound) const {
  InferenceMemory memory = memory_of(*bound.entry->program.plan);
  const int64_t copied = feed_bytes(host_, bound);
  memory.peak += copied;
  memory.total += copied;
  memory.exact = memory.exact && !bound.outcome->cut;
  return memory;
}

InferenceMemory InferenceSession::memory(const std::vector<HostFeed>& feeds) {
  const Segment::Bound bound = whole_.bind(feeds);
  InferenceMemory memory = memory_of(bound);
  if (!bound.outcome->cut) {
    const int64_t limit = host_.options.memory.limit_bytes;
    std::string why;
    const auto parts = limit > 0 && memory.total > limit ? parts_for(bound, feeds, why) : nullptr;
    return parts ? memory_in(*parts) : memory;
  }
  std::optional<int64_t> most;
  try {
    most = most_segmented_bytes(whole_, feeds);
  } catch (const Error&) {  // a part needs the content of what has no data here
  }
  memory.peak = std::max(memory.peak, most.value_or(0));
  memory.weights = host_.weight_bytes();
  memory.total = memory.weights + memory.peak;
  return memory;
}

int64_t InferenceSession::plan_bytes() const { return whole_.plan_bytes(); }

std::shared_ptr<const Plan> InferenceSession::plan(const std::vector<HostFeed>& feeds) {
  return whole_.bind(feeds, true).shown;
}

}  // namespace ortmodule
