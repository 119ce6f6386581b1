#include "inference/likely_sizes.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <variant>

#include "base/error.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

// For the first size of an input, which often is a batch, and for the others.
constexpr std::array<std::pair<int64_t, int64_t>, 10> kLikely = {{
    {2, 64},
    {2, 96},
    {2, 32},
    {2, 16},
    {2, 224},
    {2, 8},
    {2, 4},
    {2, 2},
    {1, 64},
    {1, 1},
}};

bool is_open(const OnnxDim& dim) {
  const auto* fixed = std::get_if<int64_t>(&dim);
  return !fixed || *fixed < 0;
}

// The sizes of one input. `known`: assumed sizes by name, "" apart.
Sizes sizes_of(const std::vector<OnnxDim>& dims, std::pair<int64_t, int64_t> likely, bool apart,
               std::map<std::string, int64_t>& known, int64_t& assumed) {
  Sizes sizes;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!is_open(dims[d])) {
      sizes.push_back(std::get<int64_t>(dims[d]));
      continue;
    }
    const auto [first, other] = likely;
    const auto* name = std::get_if<std::string>(&dims[d]);
    const int64_t fresh = d == 0 ? first : other + (apart ? other / 2 * assumed : 0);
    const auto found = name ? known.find(*name) : known.end();
    sizes.push_back(found != known.end() ? found->second : fresh);
    if (found != known.end()) continue;
    ++assumed;
    if (name) known.emplace(*name, fresh);
  }
  return sizes;
}

}  // namespace

std::vector<OnnxDim> InferenceSession::input_dims(size_t input) const {
  const OnnxValue& value = *inputs_.at(input);
  std::vector<OnnxDim> dims = value.type.dims.value();
  for (OnnxDim& dim : dims) {
    const auto* name = std::get_if<std::string>(&dim);
    const auto fixed =
        name ? host_.options.fixed_sizes.find(*name) : host_.options.fixed_sizes.end();
    if (fixed != host_.options.fixed_sizes.end()) dim = fixed->second;
  }
  const auto denoted = host_.model->facts().denotations.find(value.name);
  if (denoted == host_.model->facts().denotations.end()) return dims;
  for (const auto& [axis, denotation] : denoted->second) {
    const auto fixed = host_.options.fixed_denotations.find(denotation);
    if (fixed != host_.options.fixed_denotations.end() && is_open(dims.at(axis)))
      dims[axis] = fixed->second;
  }
  return dims;
}

std::vector<std::vector<Sizes>> likely_sizes(const std::vector<std::vector<OnnxDim>>& inputs) {
  const bool open = std::any_of(inputs.begin(), inputs.end(), [](const auto& dims) {
    return std::any_of(dims.begin(), dims.end(), is_open);
  });
  std::vector<std::vector<Sizes>> all;
  for (const bool apart : {true, false}) {
    for (const auto& likely : kLikely) {
      std::map<std::string, int64_t> known;
      int64_t assumed = 0;
      std::vector<Sizes>& sizes = all.emplace_back();
      for (const auto& dims : inputs)
        sizes.push_back(sizes_of(dims, likely, apart, known, assumed));
      if (!open) return all;
    }
  }
  return all;
}

std::vector<std::vector<Sizes>> likely_sizes(const InferenceSession& session, std::string& why) {
  std::vector<std::vector<OnnxDim>> inputs;
  for (size_t i = 0; i < session.inputs().size(); ++i) {
    const OnnxType& type = session.inputs()[i]->type;
    if (type.kind != OnnxType::Kind::Tensor || !type.dims) {
      why = "the model has inputs that are no tensors of known rank";
      return {};
    }
    inputs.push_back(session.input_dims(i));
  }
  return likely_sizes(inputs);
}

std::vector<std::vector<HostFeed>> likely_feeds(const InferenceSession& session, std::string& why) {
  std::vector<std::vector<HostFeed>> all;
  for (std::vector<Sizes>& sizes : likely_sizes(session, why)) {
    std::vector<HostFeed>& feeds = all.emplace_back();
    for (size_t i = 0; i < sizes.size(); ++i)
      feeds.emplace_back(tensor_of_sizes(*session.inputs()[i], std::move(sizes[i])));
  }
  return all;
}

std::optional<std::vector<HostFeed>> declared_feeds(const InferenceSession& session) {
  for (size_t i = 0; i < session.inputs().size(); ++i) {
    const OnnxType& type = session.inputs()[i]->type;
    const bool known = type.kind == OnnxType::Kind::Tensor && type.dims &&
                       (type.dtype != DType::Undefined || type.element_type == kOnnxString);
    // An empty shape may stand for an unknown one.
    if (!known || type.dims->empty() || std::ranges::any_of(session.input_dims(i), is_open))
      return std::nullopt;
  }
  std::string why;
  return likely_feeds(session, why).front();
}

namespace {

// Whether `message` begins with a place such as "[plan]".
bool comes_from(const std::string& message, std::string_view place) {
  return message.compare(0, place.size(), place) == 0;
}

// Calls `use` with feeds of likely sizes until it returns true. What it throws is the last `why`.
template <class Use>
bool try_likely_sizes(const InferenceSession& session, std::string& why, const Use& use) {
  for (const std::vector<HostFeed>& feeds : likely_feeds(session, why)) {
    try {
      if (use(feeds)) return true;
    } catch (const Error& error) {
      why = error.what();
      if (comes_from(why, "[save]") || comes_from(why, "[onnx]")) throw;  // not the sizes
    }
  }
  return false;
}

}  // namespace

std::optional<std::string> save_optimized_early(InferenceSession& session,
                                                const std::string& path) {
  std::string why;
  const bool saved = try_likely_sizes(session, why, [&](const std::vector<HostFeed>& feeds) {
    session.save_optimized(feeds, path);
    return true;
  });
  return saved ? std::nullopt : std::optional(why);
}

std::optional<std::string> why_not_on_device(InferenceSession& session) {
  std::string why;
  std::optional<std::string> lacks;
  try_likely_sizes(session, why, [&](const std::vector<HostFeed>& feeds) {
    try {
      session.plan(feeds);
    } catch (const Error& error) {
      if (!comes_from(error.what(), "[plan]") && !comes_from(error.what(), "[kernel]")) throw;
      lacks = error.what();
    }
    return true;
  });
  return lacks;
}

}  // namespace ortmodule
