#include "inference/segmented_run.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "inference/bound_run.h"
#include "inference/copy_elements.h"
#include "inference/device_feeds.h"
#include "inference/inference_session.h"
#include "inference/plan_targets.h"
#include "inference/sized/sized_op.h"
#include "onnx/onnx_types.h"

namespace ortmodule {

/// Memory of a run, which counts what it holds.
struct PassedTensor::Owned {
  Owned(HostTensor of, std::shared_ptr<int64_t> held)
      : tensor(std::move(of)), held_bytes(std::move(held)), bytes(tensor.memory.bytes()) {
    *held_bytes += bytes;
  }
  ~Owned() { *held_bytes -= bytes; }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  HostTensor tensor;
  std::shared_ptr<int64_t> held_bytes;
  int64_t bytes;
};

namespace {

std::string title(const OnnxNode& node) {
  return str(node.op, " '",
             node.name.empty() && !node.outputs.empty() ? node.outputs[0] : node.name, "'");
}

std::vector<HostFeed> feeds_of(const std::vector<PassedValue>& values) {
  std::vector<HostFeed> feeds;
  for (const PassedValue& value : values) {
    HostFeed& feed = feeds.emplace_back();
    feed.is_sequence = value.kind == ValueForm::Kind::Sequence;
    feed.is_map = value.kind == ValueForm::Kind::Map;
    for (const PassedTensor& tensor : value.tensors) feed.tensors.push_back(tensor.view);
  }
  return feeds;
}

PassedValue value_of(const ValueForm& form, const std::vector<PassedTensor>& tensors) {
  const auto first = tensors.begin() + static_cast<std::ptrdiff_t>(form.first);
  return {form.kind, {first, first + static_cast<std::ptrdiff_t>(form.count)}};
}

// What the node of a cut and the rest read.
SegmentedRun::Values carried_values(const ModelCut& cut, const std::vector<PassedValue>& feeds,
                                    const std::vector<PassedTensor>& outputs) {
  std::vector<PassedTensor> inputs;
  for (const PassedValue& feed : feeds)
    inputs.insert(inputs.end(), feed.tensors.begin(), feed.tensors.end());
  SegmentedRun::Values values;
  for (const CarriedValue& carried : cut.values) {
    PassedValue& value = values[carried.name];
    value.kind = carried.kind;
    for (const CarriedValue::Tensor& tensor : carried.tensors) {
      value.tensors.push_back((tensor.is_input ? inputs : outputs).at(tensor.index));
      value.tensors.back().view.texts = carried.texts;
    }
  }
  return values;
}

}  // namespace

SegmentedRun::SegmentedRun(SegmentHost& host, int64_t limit_bytes, RunWatch watch,
                           std::function<uint64_t()> next_seed, RunTexts& texts)
    : host_(host),
      limit_bytes_(limit_bytes),
      watch_(watch),
      next_seed_(std::move(next_seed)),
      texts_(texts) {}

std::vector<PassedValue> SegmentedRun::pass(const std::vector<HostFeed>& feeds) {
  std::vector<PassedValue> values;
  for (const HostFeed& feed : feeds) {
    PassedValue& value = values.emplace_back();
    value.kind = feed.is_map            ? ValueForm::Kind::Map
                 : feed.is_sequence     ? ValueForm::Kind::Sequence
                 : feed.tensors.empty() ? ValueForm::Kind::Absent
                                        : ValueForm::Kind::Tensor;
    for (const HostTensorView& tensor : feed.tensors) value.tensors.push_back({tensor, nullptr});
  }
  return values;
}

std::vector<PassedValue> SegmentedRun::run(Segment& segment, std::vector<PassedValue> feeds,
                                           const std::vector<std::string>& outputs) {
  Values found;
  Segment* at = &segment;
  std::shared_ptr<Segment::Outcome> owner;  // of the segment
  while (at) {
    const Segment::Bound bound = at->bind(feeds_of(feeds));
    std::vector<PassedTensor> results;
    execute(bound, results);
    const Segment::Outcome& outcome = *bound.outcome;
    if (!outcome.cut) {
      const std::vector<std::string>& names = at->part() ? at->part()->outputs : outputs;
      for (size_t i = 0; i < names.size(); ++i) {
        PassedValue& value = found[names[i]] = value_of(outcome.outputs.at(i), results);
        value.meaning = outcome.meanings.at(i);
        for (PassedTensor& tensor : value.tensors)
          tensor.view.texts = value.meaning.meaning == OnnxMeaning::Texts;
      }
      break;
    }
    Values values = carried_values(*outcome.cut, feeds, results);
    results.clear();
    feeds.clear();
    run_step(outcome, values);
    for (const std::string& name : outputs)
      if (const auto value = values.find(name); value != values.end()) found[name] = value->second;
    for (const std::string& name : outcome.rest->part()->inputs) {
      const auto value = values.find(name);
      ORTM_CHECK(value != values.end(), "[run] ", title(outcome.cut->node),
                 " must compute its output '", name, "', which a later node reads");
      feeds.push_back(value->second);
    }
    owner = bound.outcome;
    at = outcome.rest.get();
  }
  std::vector<PassedValue> results;
  for (const std::string& name : outputs) {
    const auto value = found.find(name);
    ORTM_CHECK(value != found.end(), "[run] '", name, "' must be computed by a node of the graph");
    results.push_back(value->second);
  }
  return results;
}

void SegmentedRun::execute(const Segment::Bound& bound, std::vector<PassedTensor>& outputs) {
  const Plan& plan = *bound.entry->program.plan;
  const int64_t bytes = plan.forward_peak_bytes + feed_bytes(host_, bound);
  check_limit(bytes);
  HostRun run = run_bound(host_, bound, next_seed_(), {}, watch_);
  peak_bytes_ = std::max(peak_bytes_, *held_bytes_ + run.peak_bytes + bound.copied_bytes());
  for (HostTensor& output : run.outputs) outputs.push_back(own(std::move(output)));
}

void SegmentedRun::run_step(const Segment::Outcome& outcome, Values& values) {
  switch (outcome.cut->kind) {
    case ModelCut::Kind::Content: return;
    case ModelCut::Kind::Sized: return run_sized(*outcome.cut, values);
    case ModelCut::Kind::Control: return run_control(*this, outcome, values);
  }
}

void SegmentedRun::run_sized(const ModelCut& cut, Values& values) {
  const SizedOp* op = find_sized_op(cut.node.op);
  ORTM_ASSERT(op, "no SizedOp ", cut.node.op);
  std::vector<PassedTensor> operands;
  std::vector<HostTensorView> views;
  for (const std::string& name : cut.node.inputs) {
    const auto value = values.find(name);
    const bool has = value != values.end() && value->second.tensors.size() == 1;
    operands.push_back(has ? row_major(value->second.tensors[0]) : PassedTensor());
    views.push_back(operands.back().view);
  }
  std::vector<PassedTensor> results;
  try {
    const auto take = [&](DType dtype, const Sizes& sizes, bool texts) -> void* {
      results.push_back(allocate(dtype, sizes));
      results.back().view.texts = texts;
      return results.back().owner->tensor.memory.data();
    };
    op->run({cut.attrs, views, take, &texts_});
  } catch (const Error& error) {
    throw Error(str(error.what(), " (", title(cut.node), ")"));
  }
  for (size_t i = 0; i < cut.node.outputs.size() && i < results.size(); ++i)
    values[cut.node.outputs[i]] = {ValueForm::Kind::Tensor, {results[i]}};
}

PassedTensor SegmentedRun::own(HostTensor tensor) {
  PassedTensor passed;
  passed.owner = std::make_shared<PassedTensor::Owned>(std::move(tensor), held_bytes_);
  const HostTensor& owned = passed.owner->tensor;
  passed.view = {owned.dtype, owned.sizes, owned.memory.data()};
  peak_bytes_ = std::max(peak_bytes_, *held_bytes_);
  return passed;
}

PassedTensor SegmentedRun::allocate(DType dtype, const Sizes& sizes) {
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.sizes = sizes;
  const int64_t bytes = std::max<int64_t>(tensor.byte_count(), 1);
  check_limit(bytes);
  tensor.memory = host_.memory.allocate(bytes);
  return own(std::move(tensor));
}

PassedTensor SegmentedRun::single(DType dtype, const Sizes& sizes, int64_t value) {
  PassedTensor tensor = allocate(dtype, sizes);
  void* to = tensor.owner->tensor.memory.data();
  std::memcpy(to, &value, size_of(dtype));  // little-endian
  return tensor;
}

PassedTensor SegmentedRun::row_major(PassedTensor tensor) {
  const HostTensorView& from = tensor.view;
  return canonical_strides(from.sizes, from.strides).empty() ? tensor : own_copy(tensor);
}

HostResult SegmentedRun::take_result(PassedValue value) {
  HostResult result;
  result.is_sequence = value.kind == ValueForm::Kind::Sequence;
  result.meaning = value.meaning;
  for (PassedTensor& passed : value.tensors) {
    if (passed.view.texts) result.meaning.meaning = OnnxMeaning::Texts;
    HostTensor& tensor = result.tensors.emplace_back();
    const HostTensorView& view = passed.view;
    const bool is_whole = passed.owner && passed.owner.use_count() == 1 && view.strides.empty() &&
                          view.data == passed.owner->tensor.memory.data() &&
                          view.sizes == passed.owner->tensor.sizes;
    if (!is_whole) passed = own_copy(passed);
    tensor = std::move(passed.owner->tensor);
  }
  return result;
}

PassedTensor SegmentedRun::own_copy(const PassedTensor& tensor) {
  const HostTensorView& from = tensor.view;
  PassedTensor copy = allocate(from.dtype, from.sizes);
  copy_elements(from.sizes, size_of(from.dtype), from.data, from.strides,
                copy.owner->tensor.memory.data(), {});
  copy.view.texts = from.texts;
  return copy;
}

void SegmentedRun::hold(int64_t bytes) {
  check_limit(bytes);
  *held_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, *held_bytes_);
}

void SegmentedRun::check_limit(int64_t bytes) {
  if (limit_bytes_ <= 0) return;
  const int64_t weights = host_.weight_bytes(), all = weights + *held_bytes_ + bytes;
  ORTM_CHECK(all <= limit_bytes_, "[memory] a run must fit in the memory_limit of ", limit_bytes_,
             " bytes, but data makes it need ", all, " (weights ", weights, ", values ",
             *held_bytes_, ", next ", bytes, "): give smaller inputs");
}

void SegmentedRun::check_terminate(const OnnxNode& node) const {
  ORTM_CHECK(!watch_.terminate || !*watch_.terminate,
             "[terminated] Exiting due to terminate flag being set to true, in ", title(node));
}

// ---- the session -------------------------------------------------------------------------------

std::vector<HostResult> InferenceSession::run_in_segments(const Segment::Bound& bound,
                                                          const std::vector<HostFeed>& feeds,
                                                          const HostTargets& targets,
                                                          const RunWatch& watch, RunTexts* texts) {
  const int64_t limit = host_.options.memory.limit_bytes;
  host_.model->check_files(true);
  InferenceMemory memory = memory_of(bound);
  // How much it grows is not known before: it takes all that is left, for itself.
  if (limit > 0 && memory.total <= limit) memory.peak = limit - memory.weights;
  const Admission::Pass pass = limit > 0 ? admit(memory, feeds, watch) : Admission::Pass();
  std::vector<Buffer> copies;
  std::optional<RunTexts> own;
  RunTexts& of_run = texts ? *texts : own.emplace(host_.model->texts());
  SegmentedRun run(
      host_, limit, watch, [this] { return runs_++; }, of_run);
  run.hold(download_bytes(feeds));
  const std::vector<HostFeed> on_host = feeds_on_host(feeds, host_.memory, copies);
  std::vector<std::string> names;
  for (const OnnxValue& output : outputs()) names.push_back(output.name);
  std::vector<PassedValue> values = run.run(whole_, SegmentedRun::pass(on_host), names);
  std::vector<HostResult> results;
  for (PassedValue& value : values) results.push_back(run.take_result(std::move(value)));
  last_peak_bytes_ = run.peak_bytes();
  if (!targets.empty()) copied_bytes_ += copy_to_targets(results, targets, outputs());
  return results;
}

}  // namespace ortmodule
