// What a run in segments takes at most, as far as that can be told before it.
#include "inference/segmented_memory.h"

#include <algorithm>
#include <list>
#include <utility>

#include "base/error.h"
#include "inference/bound_run.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

int64_t bytes_of(const HostTensorView& view) {
  return element_count(view.sizes) * static_cast<int64_t>(size_of(view.dtype));
}

// A value without data, of the sizes that a plan gives it.
HostFeed carried_feed(const CarriedValue& carried, const Segment::Bound& bound, int64_t& bytes) {
  const Plan& plan = *bound.entry->program.plan;
  HostFeed feed;
  feed.is_sequence = carried.kind == ValueForm::Kind::Sequence;
  for (const CarriedValue::Tensor& from : carried.tensors) {
    if (from.is_input) {
      feed.tensors.push_back(bound.call.tensors.at(from.index));
      continue;
    }
    const PlannedTensor& tensor = plan.tensors[plan.output_tensors.at(from.index)];
    feed.tensors.push_back({tensor.dtype, tensor.layout.sizes, nullptr});
    bytes += bytes_of(feed.tensors.back());
  }
  return feed;
}

// Adds the results of a SizedOp with the most elements.
bool add_most(const ModelCut& cut, std::map<std::string, HostFeed>& values, int64_t& bytes) {
  const SizedOp* op = find_sized_op(cut.node.op);
  if (!op || !op->most) return false;
  std::vector<HostTensorView> views;
  for (const std::string& name : cut.node.inputs) {
    const auto value = values.find(name);
    const bool has = value != values.end() && value->second.tensors.size() == 1;
    views.push_back(has ? value->second.tensors[0] : HostTensorView());
  }
  const std::vector<SizedResult> results =
      op->most({cut.attrs, views, [](DType, const Sizes&, bool) -> void* { return nullptr; }});
  for (size_t i = 0; i < results.size(); ++i) {
    const HostTensorView most{results[i].dtype, results[i].sizes, nullptr};
    bytes += bytes_of(most);
    if (i < cut.node.outputs.size()) values[cut.node.outputs[i]] = HostFeed(most);
  }
  return true;
}

}  // namespace

std::optional<int64_t> most_segmented_bytes(const SegmentHost& host, Segment& segment,
                                            std::vector<HostFeed> feeds) {
  int64_t peak = 0, held = 0;
  std::list<Segment::Bound> passed;  // later feeds may lie in their copies
  for (Segment* at = &segment;;) {
    const Segment::Bound& bound = passed.emplace_back(at->bind(feeds));
    const int64_t planned = bound.entry->program.plan->forward_peak_bytes;
    peak = std::max(peak, held + planned + feed_bytes(host, bound));
    const std::optional<ModelCut>& cut = bound.outcome->cut;
    if (!cut) return peak;
    if (cut->kind != ModelCut::Kind::Sized) return std::nullopt;
    std::map<std::string, HostFeed> values;
    for (const CarriedValue& carried : cut->values)  // what was held may be held still
      values[carried.name] = carried_feed(carried, bound, held);
    if (!add_most(*cut, values, held)) return std::nullopt;
    peak = std::max(peak, held);
    feeds.clear();
    for (const std::string& name : bound.outcome->rest->part()->inputs) {
      const auto value = values.find(name);
      if (value == values.end()) return std::nullopt;
      feeds.push_back(value->second);
    }
    at = bound.outcome->rest.get();
  }
}

}  // namespace ortmodule
