// Sessions, bindings and metadata.
#pragma once

#include <ortmodule/ort/env.h>
#include <ortmodule/ort/session_options.h>
#include <ortmodule/ort/value.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

struct OrtSession {
  ortmodule::inference::Session session;
  std::string profile_prefix;
};

struct OrtModelMetadata {
  ortmodule::inference::ModelMetadata values;
};

struct OrtIoBinding {
  ortmodule::inference::IoBinding binding;
};

/// Gets the outputs of RunAsync, or a status that it frees.
using RunAsyncCallbackFn = void (*)(void* user_data, OrtValue** outputs, size_t output_count,
                                    OrtStatusPtr status);

namespace Ort {

/// What a model's file says about itself.
class ModelMetadata : public detail::Base<OrtModelMetadata> {
 public:
  explicit ModelMetadata(std::nullptr_t) {}
  explicit ModelMetadata(OrtModelMetadata* metadata) { p_ = metadata; }

  AllocatedStringPtr GetProducerNameAllocated(OrtAllocator* allocator) const {
    return detail::allocated(values().producer_name, allocator);
  }
  AllocatedStringPtr GetGraphNameAllocated(OrtAllocator* allocator) const {
    return detail::allocated(values().graph_name, allocator);
  }
  AllocatedStringPtr GetDomainAllocated(OrtAllocator* allocator) const {
    return detail::allocated(values().domain, allocator);
  }
  AllocatedStringPtr GetDescriptionAllocated(OrtAllocator* allocator) const {
    return detail::allocated(values().description, allocator);
  }
  AllocatedStringPtr GetGraphDescriptionAllocated(OrtAllocator* allocator) const {
    return detail::allocated(values().graph_description, allocator);
  }
  int64_t GetVersion() const { return values().version; }
  std::vector<AllocatedStringPtr> GetCustomMetadataMapKeysAllocated(OrtAllocator* allocator) const {
    std::vector<AllocatedStringPtr> keys;
    for (const auto& entry : values().custom)
      keys.push_back(detail::allocated(entry.first, allocator));
    return keys;
  }
  /// Empty if there is no such key.
  AllocatedStringPtr LookupCustomMetadataMapAllocated(const char* key,
                                                      OrtAllocator* allocator) const {
    const auto found = values().custom.find(key);
    if (found == values().custom.end())
      return AllocatedStringPtr(nullptr, detail::AllocatedFree(allocator));
    return detail::allocated(found->second, allocator);
  }

 private:
  const ortmodule::inference::ModelMetadata& values() const {
    return detail::checked(p_, "ModelMetadata").values;
  }
};

class IoBinding;

namespace detail {

/// What can be asked of a session.
template <class Holder>
class ConstSessionImpl : public Holder {
 public:
  using Holder::Holder;

  size_t GetInputCount() const { return session().inputs().size(); }
  size_t GetOutputCount() const { return session().outputs().size(); }
  AllocatedStringPtr GetInputNameAllocated(size_t index, OrtAllocator* allocator) const {
    return allocated(input(index).name, allocator);
  }
  AllocatedStringPtr GetOutputNameAllocated(size_t index, OrtAllocator* allocator) const {
    return allocated(output(index).name, allocator);
  }
  /// The same for programs written for the first versions of onnxruntime; free it by the allocator.
  char* GetInputName(size_t index, OrtAllocator* allocator) const {
    return GetInputNameAllocated(index, allocator).release();
  }
  char* GetOutputName(size_t index, OrtAllocator* allocator) const {
    return GetOutputNameAllocated(index, allocator).release();
  }
  std::vector<std::string> GetInputNames() const { return names(session().inputs()); }
  std::vector<std::string> GetOutputNames() const { return names(session().outputs()); }
  std::vector<std::string> GetOverridableInitializerNames() const {
    return names(session().overridable_inputs());
  }
  std::vector<ValueInfo> GetInputs() const { return values(session().inputs()); }
  std::vector<ValueInfo> GetOutputs() const { return values(session().outputs()); }
  std::vector<ValueInfo> GetOverridableInitializers() const {
    return values(session().overridable_inputs());
  }
  /// Where inputs and outputs are: on the host.
  std::vector<ConstMemoryInfo> GetMemoryInfoForInputs() const { return host(GetInputCount()); }
  std::vector<ConstMemoryInfo> GetMemoryInfoForOutputs() const { return host(GetOutputCount()); }
  TypeInfo GetInputTypeInfo(size_t index) const { return TypeInfo(input(index)); }
  TypeInfo GetOutputTypeInfo(size_t index) const { return TypeInfo(output(index)); }
  size_t GetOverridableInitializerCount() const { return session().overridable_inputs().size(); }
  AllocatedStringPtr GetOverridableInitializerNameAllocated(size_t index,
                                                            OrtAllocator* allocator) const {
    return allocated(overridable(index).name, allocator);
  }
  TypeInfo GetOverridableInitializerTypeInfo(size_t index) const {
    return TypeInfo(overridable(index));
  }
  ModelMetadata GetModelMetadata() const {
    return ModelMetadata(new OrtModelMetadata{session().metadata()});
  }

 protected:
  using Info = ortmodule::inference::TensorInfo;

  const ortmodule::inference::Session& session() const {
    return checked(this->p_, "Session").session;
  }
  const Info& input(size_t index) const { return at(session().inputs(), index, "input"); }
  const Info& overridable(size_t index) const {
    return at(session().overridable_inputs(), index, "overridable initializer");
  }
  const Info& output(size_t index) const { return at(session().outputs(), index, "output"); }
  static const Info& at(const std::vector<Info>& infos, size_t index, const char* what) {
    if (index >= infos.size())
      refuse(std::string("[Session] the index of an ") + what + " must be below " +
             std::to_string(infos.size()) + ", but found " + std::to_string(index));
    return infos[index];
  }
  static std::vector<std::string> names(const std::vector<Info>& infos) {
    std::vector<std::string> result;
    for (const Info& info : infos) result.push_back(info.name);
    return result;
  }
  static std::vector<ValueInfo> values(const std::vector<Info>& infos) {
    std::vector<ValueInfo> result;
    for (const Info& info : infos) result.emplace_back(info.name, TypeInfo(info));
    return result;
  }
  static std::vector<ConstMemoryInfo> host(size_t count) {
    return std::vector<ConstMemoryInfo>(count, AllocatorWithDefaultOptions().GetInfo());
  }
};

/// Runs.
template <class Holder>
class SessionImpl : public ConstSessionImpl<Holder> {
 public:
  using ConstSessionImpl<Holder>::ConstSessionImpl;

  /// Returns the outputs named, in that order.
  std::vector<Value> Run(const RunOptions& options, const char* const* input_names,
                         const Value* inputs, size_t input_count, const char* const* output_names,
                         size_t output_count) {
    std::vector<Value> outputs(output_count);
    Run(options, input_names, inputs, input_count, output_names, outputs.data(), output_count);
    return outputs;
  }
  /// Writes into the outputs that have a value, and gives the others what the run allocates.
  void Run(const RunOptions& options, const char* const* input_names, const Value* inputs,
           size_t input_count, const char* const* output_names, Value* outputs,
           size_t output_count) {
    translated([&] {
      ortmodule::inference::IoBinding binding =
          bind(input_names, inputs, input_count, output_names, outputs, output_count);
      this->session().run(binding, options_of(options));
      give(binding, outputs, output_count);
    });
  }
  void Run(const RunOptions& options, const IoBinding& binding);
  /// The same in a thread of the program's, which calls `callback` at the end: with the outputs,
  /// which stay in `outputs`, and a null status, or with no output and a status that the callback
  /// owns. `outputs` must live until then; inputs, options and the session need not. What the
  /// callback throws is written to the error stream. Throws for names that the model has not.
  void RunAsync(const RunOptions& options, const char* const* input_names, const Value* inputs,
                size_t input_count, const char* const* output_names, Value* outputs,
                size_t output_count, RunAsyncCallbackFn callback, void* user_data) {
    translated([&] {
      auto binding = std::make_shared<ortmodule::inference::IoBinding>(
          bind(input_names, inputs, input_count, output_names, outputs, output_count));
      AsyncRuns::of_program().add([session = this->session(), set = options_of(options), outputs,
                                   output_count, callback, user_data, binding] {
        std::vector<OrtValue*> values;
        OrtStatus* status = status_of([&] {
          session.run(*binding, set);
          give(*binding, outputs, output_count);
          for (size_t i = 0; i < output_count; ++i) values.push_back(outputs[i]);
        });
        call(callback, user_data, values, status);
      });
    });
  }
  /// Writes the trace that the options asked for, and returns the name of its file.
  AllocatedStringPtr EndProfilingAllocated(OrtAllocator* allocator) {
    return translated([&] {
      const std::string path = checked(this->p_, "Session").profile_prefix + "_" +
                               std::to_string(std::time(nullptr)) + ".json";
      return allocated(this->session().end_profiling(path) ? path : std::string(), allocator);
    });
  }

 private:
  ortmodule::inference::IoBinding bind(const char* const* input_names, const Value* inputs,
                                       size_t input_count, const char* const* output_names,
                                       const Value* outputs, size_t output_count) const {
    ortmodule::inference::IoBinding binding(this->session());
    for (size_t i = 0; i < input_count; ++i)
      binding.bind_input(input_names[i], checked<OrtValue>(inputs[i], "Run").value);
    for (size_t i = 0; i < output_count; ++i)
      for (size_t before = 0; before < i; ++before)
        if (std::string(output_names[i]) == output_names[before])
          refuse("[Run] output '" + std::string(output_names[i]) + "' must be asked for once");
    for (size_t i = 0; i < output_count; ++i)
      if (outputs[i])
        binding.bind_output(output_names[i], checked<OrtValue>(outputs[i], "Run").value);
      else
        binding.bind_output(output_names[i]);
    return binding;
  }
  // Puts what the run allocated where the caller gave nothing.
  static void give(const ortmodule::inference::IoBinding& binding, Value* outputs, size_t count) {
    for (size_t i = 0; i < count; ++i)
      if (!outputs[i]) outputs[i] = Value(binding.outputs()[i]);
  }
  // Nobody is there to catch what it throws.
  static void call(RunAsyncCallbackFn callback, void* user_data, std::vector<OrtValue*>& values,
                   OrtStatus* status) {
    try {
      callback(user_data, values.data(), values.size(), status);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "[E:ortmodule:RunAsync] the callback must not throw, but threw: %s\n",
                   error.what());
    } catch (...) {
      std::fprintf(stderr, "[E:ortmodule:RunAsync] the callback must not throw, but it threw\n");
    }
  }
  static ortmodule::inference::RunOptions options_of(const RunOptions& options) {
    const OrtRunOptions* given = options;
    return given ? given->options : ortmodule::inference::RunOptions();
  }
};

}  // namespace detail

using ConstSession = detail::ConstSessionImpl<detail::Unowned<const OrtSession>>;
using UnownedSession = detail::SessionImpl<detail::Unowned<OrtSession>>;

/// A model that is loaded and run. Thread-safe.
class Session : public detail::SessionImpl<detail::Base<OrtSession>> {
 public:
  Session() = default;
  explicit Session(std::nullptr_t) {}
  /// Loads a file.
  Session(const Env& env, const char* path, const SessionOptions& options) {
    open(env, options,
         [&](const Options& set) { return ortmodule::inference::Session(std::string(path), set); });
  }
  /// The same; the name is encoded as UTF-8.
  Session(const Env& env, const wchar_t* path, const SessionOptions& options)
      : Session(env, narrow(path).c_str(), options) {}
  Session(const Env& env, const char* path, const SessionOptions& options,
          OrtPrepackedWeightsContainer*)
      : Session(env, path, options) {}
  /// Loads a model from bytes, which may be freed then.
  Session(const Env& env, const void* model, size_t bytes, const SessionOptions& options) {
    open(env, options, [&](const Options& set) {
      return ortmodule::inference::Session::from_bytes(model, bytes, set);
    });
  }

  ConstSession GetConst() const { return ConstSession(p_); }
  UnownedSession GetUnowned() const { return UnownedSession(p_); }

 private:
  using Options = ortmodule::inference::SessionOptions;

  static std::string narrow(const wchar_t* path) {
    std::string text;
    for (; *path; ++path) {
      const auto c = static_cast<uint32_t>(*path);
      const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((c >> shift) & 0x3f)); };
      if (c < 0x80) {
        text += static_cast<char>(c);
      } else if (c < 0x800) {
        text += static_cast<char>(0xc0 | (c >> 6));
        tail(0);
      } else if (c < 0x10000) {
        text += static_cast<char>(0xe0 | (c >> 12));
        tail(6);
        tail(0);
      } else {
        text += static_cast<char>(0xf0 | (c >> 18));
        tail(12);
        tail(6);
        tail(0);
      }
    }
    return text;
  }

  template <class Load>
  void open(const Env& env, const SessionOptions& options, const Load& load) {
    const OrtEnv& environment = detail::checked<OrtEnv>(env, "Env");
    const OrtSessionOptions* given = options;
    const OrtSessionOptions wanted = given ? *given : OrtSessionOptions();
    Options set = wanted.options;
    if (!wanted.names_threads) set.set_threads(environment.threads);
    p_ = detail::translated([&] { return new OrtSession{load(set), wanted.profile_prefix}; });
    warn(environment, wanted);
  }

  static void warn(const OrtEnv& environment, const OrtSessionOptions& options) {
    if (options.log_severity_level > ORT_LOGGING_LEVEL_WARNING) return;
    std::string names;
    for (const std::string& name : options.providers) names += (names.empty() ? "" : ", ") + name;
    if (names.empty()) return;
    environment.log(ORT_LOGGING_LEVEL_WARNING,
                    "[providers] this build has only CPUExecutionProvider, which runs the model, "
                    "but found " +
                        names);
  }
};

/// Inputs and outputs that stay bound from run to run.
class IoBinding : public detail::Base<OrtIoBinding> {
 public:
  explicit IoBinding(std::nullptr_t) {}
  explicit IoBinding(Session& session) {
    const auto& inner = detail::checked<OrtSession>(session, "IoBinding").session;
    p_ = new OrtIoBinding{ortmodule::inference::IoBinding(inner)};
  }

  void BindInput(const char* name, const Value& value) {
    detail::translated(
        [&] { binding().bind_input(name, detail::checked<OrtValue>(value, "BindInput").value); });
  }
  /// Binds an output to a tensor that runs write into.
  void BindOutput(const char* name, const Value& value) {
    detail::translated(
        [&] { binding().bind_output(name, detail::checked<OrtValue>(value, "BindOutput").value); });
  }
  /// Binds an output that each run allocates.
  void BindOutput(const char* name, const OrtMemoryInfo* info) {
    const OrtMemoryInfo& place = detail::checked(info, "BindOutput");
    if (!ConstMemoryInfo::on_host(place))
      detail::refuse("[BindOutput] outputs are in memory of the host, but found '" + place.name +
                     "'");
    detail::translated([&] { binding().bind_output(name); });
  }
  std::vector<std::string> GetOutputNames() const { return binding().output_names(); }
  std::vector<std::string> GetOutputNames(OrtAllocator*) const { return GetOutputNames(); }
  /// The values of the last run; they share the memory of the binding.
  std::vector<Value> GetOutputValues() const {
    std::vector<Value> values;
    for (const auto& value : binding().outputs()) values.emplace_back(value);
    return values;
  }
  std::vector<Value> GetOutputValues(OrtAllocator*) const { return GetOutputValues(); }
  void ClearBoundInputs() { binding().clear_inputs(); }
  void ClearBoundOutputs() { binding().clear_outputs(); }
  /// Nothing to wait for: a run ends when its outputs are there.
  void SynchronizeInputs() {}
  void SynchronizeOutputs() {}

  ortmodule::inference::IoBinding& binding() const {
    return detail::checked(p_, "IoBinding").binding;
  }
};

template <class Holder>
void detail::SessionImpl<Holder>::Run(const RunOptions& options, const IoBinding& binding) {
  translated([&] { this->session().run(binding.binding(), options_of(options)); });
}

/// The allocator of a session, which is that of the host.
class Allocator : public detail::AllocatorImpl {
 public:
  explicit Allocator(std::nullptr_t) : AllocatorImpl(nullptr) {}
  Allocator(const Session& session, const OrtMemoryInfo* info)
      : AllocatorImpl(detail::host_allocator()) {
    detail::checked(static_cast<OrtSession*>(session), "Allocator");
    const OrtMemoryInfo& place = detail::checked(info, "Allocator");
    if (!ConstMemoryInfo::on_host(place))
      detail::refuse("[Allocator] memory must be that of the host, but found '" + place.name + "'");
  }
};

}  // namespace Ort
