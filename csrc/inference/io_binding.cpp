#include "inference/io_binding.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "onnx/onnx_types.h"

namespace ortmodule {
namespace {

template <class Names>
[[noreturn]] void fail_unknown(const char* what, const std::string& name, const Names& known) {
  std::string names;
  for (const std::string& each : known) names += str(names.empty() ? "" : ", ", "'", each, "'");
  throw Error(str("[bind] ", what, " must be one of ", names, ", but found '", name, "'"));
}

}  // namespace

// Two threads that use one binding at once would see half of each other's changes.
class IoBinding::Use {
 public:
  explicit Use(IoBinding& binding) : binding_(binding) {
    ORTM_CHECK(!binding_.in_use_.exchange(true),
               "[bind] a binding must be used by one thread at a time, but found another one that "
               "uses it: make a binding for each thread");
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { binding_.in_use_ = false; }

 private:
  IoBinding& binding_;
};

IoBinding::IoBinding(InferenceSession& session)
    : session_(session), inputs_(session.inputs().size()) {}

size_t IoBinding::input_index(const std::string& name) const {
  for (size_t i = 0; i < session_.inputs().size(); ++i)
    if (session_.inputs()[i]->name == name) return i;
  std::vector<std::string> known;
  for (const OnnxValue* input : session_.inputs()) known.push_back(input->name);
  fail_unknown("an input", name, known);
}

IoBinding::Output& IoBinding::output_slot(const std::string& name) {
  const std::vector<OnnxValue>& known = session_.outputs();
  const auto found =
      std::ranges::find_if(known, [&](const OnnxValue& value) { return value.name == name; });
  if (found == known.end()) {
    std::vector<std::string> names;
    for (const OnnxValue& value : known) names.push_back(value.name);
    fail_unknown("an output", name, names);
  }
  const auto index = static_cast<size_t>(found - known.begin());
  const auto bound =
      std::ranges::find_if(outputs_, [&](const Output& output) { return output.index == index; });
  Output& slot = bound == outputs_.end() ? outputs_.emplace_back() : *bound;
  slot = {.index = index, .place = std::nullopt};
  return slot;
}

void IoBinding::bind_input(const std::string& name, SharedValue value) {
  const Use use(*this);
  inputs_[input_index(name)] = std::move(value);
}

void IoBinding::bind_output(const std::string& name, int device) {
  const Use use(*this);
  output_slot(name).device = device;
}

void IoBinding::bind_output(const std::string& name, SharedTensor place) {
  const Use use(*this);
  ORTM_CHECK(!place.read_only, "[bind] the memory bound to output '", name,
             "' must be writable, but found a read-only tensor");
  Output& slot = output_slot(name);
  slot.value = place;
  slot.place = std::move(place);
}

void IoBinding::clear_inputs() {
  const Use use(*this);
  for (std::optional<SharedValue>& input : inputs_) input.reset();
}

void IoBinding::clear_outputs() {
  const Use use(*this);
  outputs_.clear();
}

void IoBinding::check_inputs() const {
  std::string missing;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const OnnxValue& input = *session_.inputs()[i];
    if (!inputs_[i] && input.type.kind != OnnxType::Kind::Optional)
      missing += str(missing.empty() ? "" : ", ", "'", input.name, "'");
    if (!inputs_[i]) continue;
    for (const SharedTensor& tensor : inputs_[i]->tensors)
      ORTM_CHECK(tensor.dtype() != DType::Undefined, "[run] input '", input.name,
                 "' must have a type that the engine has, but found ",
                 onnx_type_name(tensor.element_type));
  }
  ORTM_CHECK(missing.empty(), "[run] all inputs must be bound, but ", missing, " is not");
}

std::vector<HostFeed> IoBinding::feeds() const {
  std::vector<HostFeed> feeds(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs_[i]) continue;
    feeds[i].is_sequence = inputs_[i]->is_sequence;
    for (const SharedTensor& tensor : inputs_[i]->tensors)
      feeds[i].tensors.push_back(tensor.view());
  }
  return feeds;
}

HostTargets IoBinding::targets() const {
  HostTargets targets(session_.outputs().size());
  for (const Output& output : outputs_) {
    if (!output.place && output.device == kOnHost) continue;
    if (!output.place) {
      targets[output.index].emplace().device = output.device;
      continue;
    }
    const SharedTensor& place = *output.place;
    ORTM_CHECK(place.dtype() != DType::Undefined, "[run] the memory bound to output '",
               session_.outputs()[output.index].name,
               "' must have a type that the engine has, but found ",
               onnx_type_name(place.element_type));
    targets[output.index] = {place.dtype(), place.sizes, place.data, place.strides, place.device};
  }
  return targets;
}

void IoBinding::run(const std::atomic<bool>* terminate) {
  const Use use(*this);
  ORTM_CHECK(!outputs_.empty(), "[run] at least one output must be bound, but found none");
  check_inputs();
  const HostTargets places = targets();
  for (Output& output : outputs_) {
    output.value = output.place ? SharedValue(*output.place) : SharedValue();
    output.given_alone = false;
  }
  std::vector<HostResult> results = session_.run(feeds(), places, terminate);
  for (Output& output : outputs_)
    if (!output.place) output.value = SharedValue(std::move(results.at(output.index)));
}

SharedValue IoBinding::output(size_t i) {
  const Use use(*this);
  Output& output = outputs_.at(i);
  // Whoever has the memory from output_alone() must not see it change.
  if (output.given_alone)
    for (SharedTensor& tensor : output.value.tensors)
      if (tensor.owner.use_count() > 1) tensor = copy_of(tensor);
  output.given_alone = false;
  return output.value;
}

SharedValue IoBinding::output_alone(size_t i) {
  const Use use(*this);
  Output& output = outputs_.at(i);
  SharedValue alone = output.value;
  for (SharedTensor& tensor : alone.tensors) {
    // Two owners: the binding and `alone`.
    if (!output.place && tensor.device == kOnHost && tensor.owner.use_count() == 2)
      output.given_alone = true;
    else
      tensor = copy_of(tensor);
  }
  return alone;
}

}  // namespace ortmodule
