// A run that does not fit in the limit: some rows of its batch at a time.
#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "inference/bound_outputs.h"
#include "inference/bound_run.h"
#include "inference/copy_elements.h"
#include "inference/inference_session.h"
#include "inference/largest_that.h"
#include "inference/plan_targets.h"
#include "inference/row_split.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

// The part of a tensor that holds rows [begin, end) of `rows` along `axis`; all of it without one.
template <class Tensor>
void cut(Tensor& tensor, int axis, int64_t rows, int64_t begin, int64_t end) {
  if (axis == kWhole) return;
  const auto place = static_cast<size_t>(axis);
  const int64_t each = tensor.sizes[place] / rows;
  const Sizes strides = tensor.strides.empty() ? contiguous_strides(tensor.sizes) : tensor.strides;
  const bool outermost = std::all_of(tensor.sizes.begin(), tensor.sizes.begin() + axis,
                                     [](int64_t size) { return size == 1; });
  if (!outermost) tensor.strides = strides;
  const int64_t bytes = begin * each * strides[place] * static_cast<int64_t>(size_of(tensor.dtype));
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(tensor.data)>>,
                                  const char, char>;
  if (tensor.data) tensor.data = static_cast<Byte*>(tensor.data) + bytes;
  tensor.sizes[place] = (end - begin) * each;
}

std::vector<HostFeed> rows_of(const std::vector<HostFeed>& feeds, const std::vector<int>& axes,
                              int64_t rows, int64_t begin, int64_t end) {
  std::vector<HostFeed> part = feeds;
  size_t i = 0;
  for (HostFeed& feed : part)
    for (HostTensorView& tensor : feed.tensors) cut(tensor, axes.at(i++), rows, begin, end);
  return part;
}

// What parts depend on in the feeds of a call: a content may decide which graph it is.
std::vector<int64_t> key_of(const Segment::Bound& bound) {
  std::vector<int64_t> key;
  const auto add = [&](const Sizes& sizes) {
    key.push_back(static_cast<int64_t>(sizes.size()));
    key.insert(key.end(), sizes.begin(), sizes.end());
  };
  for (const ValueForm& form : bound.call.forms) {
    key.push_back(static_cast<int64_t>(form.kind));
    key.push_back(static_cast<int64_t>(form.count));
  }
  for (const HostTensorView& tensor : bound.call.tensors) {
    key.push_back(static_cast<int64_t>(tensor.dtype));
    add(tensor.sizes);
    add(tensor.strides);
  }
  for (const FeedContent& content : bound.outcome->contents_of(bound.call)) {
    key.push_back(static_cast<int64_t>(content.tensor));
    key.push_back(content.offset_bytes);
    key.push_back(static_cast<int64_t>(content.bytes.size()));
    key.insert(key.end(), content.bytes.begin(), content.bytes.end());
  }
  return key;
}

// Whether a content on which the graph depends lies in rows: in a part it would be another one.
bool decides_by_rows(const Segment::Outcome& outcome, const RowSplit& split) {
  const auto in_rows = [&](const auto& content) {
    return split.inputs.at(content.input) != kWhole;
  };
  return std::ranges::any_of(outcome.contents, in_rows) ||
         std::ranges::any_of(outcome.content_guards, in_rows);
}

}  // namespace

struct InferenceSession::Parts {
  RowSplit split;
  int64_t rows = 0;   // of the call
  int64_t count = 1;  // of parts, which differ by at most one row
  InferenceMemory memory;

  int64_t begin(int64_t part) const { return part * rows / count; }
  int64_t most_rows() const { return (rows + count - 1) / count; }
};

InferenceMemory InferenceSession::memory_in(const Parts& parts) const { return parts.memory; }

// The split of a call along the sizes of that name; null, and `why`, if there is none.
std::shared_ptr<InferenceSession::Parts> InferenceSession::split_along(const std::string& name,
                                                                       const Segment::Bound& bound,
                                                                       std::string& why) {
  const Segment::Outcome& outcome = *bound.outcome;
  auto parts = std::make_shared<Parts>();
  std::vector<std::string>& symbols = parts->split.symbols;
  for (const auto& [input, dim] : named_.places_of(name)) {
    const ValueForm& form = bound.call.forms.at(input);
    if (form.kind == ValueForm::Kind::Absent) continue;
    const int64_t rows = bound.call.tensors[form.first].sizes.at(dim);
    std::string symbol;
    if (!outcome.input_dims.at(form.first).at(dim).is_symbol(&symbol) ||
        (parts->rows != 0 && rows != parts->rows)) {
      why = str("input '", inputs_[input]->name, "' has another number of rows");
      return nullptr;
    }
    parts->rows = rows;
    if (std::ranges::find(symbols, symbol) == symbols.end()) symbols.push_back(symbol);
  }
  if (parts->rows < 2) {
    why = str("'", name, "' is less than 2");
    return nullptr;
  }
  if (Reason reason =
          find_row_split(outcome.imported, outcome.symbols_of(bound.call), parts->split)) {
    why = *reason;
    return nullptr;
  }
  if (decides_by_rows(outcome, parts->split)) {
    why = "the contents of rows decide sizes";
    return nullptr;
  }
  return parts;
}

std::shared_ptr<InferenceSession::Parts> InferenceSession::split_of(
    const Segment::Bound& bound, const std::vector<HostFeed>& feeds, std::string& why) {
  const bool tensors = std::ranges::all_of(bound.outcome->outputs, [](const ValueForm& form) {
    return form.kind == ValueForm::Kind::Tensor;
  });
  const auto batch = named_.batch_of(feeds);
  if (!tensors || !bound.outcome->imported.graph || !batch) {
    why = tensors ? "no input has a first dimension that may change" : "an output is no tensor";
    return nullptr;
  }
  if (auto parts = split_along(batch->first, bound, why)) return parts;
  // Not always does the batch come first.
  std::string other;
  for (const std::string& name : named_.names())
    if (name != batch->first)
      if (auto parts = split_along(name, bound, other)) return parts;
  return nullptr;
}

// Where so many rows are written, without the memory.
HostTargets InferenceSession::places_of(const Segment::Bound& bound, const Parts& parts,
                                        int64_t rows) {
  const Plan& plan = *bound.entry->program.plan;
  HostTargets places;
  for (size_t k = 0; k < plan.output_tensors.size(); ++k) {
    const PlannedTensor& planned = plan.tensors[plan.output_tensors[k]];
    places.push_back(HostTarget{planned.dtype, planned.layout.sizes});
    cut(*places.back(), parts.split.outputs[k], parts.rows, 0, rows);
  }
  return places;
}

std::optional<InferenceMemory> InferenceSession::memory_of_part(const Segment::Bound& bound,
                                                                const Parts& parts,
                                                                const std::vector<HostFeed>& feeds,
                                                                int64_t rows) {
  try {
    const Segment::Bound part =
        whole_.bind_part(rows_of(feeds, parts.split.inputs, parts.rows, 0, rows), bound.outcome);
    InferenceMemory memory = memory_of(part);
    if (!host_.device) {  // parts write to the outputs of all, where they can
      const Plan& plan = *part.entry->program.plan;
      const int64_t lent =
          memory_of(plan).peak - peak_with_targets(plan, places_of(bound, parts, rows));
      memory.peak -= lent;
      memory.total -= lent;
    }
    const int64_t outputs = memory_of(bound).outputs;  // of all parts
    memory.peak += outputs;
    memory.total += outputs;
    memory.outputs = outputs;
    return memory;
  } catch (const Error&) {
    return std::nullopt;  // sizes that the model cannot have
  }
}

std::shared_ptr<const InferenceSession::Parts> InferenceSession::parts_for(
    const Segment::Bound& bound, const std::vector<HostFeed>& feeds, std::string& why) {
  std::vector<int64_t> key = key_of(bound);
  {
    const std::lock_guard lock(parts_mutex_);
    if (const auto known = parts_.find(key); known != parts_.end()) return known->second;
  }
  const std::shared_ptr<Parts> parts = split_of(bound, feeds, why);
  if (!parts) return nullptr;
  const auto fits = [&](int64_t rows) {
    const auto memory = memory_of_part(bound, *parts, feeds, rows);
    return memory && memory->total <= host_.options.memory.limit_bytes;
  };
  const int64_t most = largest_that(fits, parts->rows - 1);
  if (most > 0) parts->count = (parts->rows + most - 1) / most;
  if (most == 0 || !fits(parts->rows / parts->count)) {
    const auto least = memory_of_part(bound, *parts, feeds, 1);
    why = least ? str("one row at a time needs ", least->total) : "no number of rows fits";
    return nullptr;
  }
  parts->memory = *memory_of_part(bound, *parts, feeds, parts->most_rows());
  parts->memory.parts = parts->count;
  constexpr size_t kMostKnown = 256;
  const std::lock_guard lock(parts_mutex_);
  if (parts_.size() >= kMostKnown) parts_.clear();
  return parts_.emplace(std::move(key), parts).first->second;
}

std::vector<HostResult> InferenceSession::run_in_parts(const Parts& parts,
                                                       const Segment::Bound& bound,
                                                       const std::vector<HostFeed>& feeds,
                                                       const HostTargets& targets,
                                                       const RunWatch& watch) {
  const Admission::Pass pass = admit(parts.memory, feeds, watch);
  const Plan& plan = *bound.entry->program.plan;
  // Outputs come to memory of their own first: a bound output may lie over a feed that a later part
  // reads.
  plan_targets(plan, bound.outcome->outputs, outputs(), host_.options.device.number, targets);
  std::vector<HostResult> results;
  HostTargets places(plan.output_tensors.size());
  for (const ValueForm& form : bound.outcome->outputs) {
    const PlannedTensor& planned = plan.tensors[plan.output_tensors.at(form.first)];
    HostResult& result = results.emplace_back();
    result.meaning = bound.outcome->meanings.at(results.size() - 1);
    HostTensor& tensor = result.tensors.emplace_back();
    tensor.dtype = planned.dtype;
    tensor.sizes = planned.layout.sizes;
    tensor.memory = host_.memory.allocate(tensor.byte_count());
    places[form.first] = {tensor.dtype, tensor.sizes, tensor.memory.data()};
  }
  int64_t peak_bytes = 0;
  for (int64_t i = 0; i < parts.count; ++i) {
    const int64_t begin = parts.begin(i), end = parts.begin(i + 1);
    const Segment::Bound part =
        whole_.bind_part(rows_of(feeds, parts.split.inputs, parts.rows, begin, end), bound.outcome);
    const Plan& part_plan = *part.entry->program.plan;
    HostTargets part_places = places;
    for (size_t k = 0; k < part_places.size(); ++k) {
      if (!part_places[k]) continue;
      cut(*part_places[k], parts.split.outputs[k], parts.rows, begin, end);
      const auto& sizes = part_plan.tensors[part_plan.output_tensors.at(k)].layout.sizes;
      ORTM_ASSERT(sizes == part_places[k]->sizes, "a part must have the rows of its place");
    }
    const HostRun run = run_bound(host_, part, runs_++, part_places, watch);
    peak_bytes = std::max(peak_bytes, run.peak_bytes + part.copied_bytes());
    copied_bytes_ += run.copied_bytes + part.copied_bytes();
  }
  for (const HostResult& result : results) peak_bytes += result.tensors.front().memory.bytes();
  last_peak_bytes_ = peak_bytes;
  if (!targets.empty()) copied_bytes_ += copy_to_targets(results, targets, outputs());
  return results;
}

}  // namespace ortmodule
