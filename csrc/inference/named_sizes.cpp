#include "inference/named_sizes.h"

#include <algorithm>

#include "base/error.h"
#include "inference/readable_feeds.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

const std::string kBatch = "batch";

bool is_tensor(const OnnxValue& input) {
  return input.type.kind == OnnxType::Kind::Tensor && input.type.dims.has_value();
}

}  // namespace

NamedSizes::NamedSizes(const std::vector<const OnnxValue*>& inputs,
                       std::map<std::string, int64_t> fixed)
    : inputs_(inputs), fixed_(std::move(fixed)) {
  std::vector<Place> first;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_tensor(*inputs[i])) continue;
    const std::vector<OnnxDim>& dims = *inputs[i]->type.dims;
    for (size_t d = 0; d < dims.size(); ++d) {
      const auto* name = std::get_if<std::string>(&dims[d]);
      if (std::holds_alternative<int64_t>(dims[d]) || (name && fixed_.count(*name))) continue;
      if (name) places_[*name].push_back({i, d});
      if (d == 0) first.push_back({i, d});
    }
  }
  if (!first.empty()) places_.emplace(kBatch, first);
}

HostTensorView tensor_of_sizes(const OnnxValue& input, Sizes sizes) {
  const OnnxType* type = &input.type;
  while (type->element) type = type->element.get();
  const bool texts = type->element_type == kOnnxString;
  return {texts ? DType::Int64 : type->dtype, std::move(sizes), nullptr, {}, kOnHost, texts};
}

const std::vector<NamedSizes::Place>& NamedSizes::places_of(const std::string& name) const {
  const auto found = places_.find(name);
  if (found != places_.end()) return found->second;
  std::string names;
  for (const auto& [known, places] : places_) names += str(names.empty() ? "" : ", ", known);
  throw Error(str("[run] a size must be one of those that the model names (",
                  names.empty() ? "none" : names, "), but found '", name, "'"));
}

// Sizes that are not fixed are -1.
HostTensorView NamedSizes::fixed_part(const OnnxValue& input) const {
  ORTM_CHECK(is_tensor(input), "[run] input '", input.name,
             "' must be a tensor of known rank where no shape is given for it");
  HostTensorView tensor = tensor_of_sizes(input, {});
  for (const OnnxDim& dim : *input.type.dims) {
    const auto* size = std::get_if<int64_t>(&dim);
    const auto* name = std::get_if<std::string>(&dim);
    const auto fixed = name ? fixed_.find(*name) : fixed_.end();
    tensor.sizes.push_back(size ? *size : fixed != fixed_.end() ? fixed->second : -1);
  }
  return tensor;
}

void NamedSizes::complete(std::vector<HostFeed>& feeds,
                          const std::map<std::string, int64_t>& sizes) const {
  std::vector<bool> added(inputs_.size(), false);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    HostFeed& feed = feeds.at(i);
    const bool optional = inputs_[i]->type.kind == OnnxType::Kind::Optional;
    if (feed.is_sequence || !feed.tensors.empty() || optional) continue;
    feed.tensors.push_back(fixed_part(*inputs_[i]));
    added[i] = true;
  }
  // "batch" first: a name of the model's own stands above the alias.
  for (const bool alias : {true, false})
    for (const auto& [name, size] : sizes) {
      if ((name == kBatch) != alias) continue;
      ORTM_CHECK(size >= 0, "[run] size '", name, "' must not be negative, but found ", size);
      for (const Place& place : places_of(name))
        if (added[place.input]) feeds[place.input].tensors[0].sizes[place.dim] = size;
    }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!added[i]) continue;
    const Sizes& known = feeds[i].tensors[0].sizes;
    const auto missing = std::find(known.begin(), known.end(), -1);
    if (missing == known.end()) continue;
    const auto* name = std::get_if<std::string>(
        &(*inputs_[i]->type.dims)[static_cast<size_t>(missing - known.begin())]);
    throw Error(str("[run] dimension ", missing - known.begin(), " of input '", inputs_[i]->name,
                    "' must have a size: give ",
                    name ? str("'", *name, "'") : "the shape of the input, as it has no name"));
  }
}

void NamedSizes::set(std::vector<HostFeed>& feeds, const std::string& name, int64_t size) const {
  ORTM_CHECK(size >= 0, "[run] size '", name, "' must not be negative, but found ", size);
  for (const Place& place : places_of(name)) {
    HostTensorView& tensor = feeds.at(place.input).tensors.at(0);
    if (tensor.sizes.at(place.dim) == size) continue;
    tensor.copied = is_copied(tensor);
    tensor.sizes[place.dim] = size;
    tensor.data = nullptr;
  }
}

std::vector<std::string> NamedSizes::names() const {
  std::vector<std::string> names;
  for (const auto& [name, places] : places_)
    if (name != kBatch) names.push_back(name);
  if (places_.count(kBatch)) names.push_back(kBatch);
  return names;
}

std::optional<std::pair<std::string, int64_t>> NamedSizes::batch_of(
    const std::vector<HostFeed>& feeds) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!is_tensor(*inputs_[i]) || inputs_[i]->type.dims->empty()) continue;
    const auto* name = std::get_if<std::string>(&inputs_[i]->type.dims->front());
    const std::string& shown = name && places_.count(*name) ? *name : kBatch;
    if (std::holds_alternative<int64_t>(inputs_[i]->type.dims->front())) continue;
    const auto places = places_.find(shown);
    if (places == places_.end() || feeds.at(i).tensors.empty()) continue;
    return std::pair(shown, feeds[i].tensors[0].sizes.at(0));
  }
  return std::nullopt;
}

}  // namespace ortmodule
