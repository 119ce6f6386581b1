// Sessions of the public C++ API on top of InferenceSession.
#include <filesystem>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "inference/api/session_impl.h"
#include "inference/api/translate_errors.h"
#include "inference/likely_sizes.h"
#include "inference/shared_models.h"
#include "onnx/onnx_reader.h"
#include "onnx/onnx_types.h"

namespace ortmodule::inference {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "[run] " + message);
}

void check_bytes(const void* model, size_t bytes) {
  if (!model && bytes != 0)
    throw Error(ErrorCode::InvalidArgument, "[Session] the address of a model must not be null");
}

HostTensorView view_of(const Value& tensor, const std::string& input) {
  const auto number = static_cast<int64_t>(tensor.type());
  HostTensorView view{onnx_dtype(number), tensor.sizes(), tensor.data()};
  if (view.dtype == DType::Undefined)
    throw Error(ErrorCode::NotImplemented, "[run] input '" + input +
                                               "' must have a type that the engine computes "
                                               "with, but found " +
                                               onnx_type_name(number));
  return view;
}

HostFeed feed_of(const Value& value, const std::string& input) {
  HostFeed feed;
  if (value.is_tensor()) feed.tensors.push_back(view_of(value, input));
  if (value.is_sequence()) {
    feed.is_sequence = true;
    for (const Value& element : value.elements()) feed.tensors.push_back(view_of(element, input));
  }
  return feed;
}

TensorInfo describe(const OnnxValue& value) {
  TensorInfo info;
  info.name = value.name;
  const OnnxType* type = &value.type;
  if (type->kind == OnnxType::Kind::Optional && type->element) {
    info.optional = true;
    type = type->element.get();
  }
  if (type->kind == OnnxType::Kind::Sequence && type->element) {
    info.kind = TensorInfo::Kind::Sequence;
    type = type->element.get();
  }
  if (type->kind != OnnxType::Kind::Tensor && type->kind != OnnxType::Kind::Unknown)
    info.kind = TensorInfo::Kind::Other;
  info.type = static_cast<ElementType>(type->element_type);
  info.has_rank = type->dims.has_value();
  if (!info.has_rank) return info;
  for (const OnnxDim& dim : *type->dims) {
    const auto* size = std::get_if<int64_t>(&dim);
    const auto* name = std::get_if<std::string>(&dim);
    info.sizes.push_back(size ? *size : -1);
    info.size_names.push_back(name ? *name : std::string());
  }
  return info;
}

Value to_value(HostTensor tensor) {
  const auto type = static_cast<ElementType>(onnx_number(tensor.dtype));
  const auto bytes = static_cast<size_t>(tensor.byte_count());
  auto memory = std::make_shared<Buffer>(std::move(tensor.memory));
  void* data = memory->data();
  return Value::borrowed(type, tensor.sizes.vector(), data, bytes, std::move(memory));
}

}  // namespace

Value to_value(HostResult result) {
  if (result.meaning.meaning != OnnxMeaning::Numbers)
    throw Error(ErrorCode::NotImplemented,
                "[run] outputs must be numbers in C++, but found strings or maps: ask for others, "
                "or export the model with integer labels and without ZipMap");
  if (!result.is_sequence)
    return result.tensors.empty() ? Value() : to_value(std::move(result.tensors.front()));
  std::vector<Value> elements;
  for (HostTensor& tensor : result.tensors) elements.push_back(to_value(std::move(tensor)));
  return Value::sequence(std::move(elements));
}

inline namespace v1 {

Session::Impl::Impl(std::shared_ptr<LoadedModel> model, const SessionOptions::Impl& options)
    : session(std::move(model), options.options) {
  for (const OnnxValue* input : session.inputs()) {
    inputs_by_name.emplace(input->name, inputs.size());
    inputs.push_back(describe(*input));
  }
  for (const OnnxValue* input : session.overridable()) {
    inputs_by_name.emplace(input->name, inputs.size() + overridable.size());
    overridable.push_back(describe(*input));
  }
  for (size_t i = 0; i < session.outputs().size(); ++i)
    outputs_by_name.emplace(session.outputs()[i].name, i);
  const OnnxModel& read = session.model().model();
  metadata.producer_name = read.producer;
  metadata.graph_name = read.graph.name;
  const OnnxFacts& facts = session.model().facts();
  metadata.domain = facts.domain;
  metadata.description = facts.doc;
  metadata.graph_description = facts.graph_doc;
  metadata.version = facts.version;
  metadata.custom.insert(read.metadata.begin(), read.metadata.end());
  const std::string& path = options.optimized_model_path;
  if (!path.empty() && save_optimized_early(session, path)) unwritten_ = path;
}

const std::vector<TensorInfo>& Session::Impl::typed_outputs() {
  std::call_once(typed_, [this] {
    for (const OnnxValue& output : session.typed_outputs())
      typed_outputs_.push_back(describe(output));
  });
  return typed_outputs_;
}

std::vector<HostResult> Session::Impl::run(const std::vector<HostFeed>& feeds,
                                           const HostTargets& targets,
                                           const std::atomic<bool>& terminate) {
  std::vector<HostResult> results = session.run(feeds, targets, &terminate);
  if (!unwritten_.empty())
    std::call_once(written_, [&] { session.save_optimized(feeds, unwritten_); });
  return results;
}

size_t Session::Impl::place(const char* what, const std::map<std::string, size_t>& places,
                            const std::string& name) {
  const auto found = places.find(name);
  if (found != places.end()) return found->second;
  std::string known;
  for (const auto& entry : places) known += (known.empty() ? "'" : ", '") + entry.first + "'";
  refuse(str(what, " must be one of ", known, ", but found '", name, "'"));
}

std::vector<HostFeed> Session::Impl::feeds(const std::vector<const Value*>& values) const {
  std::vector<HostFeed> feeds;
  for (size_t i = 0; i < values.size(); ++i) {
    const TensorInfo& input = i < inputs.size() ? inputs[i] : overridable[i - inputs.size()];
    if (!values[i] && i < inputs.size() && !input.optional)
      refuse("every input must have a value, but found none for '" + input.name + "'");
    feeds.push_back(values[i] ? feed_of(*values[i], input.name) : HostFeed());
  }
  return feeds;
}

std::vector<HostFeed> Session::Impl::feeds(
    const std::map<std::string, std::vector<int64_t>>& sizes) const {
  std::vector<HostFeed> feeds(inputs.size() + overridable.size());
  for (const auto& [name, input_sizes] : sizes) {
    const size_t place = input(name);
    const OnnxType& type = (place < inputs.size() ? session.inputs()[place]
                                                  : session.overridable()[place - inputs.size()])
                               ->type;
    Value::byte_count_of(static_cast<ElementType>(type.element_type), input_sizes);  // checks them
    feeds[place] = HostFeed(HostTensorView{type.dtype, input_sizes, nullptr});
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (feeds[i].tensors.empty() && !inputs[i].optional)
      refuse("every input must have sizes, but found none for '" + inputs[i].name + "'");
  return feeds;
}

Session::Session(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::Session(const std::string& path, const SessionOptions& options)
    : impl_(translated([&] {
        std::error_code failure;
        if (!std::filesystem::is_regular_file(path, failure))
          throw Error(ErrorCode::NoSuchFile,
                      "[Session] the model must be a file, but found '" + path + "'");
        const OnnxSubstitutes given = options.impl().substitutes();
        return std::make_shared<Impl>(
            given.initializers.empty() ? load_shared_model(path) : load_model(path, given),
            options.impl());
      })) {}

Session Session::from_bytes(const void* model, size_t bytes, const SessionOptions& options) {
  return translated([&] {
    check_bytes(model, bytes);
    auto copy = std::make_shared<const std::string>(static_cast<const char*>(model), bytes);
    return from_borrowed_bytes(copy->data(), copy->size(), options, copy);
  });
}

Session Session::from_borrowed_bytes(const void* model, size_t bytes, const SessionOptions& options,
                                     std::shared_ptr<const void> owner) {
  return translated([&] {
    check_bytes(model, bytes);
    const SharedBytes shared(std::move(owner), {static_cast<const char*>(model), bytes});
    OnnxFacts facts;
    OnnxModel read = parse_onnx_model(shared, "bytes", "", options.impl().substitutes(), &facts);
    return Session(std::make_shared<Impl>(
        std::make_shared<LoadedModel>(std::move(read), std::move(facts)), options.impl()));
  });
}

const std::vector<TensorInfo>& Session::inputs() const { return impl_->inputs; }
const std::vector<TensorInfo>& Session::overridable_inputs() const { return impl_->overridable; }
const std::vector<TensorInfo>& Session::outputs() const {
  return translated([&]() -> const std::vector<TensorInfo>& { return impl_->typed_outputs(); });
}
const ModelMetadata& Session::metadata() const { return impl_->metadata; }
int64_t Session::last_peak_bytes() const { return impl_->session.last_peak_bytes(); }

namespace {

// Values by input.
template <class Named>
std::vector<const Value*> by_input(const Session::Impl& session, const Named& values) {
  std::vector<const Value*> placed(session.inputs.size() + session.overridable.size(), nullptr);
  for (const auto& [name, value] : values) {
    const Value*& place = placed[session.input(name)];
    if (place) refuse("an input must have one value, but found two for '" + name + "'");
    place = &value;
  }
  return placed;
}

MemoryReport report_of(const InferenceMemory& memory) {
  return {memory.weights, memory.outputs, memory.peak, memory.total, memory.exact, memory.parts};
}

}  // namespace

std::vector<Value> Session::run(const std::vector<std::string>& input_names,
                                const std::vector<Value>& values,
                                const std::vector<std::string>& output_names,
                                const RunOptions& options) const {
  return translated([&] {
    if (input_names.size() != values.size())
      refuse(str("there must be one name for each value, but found ", input_names.size(),
                 " names and ", values.size(), " values"));
    std::vector<std::pair<const std::string&, const Value&>> named;
    for (size_t i = 0; i < values.size(); ++i) named.emplace_back(input_names[i], values[i]);
    std::vector<size_t> wanted;
    for (const std::string& name : output_names) wanted.push_back(impl_->output(name));
    std::vector<HostResult> results =
        impl_->run(impl_->feeds(by_input(*impl_, named)), {}, options.impl().terminate);
    if (wanted.empty()) {
      wanted.resize(results.size());
      std::iota(wanted.begin(), wanted.end(), size_t{0});
    }
    // Others may be strings or maps, which are no values.
    std::map<size_t, Value> made;
    std::vector<Value> chosen;
    for (size_t place : wanted) {
      if (made.count(place) == 0) made[place] = to_value(std::move(results.at(place)));
      chosen.push_back(made[place]);
    }
    return chosen;
  });
}

MemoryReport Session::memory(const std::map<std::string, std::vector<int64_t>>& sizes) const {
  return translated([&] { return report_of(impl_->session.memory(impl_->feeds(sizes))); });
}

MemoryReport Session::memory(const std::map<std::string, Value>& values) const {
  return translated(
      [&] { return report_of(impl_->session.memory(impl_->feeds(by_input(*impl_, values)))); });
}

int64_t Session::largest(const std::string& name, int64_t limit_bytes,
                         const std::map<std::string, std::vector<int64_t>>& sizes) const {
  return translated([&] { return impl_->session.largest(name, limit_bytes, impl_->feeds(sizes)); });
}

HeldMemory Session::held() const {
  const InferenceHeld held = impl_->session.held();
  return {held.runs, held.kept, held.plans, held.peak};
}

void Session::return_kept() const { impl_->session.return_kept(); }

bool Session::end_profiling(const std::string& path) const {
  return translated([&] { return impl_->session.end_profiling(path); });
}

std::string Session::plan_text(const std::map<std::string, Value>& values) const {
  return translated(
      [&] { return impl_->session.plan_text(impl_->feeds(by_input(*impl_, values))); });
}

}  // namespace v1
}  // namespace ortmodule::inference
