#include "inference/inference_session.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "base/error.h"
#include "importer/check_declarations.h"
#include "importer/check_names.h"
#include "inference/bound_run.h"
#include "inference/check_feeds.h"
#include "inference/device_feeds.h"
#include "inference/likely_sizes.h"
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
      inputs_(called_inputs(host_.model->with_nodes()->graph)),
      overridable_(overridable_inputs(*host_.model->with_nodes())),
      named_(inputs_, host_.options.fixed_sizes),
      whole_(host_,
             [this](const std::vector<HostFeed>& feeds) {
               check_feeds(inputs_, overridable_, feeds);
             }),
      runs_(seed_of(host_.options)) {
  if (host_.options.profiling) start_profiling();
  const std::shared_ptr<Profile> profile = profile_.load();
  const ProfiledStage stage(profile.get(), "session_initialization");
  check_model();
}

InferenceSession::~InferenceSession() = default;

void InferenceSession::check_model() {
  {
    const auto model = host_.model->with_nodes();
    check_declarations(*model);
    check_names(*model);
    check_operators(*model);
  }
  if (const auto feeds = declared_feeds(*this)) whole_.import_early(Segment::Call(*feeds));
  if (whole_.early()) typed_outputs();  // the first run takes it
}

std::vector<HostResult> InferenceSession::run(const std::vector<HostFeed>& feeds,
                                              const HostTargets& targets,
                                              const std::atomic<bool>* terminate, RunTexts* texts) {
  const std::shared_ptr<Profile> profile = profile_.load();
  const ProfiledStage whole(profile.get(), "model_run");
  const auto begin = profile ? Profile::Clock::now() : Profile::Clock::time_point();
  const Segment::Bound bound = whole_.bind(feeds);
  const RunWatch watch{terminate, profile.get()};
  if (bound.outcome->cut) return run_in_segments(bound, feeds, targets, watch, texts);
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
  const Admission::Pass pass = limited ? admit(memory, feeds, watch) : Admission::Pass();
  HostRun run = run_bound(host_, bound, runs_++, places, watch);
  last_peak_bytes_ = run.peak_bytes + bound.copied_bytes();
  copied_bytes_ += run.copied_bytes + bound.copied_bytes();
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
  const Segment::Call call(feeds);
  const std::shared_ptr<Segment::Outcome> outcome = whole_.import_to_save(call);
  ORTM_CHECK(!outcome->cut, "[save_onnx] the model must have sizes and control flow that do not ",
             "depend on data, but found ", outcome->cut ? outcome->cut->node.op : "", " '",
             outcome->cut ? outcome->cut->node.name : "", "'");
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
  optimized.weights.assign(outcome->weights.begin(), outcome->weights.end());
  optimized.weight_sizes.assign(outcome->weight_sizes.begin(), outcome->weight_sizes.end());
  for (const OnnxValue& output : outputs()) optimized.outputs.push_back(output.name);
  optimized.placement = host_.options.optimized_data;
  ::ortmodule::save_optimized(optimized, path);
}

std::map<std::string, DType> InferenceSession::wide_weights() {
  const std::lock_guard lock(host_.mutex);
  return host_.wide_weights;
}

InferenceMemory InferenceSession::memory_of(const Segment::Bound& bound) const {
  InferenceMemory memory = memory_of(bound.plan());
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
    most = most_segmented_bytes(host_, whole_, feeds);
  } catch (const Error&) {  // a part needs the content of what has no data here
  }
  memory.peak = std::max(memory.peak, most.value_or(0) + download_bytes(feeds));
  memory.weights = host_.weight_bytes();
  memory.total = memory.weights + memory.peak;
  return memory;
}

int64_t InferenceSession::plan_bytes() const { return whole_.plan_bytes(); }

std::shared_ptr<const Plan> InferenceSession::plan(const std::vector<HostFeed>& feeds) {
  return whole_.bind(feeds, true).shown;
}

}  // namespace ortmodule
