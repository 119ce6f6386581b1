// Bound inputs and outputs of the public C++ API.
#include <algorithm>
#include <utility>

#include "inference/api/session_impl.h"
#include "inference/api/translate_errors.h"
#include "onnx/onnx_types.h"

namespace ortmodule::inference {
inline namespace v1 {

IoBinding::IoBinding(const Session& session) : impl_(std::make_unique<Impl>()) {
  impl_->session = session.impl_;
  const size_t inputs = session.inputs().size() + session.overridable_inputs().size();
  impl_->inputs.resize(inputs);
  impl_->bound.resize(inputs);
}

IoBinding::IoBinding(IoBinding&& other) noexcept = default;
IoBinding& IoBinding::operator=(IoBinding&& other) noexcept = default;
IoBinding::~IoBinding() = default;

void IoBinding::bind_input(const std::string& name, Value value) {
  const size_t place = impl_->session->input(name);
  impl_->inputs[place] = std::move(value);
  impl_->bound[place] = true;
}

void IoBinding::bind_output(const std::string& name, Value tensor) {
  if (!tensor.is_tensor() || tensor.read_only())
    throw Error(ErrorCode::InvalidArgument, "[bind_output] output '" + name +
                                                "' must be bound to a tensor that can be written");
  impl_->bind(name, std::move(tensor));
}

void IoBinding::bind_output(const std::string& name) { impl_->bind(name, Value()); }

void IoBinding::Impl::bind(const std::string& name, Value target) {
  session->output(name);
  const auto known = std::find(output_names.begin(), output_names.end(), name);
  const auto place = static_cast<size_t>(known - output_names.begin());
  if (known == output_names.end()) {
    output_names.push_back(name);
    targets.emplace_back();
  }
  targets[place] = std::move(target);
  outputs.clear();
}

void Session::run(IoBinding& binding, const RunOptions& options) const {
  IoBinding::Impl& bound = *binding.impl_;
  if (bound.session != impl_)
    throw Error(ErrorCode::InvalidArgument, "[run] a binding must be of the session that runs it");
  bound.outputs = translated([&] { return bound.run(options.impl().terminate); });
}

std::vector<Value> IoBinding::Impl::run(const std::atomic<bool>& terminate) const {
  std::vector<const Value*> values;
  for (size_t i = 0; i < inputs.size(); ++i) values.push_back(bound[i] ? &inputs[i] : nullptr);
  HostTargets places(session->session.outputs().size());
  std::vector<size_t> wanted;
  for (size_t i = 0; i < targets.size(); ++i) {
    wanted.push_back(session->output(output_names[i]));
    if (!targets[i].is_tensor()) continue;
    places[wanted.back()] = HostTarget{onnx_dtype(static_cast<int64_t>(targets[i].type())),
                                       targets[i].sizes(), targets[i].mutable_data()};
  }
  std::vector<HostResult> results = session->run(session->feeds(values), places, terminate);
  std::vector<Value> values_by_output;
  for (size_t i = 0; i < targets.size(); ++i)
    values_by_output.push_back(targets[i].is_tensor() ? targets[i]
                                                      : to_value(std::move(results[wanted[i]])));
  return values_by_output;
}

void IoBinding::clear_inputs() {
  std::fill(impl_->inputs.begin(), impl_->inputs.end(), Value());
  std::fill(impl_->bound.begin(), impl_->bound.end(), false);
}

void IoBinding::clear_outputs() {
  impl_->output_names.clear();
  impl_->targets.clear();
  impl_->outputs.clear();
}

const std::vector<std::string>& IoBinding::output_names() const { return impl_->output_names; }
const std::vector<Value>& IoBinding::outputs() const { return impl_->outputs; }

}  // namespace v1
}  // namespace ortmodule::inference
